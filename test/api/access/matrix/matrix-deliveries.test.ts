/** Policy shapes applied to bulk exports and Subscription deliveries. */
import t from 'tap'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { exportAll, idsIn } from '../../../fixtures/exports/exports.ts'
import { aSubscription, extension, startReceiver } from '../../../fixtures/http/receiver.ts'
import { openClinics } from '../../../fixtures/policy/clinics.ts'
import { type Entry, memberUnder } from '../../../fixtures/policy/policy.ts'
import { aPatient } from '../../../fixtures/resources.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const DONE_MS = 60_000
const receiver = await startReceiver(t)
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,change,export' },
})
const { admin, services } = botica
const { a, b, inClinic, shapes, which } = await openClinics(botica)
const SHAPES: Readonly<Record<string, readonly Entry[]>> = {
  ...shapes,
  // All observations, but only the patients of A.
  observer: [{ resourceType: 'Observation' }, ...inClinic.slice(0, 1)],
  blind: [{ resourceType: 'Patient', hiddenFields: ['identifier'] }],
}
const NAMES = Object.keys(SHAPES)
const subscribing = { resourceType: 'Subscription' }
const members = await Promise.all(
  Object.values(SHAPES).map((entries) =>
    memberUnder(botica, { entries: [...entries, subscribing] }),
  ),
)

t.test('limits a bulk export to the policy', async (t) => {
  const expected = ['ABab', 'Aa', 'Aa', '-', '-', 'Aab', 'AB']
  for (const [i, name] of NAMES.entries()) {
    const client = members[i]?.client
    if (client === undefined) continue
    const exported = await exportAll(client, '$export')
    const ids = ['Patient', 'Observation'].flatMap((type) => idsIn(exported, type))
    t.equal(which(ids), expected[i], name)
    const lines = JSON.stringify([...exported.resources.values()])
    const isShown = ids.length > 0 && name !== 'blind'
    t.equal(lines.includes('urn:matrix'), isShown, `hidden content: ${name}`)
  }
})

t.test('limits deliveries of Subscriptions to the policy', async (t) => {
  const expected = ['ABab', 'Aa', 'Aa', '-', '-', 'Aab', 'AB']
  for (const [i, name] of NAMES.entries()) {
    for (const type of ['Patient', 'Observation']) {
      await members[i]?.client.create(aSubscription(type, `${receiver.url}/${name}`))
    }
  }
  for (const resource of [b.patient, b.observation, a.patient, a.observation]) {
    const { status } = await admin.put(`${resource.resourceType}/${resource.id}`, {
      ...resource,
      language: 'en',
    })
    t.equal(status, 200)
  }
  await until(nothingWaits, DONE_MS)
  for (const [i, name] of NAMES.entries()) {
    const bodies = receiver.on(`/${name}`).map(({ body }) => body)
    t.equal(which(bodies.map((body) => JSON.parse(body).id)), expected[i], name)
    const isHidden = name === 'blind'
    t.ok(
      bodies.every((body) => body.includes('urn:matrix') !== isHidden),
      `hidden content: ${name}`,
    )
  }
})

t.test('evaluates criteria of Subscriptions on visible elements only', async (t) => {
  const expression = (text: string) => ({
    extension: [extension('fhir-path-criteria-expression', text)],
  })
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', criteria: 'Patient?gender=male', hiddenFields: ['identifier'] },
      { resourceType: 'Patient' },
      subscribing,
    ],
  })
  const hidden = 'identifier.exists()'
  for (const [name, criteria, more] of [
    ['plain', 'Patient?name=waited', {}],
    ['identified', 'Patient?identifier=urn:waited|1', {}],
    ['told', 'Patient?name=waited', expression(hidden)],
    ['changed', 'Patient?name=waited', expression(`%current.${hidden} and %previous.empty()`)],
  ] as const) {
    await client.create(aSubscription(criteria, `${receiver.url}/of-${name}`, more))
  }
  const waited = (gender: string) =>
    admin.create(
      aPatient({
        gender,
        name: [{ family: 'Waited' }],
        identifier: [{ system: 'urn:waited', value: '1' }],
      }),
    )
  const [male, female] = [await waited('male'), await waited('female')]
  await until(nothingWaits, DONE_MS)
  const deliveredTo = (name: string) =>
    receiver.on(`/of-${name}`).map(({ body }) => String(JSON.parse(body).id))
  t.same(deliveredTo('plain').sort(), [male.id, female.id].sort())
  for (const name of ['identified', 'told', 'changed']) t.same(deliveredTo(name), [female.id], name)
})

/** True when no change is waiting for delivery. */
async function nothingWaits(): Promise<boolean> {
  const [left] = await services.database.query<{ count: number }>({
    text: 'select ((select count(*) from outbox) + (select count(*) from delivery))::int as count',
    values: [],
  })
  return left?.count === 0
}
