import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'

interface Searchset extends Resource {
  readonly total?: number
  readonly link: readonly { relation: string; url: string }[]
  readonly entry?: readonly {
    readonly fullUrl?: string
    readonly search: { readonly mode: string }
    readonly resource: Resource
  }[]
}

const botica = await openBotica(t)
const { admin } = botica
const create = async (resource: Resource) => {
  const { status, body, text } = await admin.post(resource.resourceType, resource)
  if (status !== 201) throw new Error(`Answered ${status}: ${text}`)
  return `${resource.resourceType}/${body.id}`
}
const system = randomUUID()
const identifier = [{ system, value: '1' }]
const patient = await create({ resourceType: 'Patient', identifier, gender: 'male' })
const other = await create({ resourceType: 'Patient', identifier })
const practitioner = await create({ resourceType: 'Practitioner', identifier })
const encounter = await create({
  resourceType: 'Encounter',
  identifier,
  status: 'finished',
  class: { code: 'AMB' },
  subject: { reference: patient },
})
const observations: string[] = []
for (let i = 0; i < 5; i++) {
  const subject = { reference: i === 4 ? other : patient }
  const status = i % 2 ? 'final' : 'amended'
  observations.push(
    await create({ resourceType: 'Observation', status, code: { text: 'x' }, subject }),
  )
}

const get = (path: string) => admin.get<Searchset>(path)
const listNames = ({ entry = [] }: Searchset, mode = 'match') =>
  entry
    .filter(({ search }) => search.mode === mode)
    .map(({ resource }) => `${resource.resourceType}/${resource.id}`)

t.test('returns resources of several types, newest first', async (t) => {
  const { status, body } = await get(`?_type=Patient,Practitioner,Encounter&identifier=${system}|1`)
  t.equal(status, 200)
  t.same(listNames(body), [encounter, practitioner, other, patient])
  t.equal(body.entry?.[0]?.fullUrl, `${botica.baseUrl}fhir/R4/${encounter}`)
  t.match(body.link[0], {
    relation: 'self',
    url: `${botica.baseUrl}fhir/R4/?_type=Patient%2CPractitioner%2CEncounter&identifier=${system}%7C1`,
  })
  const counted = await get(`?_type=Patient,Encounter&identifier=${system}|1&_summary=count`)
  t.match(counted.body, { total: 3, entry: undefined })
})

t.test('pages over several types in every order', async (t) => {
  for (const sort of ['', '_lastUpdated', '-_lastUpdated', '_id', '-_id']) {
    const path = `?_type=Patient,Practitioner,Encounter,Observation&_sort=${sort}`
    const all = listNames((await get(path)).body)
    t.equal(new Set(all).size, 9)
    const walked: string[] = []
    let next: string | undefined = `${path}&_count=2`
    while (next !== undefined) {
      const { body }: { body: Searchset } = await get(next)
      walked.push(...listNames(body))
      next = body.link.find(({ relation }) => relation === 'next')?.url
    }
    t.same(walked, all, sort)
  }
})

t.test('distinguishes equal ids of several types on pages', async (t) => {
  const id = randomUUID()
  const tag = [{ system, code: 'twin' }]
  for (const type of ['Patient', 'Practitioner', 'Group']) {
    const body = { resourceType: type, id, meta: { tag }, type: 'person', actual: true }
    const sent = type === 'Group' ? body : { resourceType: type, id, meta: { tag } }
    t.equal((await botica.superAdmin.put(`${type}/${id}`, sent)).status, 201)
  }
  for (const sort of ['_id', '-_id']) {
    const walked: string[] = []
    const query = `?_type=Patient,Practitioner,Group&_tag=twin&_count=1&_sort=${sort}`
    let next: string | undefined = query
    while (next !== undefined) {
      const { body }: { body: Searchset } = await botica.superAdmin.get<Searchset>(next)
      walked.push(...listNames(body))
      next = body.link.find(({ relation }) => relation === 'next')?.url
    }
    t.same(walked.toSorted(), [`Group/${id}`, `Patient/${id}`, `Practitioner/${id}`], sort)
  }
})

t.test('finds the same matches by POST as by GET', async (t) => {
  const type = { 'Content-Type': 'application/x-www-form-urlencoded' }
  const form = new URLSearchParams({ identifier: `${system}|1`, _type: 'Encounter' })
  const found = await admin.post<Searchset>('_search?_type=Patient', form.toString(), type)
  t.equal(found.status, 200)
  t.same(listNames(found.body), [encounter, other, patient])
  const inside = await admin.post<Searchset>(
    `${patient}/Observation/_search?_count=1`,
    'status=final&_sort=_lastUpdated',
    type,
  )
  t.same(listNames(inside.body), [observations[1]])
  const json = { 'Content-Type': 'application/json' }
  const asked = { identifier: [`${system}|1`], _include: 'Encounter:subject' }
  const joined = await admin.post<Searchset>('Encounter/_search', asked, json)
  t.same(listNames(joined.body), [encounter])
  t.same(listNames(joined.body, 'include'), [patient])
})

t.test('rejects unsupported searches over several types', async (t) => {
  for (const [path, status, text] of [
    ['', 400, 'No types specified'],
    ['?_type=', 400, 'No types specified'],
    ['?_type=Patient,Nope', 400, 'Unknown resource type: Nope'],
    ['?_type=Patient,Binary', 400, 'Cannot search on Binary resource type'],
    ['?_type=Patient,Encounter&gender=male', 400, 'Unknown search parameter: gender'],
    [
      '?_type=Patient,Practitioner&_sort=name',
      400,
      'Several types are sorted by _lastUpdated or _id',
    ],
    ['?_type=Patient,Encounter&_sort=birthdate', 400, 'Unknown search parameter: birthdate'],
    ['?_type=Patient,Practitioner&_cursor=x', 400, 'Invalid cursor'],
    ['?_type=Login', 403, 'Forbidden'],
    ['Organization/1/Patient', 400, 'There is no Organization compartment'],
    ['Patient/1/Organization', 400, 'Organization is not in the Patient compartment'],
    ['Patient/1/*?_type=Organization', 400, 'Organization is not in the Patient compartment'],
    ['Patient/1/Nope', 400, 'Unknown resource type'],
  ] as const) {
    const answer = await get(path)
    t.equal(answer.status, status, path)
    t.match(answer.body, { issue: [{ details: { text } }] }, path)
  }
})

t.test(
  'ignores a parameter unknown to one type for all types under lenient handling',
  async (t) => {
    const lenient = { Prefer: 'handling=lenient' }
    const path = `?_type=Patient,Encounter&identifier=${system}|1&gender=male`
    const { body } = await admin.get<Searchset>(path, lenient)
    t.same(listNames(body), [encounter, other, patient])
    t.match(body.entry?.at(-1), {
      search: { mode: 'outcome' },
      resource: { issue: [{ severity: 'warning', expression: ['gender'] }] },
    })
    t.notMatch(body.link[0]?.url, /gender/)
  },
)

t.test('finds the resources of a compartment', async (t) => {
  const mine = observations.slice(0, 4)
  const { body } = await get(`${patient}/Observation`)
  t.same(listNames(body), mine.toReversed())
  t.equal(body.link[0]?.url, `${botica.baseUrl}fhir/R4/${patient}/Observation`)
  t.same(listNames((await get(`${patient}/Observation?status=final`)).body), [mine[3], mine[1]])
  t.same(listNames((await get(`${patient}/Patient`)).body), [patient])
  t.same(listNames((await get(`${patient}/*`)).body), [...mine.toReversed(), encounter, patient])
  t.same(listNames((await get(`${patient}/*?_type=Encounter,Patient`)).body), [encounter, patient])
  t.same(listNames((await get(`Patient/${randomUUID()}/*`)).body), [])
  const page = await get(`${patient}/*?_count=2&_total=accurate`)
  t.equal(page.body.total, 6)
  const next = page.body.link.find(({ relation }) => relation === 'next')?.url ?? ''
  t.same(listNames((await get(next)).body), [mine[1], mine[0]])
})

t.test('returns an empty compartment for another project', async (t) => {
  const { admin: stranger } = await botica.createTenant()
  for (const path of [`${patient}/*`, `${patient}/Observation`]) {
    t.same(listNames((await stranger.get<Searchset>(path)).body), [], path)
  }
})

t.test('searches several types with one statement', async (t) => {
  const cost = (path: string) => statementsAsked(botica.services, botica.admin, () => get(path))
  t.equal(await cost(`?_type=Patient,Practitioner&identifier=${system}|1`), 1)
  t.equal(await cost(`${patient}/*`), 1)
  t.equal(await cost(`${patient}/Observation?_include=Observation:encounter`), 1)
})

t.test('lists included resources after the matches with their mode', async (t) => {
  const { body } = await get(`Encounter?identifier=${system}|1&_include=Encounter:patient`)
  t.match(body.entry, [
    { fullUrl: `${botica.baseUrl}fhir/R4/${encounter}`, search: { mode: 'match' } },
    { fullUrl: `${botica.baseUrl}fhir/R4/${patient}`, search: { mode: 'include' } },
  ])
  const cut = await get(
    `Encounter?identifier=${system}|1&_include=Encounter:patient&_elements=status`,
  )
  t.equal(cut.body.entry?.[0]?.resource.identifier, undefined)
  t.match(cut.body.entry?.[1]?.resource, { gender: 'male' })
})

t.test('cuts included resources after a thousand, with a warning', async (t) => {
  const subject = await create({ resourceType: 'Patient', gender: 'other' })
  for (let i = 0; i < 3; i++) {
    const entry = Array.from({ length: 350 }, () => ({
      request: { method: 'POST', url: 'Flag' },
      resource: {
        resourceType: 'Flag',
        status: 'active',
        code: { text: 'x' },
        subject: { reference: subject },
      },
    }))
    const sent = await admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
    t.equal(sent.status, 200)
  }
  const { body } = await get('Patient?gender=other&_revinclude=Flag:subject')
  t.equal(listNames(body, 'include').length, 1000)
  t.match(body.entry?.at(-1), {
    search: { mode: 'outcome' },
    resource: { issue: [{ severity: 'warning', code: 'too-costly' }] },
  })
})

t.test('memberships are found by the type of their profile', async (t) => {
  const profiles = async (query: string) => {
    const { body } = await get(`ProjectMembership?${query}`)
    return listNames(body).length
  }
  await botica.createMember()
  const all = await profiles('')
  t.ok(all > 1)
  t.equal(await profiles('profile-type=ClientApplication'), all)
  t.equal(await profiles('profile-type=Patient,ClientApplication'), all)
  t.equal(await profiles('profile-type=Patient'), 0)
  t.equal(await profiles('profile-type:not=ClientApplication,Bot'), 0)
  t.equal(await profiles('profile-type:not=Patient,Bot'), all)
})

t.test('never returns 5xx for any query', async (t) => {
  const nul = '%00'
  const sql = "x'%20or%201=1--"
  const names = Array.from({ length: 1000 }, (_, i) => `n${i}`).join(',')
  for (const query of [
    `Patient?_filter=name eq "${nul}"`,
    `Patient?_filter=${sql}`,
    'Patient?_filter=name eq "x',
    'Patient?_filter=birthdate gt soon',
    `Patient?_has:Observation:patient:code=${nul}`,
    `Patient?_has:Observation:patient:code:${sql}=x`,
    `Patient?_has:Observation:patient:_has:Observation:patient=x`,
    `Patient?_has:${sql}=x`,
    'Observation?patient..name=x',
    'Observation?patient:.name=x',
    `Observation?patient.${sql}=x`,
    `Observation?patient.name:${sql}=x`,
    'Observation?patient.birthdate=x',
    `Patient?_include=${nul}`,
    `Patient?_include=Patient:organization:${sql}`,
    'Patient?_revinclude=:::',
    'Patient?_include:iterate:x=*',
    '?_type=Patient,Group&_sort=_id&_cursor=WyJpZCx0eXBlIixudWxsLCJ4Iiw5OTldCg',
    'AuditEvent?entity.entity._tag=x',
    `Patient?_compartment=${nul}`,
  ]) {
    const { status, body } = await get(query)
    t.equal(status, 400, query)
    t.match(body, { resourceType: 'OperationOutcome' }, query)
  }
  for (const query of [`Patient?_list=${sql}`, 'Patient?_list=*']) {
    t.equal((await get(query)).status, 200, query)
  }
  const type = { 'Content-Type': 'application/x-www-form-urlencoded' }
  const form = Array.from({ length: 35 }, (_, i) => `name=${names},${i}x`.replace('n0,', '')).join(
    '&',
  )
  const many = await admin.post('Patient/_search', form, type)
  t.equal(many.status, 400)
  t.match(many.body, { issue: [{ code: 'too-costly' }] })
})
