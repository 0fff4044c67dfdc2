import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const KINDS = 'http://example.org/kinds'
const ROLES = 'http://terminology.hl7.org/CodeSystem/v3-RoleCode'

/** Code → its parent. */
const TREE: Readonly<Record<string, string | undefined>> = {
  animal: undefined,
  bird: 'animal',
  owl: 'bird',
  tawny: 'owl',
  fish: 'animal',
  plant: undefined,
}

const concepts = (parent: string | undefined): object[] =>
  Object.keys(TREE)
    .filter((code) => TREE[code] === parent)
    .map((code) => {
      const below = concepts(code)
      return { code, ...(below.length === 0 ? {} : { concept: below }) }
    })

function ancestorLine(code: string | undefined): string[] {
  return code === undefined ? [] : [code, ...ancestorLine(TREE[code])]
}

await admin.create({
  resourceType: 'CodeSystem',
  url: KINDS,
  status: 'active',
  content: 'complete',
  hierarchyMeaning: 'is-a',
  concept: concepts(undefined),
} as Resource)

function aValueSet(name: string, include: object, changes: object = {}): Promise<Resource> {
  return admin.create({
    resourceType: 'ValueSet',
    url: `http://example.org/vs/${name}`,
    status: 'active',
    compose: { include: [include] },
    ...changes,
  } as Resource)
}

const birds = await aValueSet('birds', {
  system: KINDS,
  filter: [{ property: 'concept', op: 'is-a', value: 'bird' }],
})
await aValueSet('few', { system: KINDS, concept: [{ code: 'fish' }, { code: 'plant' }] })
await aValueSet('both', { valueSet: [birds.url] })
await aValueSet('sexes', {
  system: 'http://hl7.org/fhir/administrative-gender',
  concept: [{ code: 'male' }],
})
const many = Array.from({ length: 10_001 }, (_, i) => ({ code: `c${i}` }))
await aValueSet('at', {
  system: 'urn:many',
  concept: many.slice(1),
})
await aValueSet('over', { system: 'urn:many', concept: many })

const patient = await admin.create(aPatient({ gender: 'male' }))
const subject = { reference: `Patient/${patient.id}` }
const observations: { id: string; code: string; system: string }[] = []
for (const [system, code] of [
  ...Object.keys(TREE).map((code) => [KINDS, code]),
  ['urn:other', 'owl'],
  ['urn:many', 'c5000'],
] as [string, string][]) {
  const { id } = await admin.create(
    anObservation(subject.reference, { code: { coding: [{ system, code }] } }),
  )
  observations.push({ id, code, system })
}

async function ids(query: string): Promise<string[]> {
  const { status, body } = await admin.get<Raw>(`${query}&_count=100`)
  if (status !== 200) throw new Error(`${query}: ${JSON.stringify(body)}`)
  return (body.entry ?? []).map((entry: Raw) => entry.resource.id).sort()
}

/** Returns the ids of the observations with the code. */
function expected(test: (code: string) => boolean): string[] {
  const found = observations.filter(({ system, code }) => system === KINDS && test(code))
  return found.map(({ id }) => id).sort()
}

const isBelow = (root: string) => (code: string) => ancestorLine(code).includes(root)
const rest = (inside: string[]) =>
  observations
    .map(({ id }) => id)
    .filter((id) => !inside.includes(id))
    .sort()

t.test('finds codes below and above another in its CodeSystem', async (t) => {
  for (const root of Object.keys(TREE)) {
    t.same(await ids(`Observation?code:below=${KINDS}|${root}`), expected(isBelow(root)), root)
    const above = expected((code) => ancestorLine(root).includes(code))
    t.same(await ids(`Observation?code:above=${KINDS}|${root}`), above, root)
  }
  const both = expected((code) => isBelow('fish')(code) || isBelow('owl')(code))
  t.same(await ids(`Observation?code:below=${KINDS}|fish,${KINDS}|owl`), both)
})

t.test('uses the hierarchy of standard CodeSystems', async (t) => {
  const related = async (code: string) => {
    const relationship = [{ coding: [{ system: ROLES, code }] }]
    const made = await admin.create({
      resourceType: 'RelatedPerson',
      patient: subject,
      relationship,
    })
    return made.id
  }
  const mother = await related('NMTH')
  const friend = await related('FRND')
  t.same(await ids(`RelatedPerson?relationship:below=${ROLES}|PRN`), [mother])
  t.same(await ids(`RelatedPerson?relationship:above=${ROLES}|FRND`), [friend])
})

t.test('finds codes by :in and :not-in a ValueSet', async (t) => {
  const inside = expected(isBelow('bird'))
  for (const name of [
    'http://example.org/vs/birds',
    `ValueSet/${birds.id}`,
    'http://example.org/vs/both',
  ]) {
    t.same(await ids(`Observation?code:in=${name}`), inside, name)
    t.same(await ids(`Observation?code:not-in=${name}`), rest(inside), name)
  }
  t.same(
    await ids('Observation?code:in=http://example.org/vs/birds,http://example.org/vs/few'),
    expected((code) => code === 'fish' || code === 'plant' || isBelow('bird')(code)),
  )
  t.same(await ids('Patient?gender:in=http://example.org/vs/sexes'), [patient.id])
  t.same(await ids('Patient?_has:Observation:patient:code:in=http://example.org/vs/birds'), [
    patient.id,
  ])
  t.same(await ids('Observation?patient.gender:not-in=http://example.org/vs/sexes'), [])
  const filter = encodeURIComponent('code in http://example.org/vs/birds')
  t.same(await ids(`Observation?_filter=${filter}`), inside)
  const below = encodeURIComponent(`not (code ss ${KINDS}|bird)`)
  t.same(await ids(`Observation?_filter=${below}`), rest(inside))
})

t.test('accepts ValueSets of up to ten thousand codes', async (t) => {
  const found = observations.find(({ code }) => code === 'c5000')
  t.same(await ids('Observation?code:in=http://example.org/vs/at'), [found?.id])
  t.same(await ids('Observation?code:not-in=http://example.org/vs/at'), rest([found?.id ?? '']))
  t.match(await admin.get('Observation?code:in=http://example.org/vs/over'), {
    status: 400,
    body: { issue: [{ code: 'too-costly', expression: ['code:in'] }] },
  })
})

t.test('rejects unknown canonicals by name', async (t) => {
  const REFUSED: [string, RegExp][] = [
    ['code:in=http://example.org/vs/none', /ValueSet http:.* is not known/],
    ['code:in=ValueSet/none', /ValueSet\/none is not known/],
    ['code:below=urn:none|x', /CodeSystem urn:none is not known/],
    ['code:below=x', /needs system\|code/],
    [`code:above=${KINDS}|`, /needs system\|code/],
  ]
  for (const [query, text] of REFUSED) {
    const { status, body } = await admin.get<Raw>(`Observation?${query}`)
    t.equal(status, 400, query)
    t.match(body.issue, [{ details: { text }, expression: [query.split('=')[0]] }], query)
  }
  const stranger = await botica.createTenant()
  t.equal((await stranger.admin.get(`Observation?code:in=${birds.url}`)).status, 400)
  const own = await stranger.admin.get(`Observation?code:below=${KINDS}|bird`)
  t.equal(own.status, 400)
})

t.test('finds canonical references by the beginning of their version', async (t) => {
  const made = async (version: string) => {
    const response = { resourceType: 'QuestionnaireResponse', status: 'completed' }
    const questionnaire = `http://example.org/q${version}`
    return (await admin.create({ ...response, questionnaire } as Resource)).id
  }
  const [one, deep, ten, bare] = [
    await made('|1'),
    await made('|1.2.3'),
    await made('|10'),
    await made(''),
  ]
  const q = 'QuestionnaireResponse?questionnaire'
  t.same(await ids(`${q}:below=http://example.org/q|1`), [one, deep].sort())
  t.same(await ids(`${q}:below=http://example.org/q|1.2`), [deep])
  t.same(await ids(`${q}:above=http://example.org/q|1.2.3`), [one, deep].sort())
  t.same(await ids(`${q}=http://example.org/q`), [one, deep, ten, bare].sort())
})
