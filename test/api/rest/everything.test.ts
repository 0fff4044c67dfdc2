import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import {
  anEncounter,
  anObservation,
  anOrganization,
  aPatient,
  aPractitioner,
  syntheaBundles,
} from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica

interface Page extends Resource {
  readonly total?: number
  readonly link: readonly { relation: string; url: string }[]
  readonly entry?: readonly { readonly resource: Resource; readonly search: { mode: string } }[]
}

interface Shown {
  readonly match: readonly string[]
  readonly include: readonly string[]
  readonly pages: number
}

/** Follows the next links and returns `Type/id` of each entry. */
async function follow(client: Client, path: string): Promise<Shown> {
  const found: Record<string, string[]> = { match: [], include: [] }
  let next: string | undefined = path
  let pages = 0
  while (next !== undefined) {
    const { status, body, text }: { status: number; body: Page; text: string } =
      await client.get<Page>(next)
    if (status !== 200) throw new Error(`${next} answered ${status}: ${text}`)
    for (const { resource, search } of body.entry ?? []) {
      found[search.mode]?.push(`${resource.resourceType}/${resource.id}`)
    }
    next = body.link.find(({ relation }) => relation === 'next')?.url
    pages += 1
  }
  return { match: found.match ?? [], include: found.include ?? [], pages }
}

const sorted = (names: readonly string[]) => [...names].sort()

t.test('returns a whole record in one bundle or in pages', async (t) => {
  const [bundle] = await syntheaBundles()
  const { body } = await admin.post<Page>('', bundle)
  const made = (body.entry ?? []).map(({ resource }) => `${resource.resourceType}/${resource.id}`)
  const patient = made.find((name) => name.startsWith('Patient/')) ?? ''

  const whole = await follow(admin, `${patient}/$everything`)
  t.equal(whole.pages, 1)
  t.equal(whole.match[0], patient)
  t.same(sorted([...whole.match, ...whole.include]), sorted(made), 'all that was sent, each once')
  t.ok(whole.include.some((name) => name.startsWith('Organization/')))

  const paged = await follow(admin, `${patient}/$everything?_count=7`)
  t.ok(paged.pages > 5)
  t.same(paged.match, whole.match, 'in the same order')
  t.same(sorted(paged.include), sorted(whole.include), 'each included once')
  const posted = await admin.post<Page>(`${patient}/$everything`, {
    resourceType: 'Parameters',
    parameter: [
      { name: '_count', valueInteger: 7 },
      { name: '_type', valueCode: 'Condition' },
      { name: '_type', valueCode: 'Encounter' },
    ],
  })
  t.ok((posted.body.entry ?? []).length <= 7)
  const rest = posted.body.link.find(({ relation }) => relation === 'next')
  const next = await admin.get<Page>(rest?.url ?? '')
  t.equal(next.status, 200)
  t.ok(next.body.entry?.every(({ resource }) => /Condition|Encounter/.test(resource.resourceType)))
  const offset = await admin.get<Page>(`${patient}/$everything?_count=2&_offset=3`)
  t.equal(offset.body.entry?.[0]?.resource.id, whole.match[3]?.split('/')[1])

  const typed = await follow(admin, `${patient}/$everything?_type=Condition,Organization`)
  t.same(
    typed.match,
    whole.match.filter((name) => name.startsWith('Condition/')),
  )
  t.ok(typed.include.every((name) => name.startsWith('Organization/')))
})

t.test('narrows $everything by start, end and _since', async (t) => {
  const patient = await admin.create(aPatient())
  const subject = `Patient/${patient.id}`
  const old = await admin.create(
    anObservation(subject, { effectiveDateTime: '2020-03-04T05:06:07Z' }),
  )
  const dateless = await admin.create(
    anObservation(subject, { effectiveDateTime: undefined, status: 'final' }),
  )
  const late = await admin.create(anObservation(subject, { effectiveDateTime: '2024-02-03' }))
  const path = `${subject}/$everything`
  const ids = async (query: string) =>
    sorted((await follow(admin, `${path}?${query}`)).match.map((name) => name.split('/')[1] ?? ''))
  t.same(await ids('start=2024'), sorted([patient.id, dateless.id, late.id]))
  t.same(await ids('end=2020-03-04'), sorted([patient.id, old.id, dateless.id]))
  t.same(await ids('start=2020-03-05&end=2024-02-02'), sorted([patient.id, dateless.id]))
  t.same(
    await ids('start=2024-02-03&end=2024-02-03&_type=Observation'),
    sorted([dateless.id, late.id]),
  )
  const since = encodeURIComponent(String(late.meta?.lastUpdated))
  t.same(await ids(`_since=${since}`), [late.id])
})

t.test('returns the compartment of an Encounter with its patient and staff', async (t) => {
  const patient = await admin.create(aPatient())
  const subject = `Patient/${patient.id}`
  const organization = await admin.create(anOrganization())
  const practitioner = await admin.create(aPractitioner())
  const role = await admin.create({
    resourceType: 'PractitionerRole',
    practitioner: { reference: `Practitioner/${practitioner.id}` },
    organization: { reference: `Organization/${organization.id}` },
  })
  const encounter = await admin.create(
    anEncounter(subject, {
      participant: [{ individual: { reference: `PractitionerRole/${role.id}` } }],
    }),
  )
  const inside = await admin.create(
    anObservation(subject, { encounter: { reference: `Encounter/${encounter.id}` } }),
  )
  await admin.create(anObservation(subject))
  const { match, include } = await follow(admin, `Encounter/${encounter.id}/$everything`)
  t.same(match, [`Encounter/${encounter.id}`, `Observation/${inside.id}`])
  t.same(
    sorted(include),
    sorted([
      subject,
      `Organization/${organization.id}`,
      `Practitioner/${practitioner.id}`,
      `PractitionerRole/${role.id}`,
    ]),
  )
})

t.test('returns the records of all patients of a Group', async (t) => {
  const patients = await Promise.all([1, 2, 3].map(() => admin.create(aPatient())))
  const observations = await Promise.all(
    patients.map(({ id }) => admin.create(anObservation(`Patient/${id}`))),
  )
  const group = await admin.create({
    resourceType: 'Group',
    type: 'person',
    actual: true,
    member: patients.slice(0, 2).map(({ id }) => ({ entity: { reference: `Patient/${id}` } })),
  })
  const { match } = await follow(admin, `Group/${group.id}/$everything?_count=2`)
  t.same(
    sorted(match),
    sorted([
      `Group/${group.id}`,
      ...patients.slice(0, 2).map(({ id }) => `Patient/${id}`),
      ...observations.slice(0, 2).map(({ id }) => `Observation/${id}`),
    ]),
  )
  const empty = await admin.create({ resourceType: 'Group', type: 'person', actual: true })
  t.same((await follow(admin, `Group/${empty.id}/$everything`)).match, [`Group/${empty.id}`])
})

t.test('omits resources that the caller may not read', async (t) => {
  const patient = await admin.create(aPatient())
  await admin.create(anObservation(`Patient/${patient.id}`))
  const other = await botica.createTenant()
  const path = `Patient/${patient.id}/$everything`
  t.equal((await other.admin.get(path)).status, 404)
  const { body: policy } = await admin.post('AccessPolicy', {
    resourceType: 'AccessPolicy',
    name: 'Patients only',
    resource: [{ resourceType: 'Patient' }],
  })
  const { client } = await botica.createMember({
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  t.same((await follow(client, path)).match, [`Patient/${patient.id}`])
  t.match(await botica.superAdmin.get(path), { status: 200, body: { total: 2 } })
  const none = (await admin.get<Page>(`${path}?_count=0`)).body
  t.same([none.entry, none.total], [undefined, undefined], 'an empty page counts nothing')
})

t.test('rejects invalid requests', async (t) => {
  const { id } = await admin.create(aPatient())
  const path = `Patient/${id}/$everything`
  const wrong = [
    '_count=-1',
    '_count=x',
    '_offset=10001',
    'start=ge2020',
    'end=yesterday',
    'start=2024-02-03&end=2024-02-02',
    '_since=x',
    '_type=Pat',
    '_cursor=x',
    `_cursor=${Buffer.from('["Patient","x"]').toString('base64url')}`,
    `_cursor=${Buffer.from(JSON.stringify(['Patient', '-'.repeat(36)])).toString('base64url')}`,
    `_cursor=${Buffer.from(JSON.stringify([['Patient'], [id]])).toString('base64url')}`,
  ]
  for (const query of wrong) t.equal((await admin.get(`${path}?${query}`)).status, 400, query)
  t.equal((await admin.get('Patient/none/$everything')).status, 404)
  t.equal((await admin.get('Practitioner/1/$everything')).status, 404)
  t.equal((await admin.del(path)).status, 405)
  await admin.del(`Patient/${id}`)
  t.equal((await admin.get(path)).status, 410)
  const none = await admin.get<Page>(`Patient/none/$everything`)
  t.equal(none.body.resourceType, 'OperationOutcome')
})
