/** Imports the parser of searches, to explain plans on a repository. */
import t from 'tap'
import { parseSearch } from '../../../shared/search/language/search.ts'
import {
  allowing,
  countStatements,
  failureStatus,
  openTestStore,
} from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()
const stranger = await aMember()

const create = (resource: { resourceType: string; [key: string]: unknown }, principal = member) =>
  repository.create(principal, resource)
const to = (type: string, { id }: { id: string }) => ({ reference: `${type}/${id}` })

const clinic = await create({ resourceType: 'Organization', name: 'Clinic' })
const ward = await create({
  resourceType: 'Organization',
  name: 'Ward',
  partOf: to('Organization', clinic),
})
const homer = await create({
  resourceType: 'Patient',
  name: [{ family: 'Simpson', given: ['Homer'] }],
  gender: 'male',
  birthDate: '1956-05-12',
  managingOrganization: to('Organization', ward),
})
const marge = await create({
  resourceType: 'Patient',
  name: [{ family: 'Bouvier', given: ['Marge'] }],
  gender: 'female',
  managingOrganization: to('Organization', clinic),
})
const hall = await create({ resourceType: 'Location', name: 'Simpson Hall' })
const visit = await create({
  resourceType: 'Encounter',
  status: 'finished',
  class: { code: 'AMB' },
  subject: to('Patient', homer),
  serviceProvider: to('Organization', ward),
})
const observe = (code: string, subject: { reference: string }, more = {}) =>
  create({
    resourceType: 'Observation',
    status: 'final',
    code: { coding: [{ system: 'l', code }] },
    subject,
    ...more,
  })
const first = await observe('a', to('Patient', homer), { encounter: to('Encounter', visit) })
const second = await observe('b', to('Patient', homer))
const third = await observe('a', to('Patient', marge))
const fourth = await observe('a', to('Location', hall))
const bracketed = await create({
  resourceType: 'Observation',
  status: 'final',
  code: { coding: [{ system: 'l', code: 'mm[Hg]' }] },
})
const form = await create({
  resourceType: 'Questionnaire',
  status: 'active',
  url: 'http://x/q',
  version: '1',
  title: 'Intake',
})
const answers = await create({
  resourceType: 'QuestionnaireResponse',
  status: 'completed',
  questionnaire: 'http://x/q|1',
  subject: to('Patient', homer),
})
const plain = await create({
  resourceType: 'QuestionnaireResponse',
  status: 'in-progress',
  questionnaire: 'http://x/q',
})
const event = await create({
  resourceType: 'Provenance',
  target: [to('Observation', first)],
  recorded: '2024-01-01T00:00:00Z',
  agent: [{ who: to('Organization', clinic) }],
})
const list = await create({
  resourceType: 'List',
  status: 'current',
  mode: 'working',
  entry: [{ item: to('Patient', marge) }, { item: to('Observation', second) }],
})
await create(
  {
    resourceType: 'Observation',
    status: 'final',
    code: { coding: [{ system: 'l', code: 'a' }] },
    subject: to('Patient', homer),
  },
  stranger,
)

const NAMES = new Map(
  Object.entries({
    clinic,
    ward,
    homer,
    marge,
    hall,
    visit,
    first,
    second,
    third,
    fourth,
    bracketed,
    form,
    answers,
    plain,
    event,
    list,
  }).map(([name, { id }]) => [id, name]),
)

const find = (query: string, principal = member) => {
  const [type = '', ...parameters] = query.split('?')
  return repository.search(principal, parseSearch(type, parameters.join('?')))
}
const names = (versions: readonly { id: string }[]) =>
  versions
    .map(({ id }) => NAMES.get(id) ?? id)
    .sort()
    .join(' ')

const FOUND: readonly [query: string, found: string][] = [
  ['Observation?subject:Patient.name=simpson', 'first second'],
  ['Observation?subject.name=simpson', 'first fourth second'],
  ['Observation?subject._type=Location', 'fourth'],
  ['Observation?subject._type=Patient,Location', 'first fourth second third'],
  ['Observation?patient._type=Group', ''],
  ['Observation?patient.organization._type=Organization', 'first second third'],
  ['Patient?_has:Observation:patient:_type=Observation', 'homer marge'],
  ['Patient?_has:Observation:patient:_type=Group', ''],
  ['Observation?patient.name=simpson', 'first second'],
  ['Observation?patient.name=simpson&code=a', 'first'],
  ['Observation?patient.name=simpson&_sort=-date', 'first second'],
  ['Observation?patient.gender=female', 'third'],
  ['Observation?patient.gender:not=female', 'first second'],
  ['Observation?patient.birthdate=lt1960', 'first second'],
  ['Observation?patient.name:exact=Homer', 'first second'],
  ['Observation?patient.name:exact=homer', ''],
  [`Observation?patient._id=${homer.id}`, 'first second'],
  [`Observation?subject:Patient._id=${marge.id},x`, 'third'],
  ['Observation?patient.organization.name=ward', 'first second'],
  ['Observation?patient.organization.partof.name=clinic', 'first second'],
  ['Observation?patient.name=nobody', ''],
  ['Observation?encounter.service-provider.name=ward', 'first'],
  ['Patient?organization.name=clinic', 'marge'],
  ['QuestionnaireResponse?questionnaire.title=intake', 'answers plain'],
  ['QuestionnaireResponse?questionnaire:Questionnaire.title=other', ''],
  ['Patient?_has:Observation:patient:code=a', 'homer marge'],
  ['Patient?_has:Observation:patient:code=l|b', 'homer'],
  ['Patient?_has:Observation:subject:code=b,a', 'homer marge'],
  ['Location?_has:Observation:subject:code=a', 'hall'],
  ['Patient?_has:Observation:patient:code=zzz', ''],
  ['Patient?_has:Observation:patient:_has:Provenance:target:agent.name=clinic', 'homer'],
  ['Patient?_has:Observation:patient:encounter.service-provider.name=ward', 'homer'],
  ['Organization?_has:Patient:organization:_has:Observation:patient:code=b', 'ward'],
  ['Organization?_has:Patient:organization:gender:not=male', 'clinic'],
  ['Observation?patient._has:Encounter:patient:status=finished', 'first second'],
  ['Questionnaire?_has:QuestionnaireResponse:questionnaire:status=completed', 'form'],
  ['Questionnaire?_has:QuestionnaireResponse:questionnaire:status=stopped', ''],
  [`Patient?_list=${list.id}`, 'marge'],
  [`Observation?_list=${list.id}`, 'second'],
  [`Observation?_list=List/${list.id}`, 'second'],
  ['Observation?_list=nope', ''],
  [`Observation?_compartment=Patient/${homer.id}`, 'first second'],
  [`Observation?_compartment=${homer.id}`, 'first second'],
  [`Observation?_compartment=Encounter/${visit.id}`, 'first'],
  ['Patient?_filter=name eq "Simpson"', 'homer'],
  ['Patient?_filter=name eq "simpson"', ''],
  ['Patient?_filter=name sw sim or given sw mar', 'homer marge'],
  ['Patient?_filter=family ew son', 'homer'],
  ['Patient?_filter=family co "ouv"', 'marge'],
  ['Patient?_filter=name ne "Simpson"', 'marge'],
  ['Observation?_filter=code eq "l|mm[Hg]"', 'bracketed'],
  ['Observation?_filter=code eq l|mm[Hg] and status eq final', 'bracketed'],
  ['Patient?_filter=not (name sw sim)', 'marge'],
  ['Patient?_filter=gender eq male and birthdate ge 1956', 'homer'],
  ["Patient?_filter=gender ne 'male'", 'marge'],
  ['Patient?_filter=birthdate pr true', 'homer'],
  ['Patient?_filter=birthdate pr false', 'marge'],
  ['Patient?_filter=birthdate po 1956', 'homer'],
  ['Patient?_filter=gender eq male or gender eq female and birthdate pr false', 'marge'],
  ['Patient?_filter=gender eq male or (gender eq female and birthdate pr false)', 'homer marge'],
  ['Observation?_filter=patient.name sw simp and code eq l|b', 'second'],
  ['Observation?_filter=patient.birthdate lt 1960', 'first second'],
  [`Observation?_filter=subject re Patient/${marge.id}`, 'third'],
]

t.test('finds matches by chains, _has, _list and _filter', async (t) => {
  for (const [query, found] of FOUND) {
    t.equal(names((await find(query)).versions), found, query)
    const { total } = await find(`${query}&_count=0&_total=accurate`)
    t.equal(total, found === '' ? 0 : found.split(' ').length, `total of ${query}`)
  }
})

t.test('runs a search with joins as one statement', async (t) => {
  for (const [query] of FOUND) {
    // A failed attempt with few keys is not repeated for a while.
    await find(query)
    t.equal(await countStatements(database, () => find(query)), 1, query)
  }
})

t.test('joins only through types that the caller may search', async (t) => {
  const limited = {
    ...member,
    rules: allowing({
      Observation: ['read', 'search'],
      Patient: ['read'],
      Organization: ['read', 'search'],
    }),
  }
  for (const [query, found] of [
    ['Observation?code=b', 'second'],
    ['Observation?patient.name=simpson', ''],
    ['Observation?patient.organization.name=ward', ''],
    ['Organization?_has:Patient:organization:gender=male', ''],
    [`Observation?_list=${list.id}`, ''],
    ['Observation?_filter=patient.name sw simp', ''],
  ] as const) {
    t.equal(names((await find(query, limited)).versions), found, query)
  }
  t.same((await find('Observation?patient.name=simpson', stranger)).versions, [])
})

t.test('joins the registry within itself and not with a Project', async (t) => {
  const admin = { ...member, isProjectAdmin: true }
  t.same((await find('ProjectMembership?user:User.email=x', admin)).versions, [])
  t.equal(await failureStatus(find('ProjectMembership?profile:Patient.name=x', admin)), 400)
  t.equal(await failureStatus(find('Patient?_has:ProjectMembership:profile:user=x', admin)), 400)
})

const INCLUDED: readonly [query: string, included: string][] = [
  ['Observation?code=b&_include=Observation:subject', 'homer'],
  ['Observation?code=b&_include=Observation:subject:Group', ''],
  ['Observation?code=a&_include=Observation:subject:Location', 'hall'],
  ['Observation?code=a&_include=Observation:subject', 'hall homer marge'],
  ['Observation?code=b&_include=Observation:*', 'homer'],
  ['Observation?code=a&_include=*', 'hall homer marge visit'],
  ['Observation?code=b&_include=Patient:organization', ''],
  ['Observation?code=b&_include=Observation:patient&_include=Patient:organization', 'homer'],
  [
    'Observation?code=b&_include=Observation:patient&_include:iterate=Patient:organization',
    'homer ward',
  ],
  [
    'Observation?code=b&_include=Observation:patient&_include:recurse=Patient:organization&_include:iterate=Organization:partof',
    'clinic homer ward',
  ],
  ['Patient?gender=male&_revinclude=Observation:subject', 'first second'],
  ['Patient?gender=male&_revinclude=Observation:subject:Group', ''],
  ['Patient?gender=male&_revinclude=Observation:*', 'first second'],
  ['Patient?gender=male&_revinclude=*', 'answers first second visit'],
  [
    'Patient?gender=male&_revinclude=Observation:subject&_revinclude:iterate=Provenance:target',
    'event first second',
  ],
  [
    'Patient?gender=male&_revinclude=Observation:subject&_include=Patient:organization',
    'first second ward',
  ],
  ['QuestionnaireResponse?status=completed&_include=QuestionnaireResponse:questionnaire', 'form'],
  ['QuestionnaireResponse?_include=QuestionnaireResponse:*', 'form homer'],
  ['Questionnaire?_revinclude=QuestionnaireResponse:questionnaire', 'answers plain'],
  ['Organization?name=ward,clinic&_include=Organization:partof', ''],
]

t.test('includes targets and sources of the references of a page', async (t) => {
  for (const [query, expected] of INCLUDED) {
    const { included, isTruncated } = await find(query)
    t.equal(names(included), expected, query)
    t.notOk(isTruncated)
  }
})

t.test('includes the referenced version if the caller may read it', async (t) => {
  const changed = await create({ resourceType: 'Organization', name: 'Before' })
  const { id } = changed
  await repository.update(member, { resourceType: 'Organization', id, name: 'After' })
  const [old, both] = await Promise.all(
    [
      [{ reference: `Organization/${id}/_history/1` }],
      [to('Organization', changed), { reference: `Organization/${id}/_history/1` }],
    ].map((generalPractitioner) => create({ resourceType: 'Patient', generalPractitioner })),
  )
  const shown = async (patient: { id: string } | undefined, principal = member) => {
    const query = `Patient?_id=${patient?.id}&_include=Patient:general-practitioner`
    return (await find(query, principal)).included.map(
      ({ content }) => JSON.parse(content ?? '').name,
    )
  }
  t.same(await shown(old), ['Before'])
  t.same(await shown(both), ['After'])
  const rules = allowing({ Patient: ['search', 'read'], Organization: ['read'] })
  t.same(await shown(old, { ...member, rules }), ['After'])
})

t.test('runs each step of includes as one statement', async (t) => {
  const cost = (query: string) => countStatements(database, () => find(query))
  t.equal(await cost('Observation?code=b&_include=Observation:subject'), 2)
  t.equal(await cost('Observation?code=b&_include=*&_revinclude=*'), 2)
  t.equal(await cost('Observation?code=zzz&_include=*&_revinclude=*'), 1)
  t.equal(await cost('Observation?code=b&_include:iterate=Observation:subject'), 2)
  t.equal(
    await cost(
      'Observation?code=b&_include=Observation:subject&_include:iterate=Patient:organization',
    ),
    3,
  )
})

t.test('includes only readable resources, and only searchable ones from outside', async (t) => {
  const rules = allowing({
    Observation: ['read', 'search'],
    Patient: ['read'],
    Encounter: ['search'],
    Provenance: ['read'],
  })
  const limited = { ...member, rules }
  const { included } = await find('Observation?code=a&_include=*&_revinclude=*', limited)
  t.equal(names(included), 'homer marge')
  t.same((await find('Observation?_include=*&_revinclude=*', stranger)).included, [])
})

t.test('neither includes nor joins a Binary', async (t) => {
  const binary = await create({ resourceType: 'Binary', contentType: 'text/plain', data: 'eA==' })
  const recorded = '2025-01-01T00:00:00Z'
  const agent = [{ who: to('Organization', ward) }]
  await create({ resourceType: 'Provenance', target: [to('Binary', binary)], recorded, agent })
  const query = 'Provenance?agent.name=ward'
  const { versions, included } = await find(`${query}&_include=*`)
  t.equal(versions.length, 1)
  t.equal(names(included), 'ward')
  t.same((await find(`${query}&target:Binary._lastUpdated=gt2000`)).versions, [])
})
