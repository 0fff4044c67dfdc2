import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Stored } from '../../../fixtures/oracle/oracle.ts'
import { idsFound, loadStage } from '../../../fixtures/oracle/stage.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'
import { included, joinedMatches, reverseIncluded } from './joins.ts'

const botica = await openBotica(t)
const { admin } = botica
const all = [...(await loadStage(botica))]
const add = async (json: Raw) => {
  const made: Raw = await admin.create(json)
  all.push({ type: made.resourceType, id: made.id, json: made })
  return made.id as string
}
const patients = all.filter(({ type }) => type === 'Patient')
const [first, second] = patients.map(({ id }) => id)
const parent = await add({ resourceType: 'Organization', name: 'Parent house' })
const child = await add({
  resourceType: 'Organization',
  name: 'Child ward',
  partOf: { reference: `Organization/${parent}` },
})
const member = await add({
  resourceType: 'Patient',
  name: [{ family: 'Chained', given: ['Ann'] }],
  managingOrganization: { reference: `Organization/${child}` },
  link: [{ other: { reference: `Patient/${first}` }, type: 'refer' }],
})
for (const code of ['x', 'y']) {
  await add({
    resourceType: 'Observation',
    status: 'final',
    code: { coding: [{ system: 'urn:chain', code }] },
    subject: { reference: `Patient/${member}` },
  })
}
await add({
  resourceType: 'Questionnaire',
  status: 'active',
  url: 'http://example.org/q',
  version: '1',
  title: 'Quality of sleep',
})
const family = encodeURIComponent(patients[0]?.json.name[0].family)

const JOINS = `
Observation?patient.name=${family}
Observation?subject:Patient.family=${family}
Observation?subject.name=chained
Observation?subject:Patient.organization.name=child
Observation?subject:Patient.organization.partof.name=parent
Observation?patient.gender=female&category=laboratory
Observation?patient.birthdate=lt1980
Observation?patient._id=${first},${second}
Observation?patient.gender:not=male&code=8302-2
Observation?patient.identifier:missing=true
!Observation?subject:Group.type=person
Encounter?patient.name=${family}&status=finished
Encounter?service-provider.name:contains=hospital
Encounter?participant:Practitioner.gender=female
Encounter?service-provider.address-state=MA&_count=7
DiagnosticReport?result.code=2093-3
DiagnosticReport?encounter.class=AMB
MedicationRequest?requester:Practitioner.family:missing=false
ExplanationOfBenefit?claim.priority=normal
Claim?encounter.date=ge2010
!Claim?patient.link:Patient.name=${family}
Patient?link:Patient.name=${family}
Patient?organization.partof.name=parent
Patient?organization:missing=false&organization.name=child
QuestionnaireResponse?questionnaire.title=quality
QuestionnaireResponse?questionnaire:Questionnaire.status=active
Task?subject:Patient.family=${family}
Patient?_has:Observation:patient:code=8302-2
Patient?_has:Observation:patient:code=urn:chain|x
Patient?_has:Observation:subject:value-quantity=gt190
Patient?_has:Observation:patient:code=urn:chain|x&_has:Observation:patient:code=urn:chain|y
Patient?_has:Encounter:patient:class=VR
Patient?_has:Immunization:patient:vaccine-code=140&gender=female
Patient?_has:Encounter:subject:_has:Observation:encounter:code=8302-2
Patient?_has:Patient:link:name=chained
Encounter?_has:Observation:encounter:category=laboratory
Encounter?_has:Condition:encounter:clinical-status=active
Organization?_has:Organization:partof:_has:Patient:organization:name=chained
Organization?_has:Encounter:service-provider:status=finished
Organization?_has:Encounter:service-provider:date=ge2015&address-state=MA
Practitioner?_has:Encounter:practitioner:class=AMB
Observation?_has:DiagnosticReport:result:status=final
Claim?_has:ExplanationOfBenefit:claim:status=active
Questionnaire?_has:QuestionnaireResponse:questionnaire:status=completed
!Patient?_has:Observation:patient:code=no-such-code`

t.test('finds the matches of the raw JSON by chains and _has', async (t) => {
  for (const line of JOINS.trim().split('\n')) {
    const query = line.replace(/^!/, '')
    const expected = joinedMatches(all, query.replace(/&_count=\d+/, '')).map(({ id }) => id)
    t.equal(expected.length > 0, !line.startsWith('!'), `${query} asks something`)
    const count = query.includes('_count') ? '' : '&_count=200'
    const found = await idsFound(admin, query + count)
    t.same(found.toSorted(), expected.toSorted(), `${query} (${expected.length})`)
  }
})

/** Query and includes; each include applies to the matches only. */
const INCLUDES: readonly (readonly [query: string, ...includes: string[]])[] = [
  ['Encounter?status=finished', '_include=Encounter:service-provider'],
  ['Encounter?status=finished', '_include=Encounter:patient', '_include=Encounter:practitioner'],
  ['Observation?code=8302-2', '_include=Observation:subject:Patient'],
  ['Observation?code=8302-2', '_include=Observation:encounter:Patient'],
  ['DiagnosticReport?status=final', '_include=DiagnosticReport:result'],
  ['QuestionnaireResponse?status=completed', '_include=QuestionnaireResponse:questionnaire'],
  ['Patient?name=chained', '_include=Patient:link', '_include=Patient:organization'],
  [`Patient?_id=${first}`, '_revinclude=Encounter:patient'],
  [`Patient?_id=${first}`, '_revinclude=Observation:subject', '_revinclude=Claim:patient'],
  ['Patient?name=chained', '_revinclude=Observation:patient', '_include=Patient:organization'],
  ['Organization?name=parent', '_revinclude=Organization:partof'],
  ['Encounter?status=planned', '_revinclude=Observation:encounter'],
]

async function findEntries(query: string): Promise<{ match: string[]; include: string[] }> {
  const { body, text, status } = await admin.get<Raw>(`${query}&_count=200`)
  if (status !== 200) throw new Error(`${query} answered ${status}: ${text}`)
  const of = (mode: string): string[] =>
    (body.entry ?? []).flatMap(({ search, resource }: Raw) =>
      search.mode === mode ? [`${resource.resourceType}/${resource.id}`] : [],
    )
  return { match: of('match'), include: of('include') }
}

const names = (list: readonly Stored[]) => list.map(({ type, id }) => `${type}/${id}`).sort()

t.test('includes targets and sources of the matches once each', async (t) => {
  for (const [query, ...includes] of INCLUDES) {
    const matches = joinedMatches(all, query)
    const expected = includes.flatMap((include) => {
      const [kind, value = ''] = include.split('=')
      const follow = kind === '_include' ? included : reverseIncluded
      return follow(all, matches, value)
    })
    const whole = `${query}&${includes.join('&')}`
    const found = await findEntries(whole)
    t.same(found.match.sort(), names(matches), whole)
    t.same(found.include.sort(), [...new Set(names(expected))], `${whole} (${expected.length})`)
  }
})

t.test('repeats _include:iterate until nothing is new', async (t) => {
  const start = joinedMatches(all, 'Observation?code=urn:chain|x')
  const toPatients = included(all, start, 'Observation:patient')
  const toOrganizations = included(all, toPatients, 'Patient:organization')
  const toParents = included(all, toOrganizations, 'Organization:partof')
  const found = await findEntries(
    'Observation?code=urn:chain|x&_include=Observation:patient' +
      '&_include:iterate=Patient:organization&_include:iterate=Organization:partof',
  )
  t.same(found.include.sort(), names([...toPatients, ...toOrganizations, ...toParents]))
})

t.test('finds resources that refer to the patient in its compartment', async (t) => {
  for (const id of [first, second, member]) {
    for (const [type, code] of [
      ['Observation', 'subject'],
      ['Encounter', 'patient'],
      ['Claim', 'patient'],
      ['Immunization', 'patient'],
    ]) {
      const expected = joinedMatches(all, `${type}?${code}=Patient/${id}`).map((one) => one.id)
      const found = await idsFound(admin, `Patient/${id}/${type}?_count=50`)
      t.same(found.sort(), expected.sort(), `Patient/${id}/${type}`)
    }
  }
})

const FILTERS: readonly (readonly [filter: string, query: string])[] = [
  [
    'Patient?_filter=gender eq "female" and birthdate lt 1980',
    'Patient?gender=female&birthdate=lt1980',
  ],
  ['Patient?_filter=name sw "mc"', 'Patient?name=mc'],
  ['Patient?_filter=name co "don"', 'Patient?name:contains=don'],
  ['Patient?_filter=gender pr false', 'Patient?gender:missing=true'],
  ['Patient?_filter=not (gender eq male)', 'Patient?gender:not=male'],
  [
    'Observation?_filter=code eq http://loinc.org|8302-2',
    'Observation?code=http://loinc.org|8302-2',
  ],
  ['Observation?_filter=value-quantity gt 190', 'Observation?value-quantity=gt190'],
  ['Observation?_filter=date ge 2015 and status eq final', 'Observation?date=ge2015&status=final'],
  ['Observation?_filter=patient.name sw chained', 'Observation?patient.name=chained'],
  ['Encounter?_filter=class eq AMB or status eq planned', ''],
]

t.test('finds the same matches by _filter as by parameters', async (t) => {
  for (const [filter, query] of FILTERS) {
    const found = await idsFound(admin, `${encodeURI(filter)}&_count=200`)
    const expected =
      query === ''
        ? [
            ...joinedMatches(all, 'Encounter?class=AMB'),
            ...joinedMatches(all, 'Encounter?class:not=AMB&status=planned'),
          ]
        : joinedMatches(all, query)
    t.ok(expected.length > 0, filter)
    t.same(found.sort(), expected.map(({ id }) => id).sort(), filter)
  }
})
