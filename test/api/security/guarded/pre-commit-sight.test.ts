/** A pre-commit bot sees and sets only elements that its membership may read. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Untyped } from '../../../fixtures/bots/bots.ts'
import { asked, switchOn } from '../../../fixtures/bots/pre-commit.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const PHONE = '555-0199'
const TELECOM = [{ system: 'phone', value: PHONE }]

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), PRE_COMMIT_BOTS: 'true' },
})
const { admin } = botica
await switchOn(botica, botica)

async function limit(bot: string, resource: readonly object[]): Promise<void> {
  const policy = await admin.create({ resourceType: 'AccessPolicy', resource })
  const found = await admin.get<Untyped>(`ProjectMembership?profile=Bot/${bot}`)
  const membership = found.body.entry[0].resource
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const put = await admin.put(`ProjectMembership/${membership.id}`, { ...membership, accessPolicy })
  t.equal(put.status, 200)
}

const NO_PHONE = [{ resourceType: 'Patient', hiddenFields: ['telecom'] }, { resourceType: '*' }]

t.test('hides a field from the bot and ignores it in the returned resource', async (t) => {
  const bot = await asked(
    botica,
    'Patient',
    `return { ...event.input, name: [{ text: JSON.stringify(event.input) }],
       telecom: [{ system: 'phone', value: 'planted' }] }`,
  )
  await limit(bot, NO_PHONE)
  const patient = { resourceType: 'Patient', telecom: TELECOM }
  const made = await admin.post<Untyped>('Patient', patient)
  t.match(made, { status: 201, body: { telecom: TELECOM } })
  t.match(made.body.name[0].text, 'resourceType')
  t.notMatch(made.body.name[0].text, PHONE)

  const { id } = made.body
  const writes = [
    () => admin.put<Untyped>(`Patient/${id}`, { ...patient, id, active: true }),
    () => admin.patch<Untyped>(`Patient/${id}`, [{ op: 'add', path: '/gender', value: 'other' }]),
  ]
  for (const write of writes) {
    const { status, body } = await write()
    t.equal(status, 200)
    t.same(body.telecom, TELECOM)
    t.notMatch(body.name[0].text, PHONE)
  }
  const bare = await admin.post<Untyped>('Patient', { resourceType: 'Patient' })
  t.equal(bare.body.telecom, undefined, 'adds none where there was none')
})
