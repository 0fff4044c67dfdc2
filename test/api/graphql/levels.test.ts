/** Imports the time slicer, to measure the turns of a large page. */
import t from 'tap'
import { TimeSlicer } from '../../../shared/core/yielding.ts'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { ask, countEventLoopTurns } from '../../fixtures/graphql.ts'
import { type Bundle, syntheaTexts } from '../../fixtures/resources.ts'

const { admin, services } = await openBotica(t)

interface Searchset {
  readonly entry?: readonly { readonly resource: Resource }[]
}

const findIds = async (path: string) => {
  const { body } = await admin.get<Searchset>(path)
  return (body.entry ?? []).map(({ resource }) => resource.id)
}

const LEVELS = `{ PatientList(_count: 120) { EncounterList(_reference: patient) { id
  ObservationList(_reference: encounter) { id performer { resource { __typename } } } } } }`

async function aFamily(count: number): Promise<void> {
  const practitioner = await admin.create({ resourceType: 'Practitioner' })
  const entry = Array.from({ length: count }, (_, i) => [
    posted(`urn:uuid:00000000-0000-4000-8000-${String(i).padStart(12, '0')}`, {
      resourceType: 'Patient',
    }),
    posted(`urn:uuid:00000000-0000-4000-9000-${String(i).padStart(12, '0')}`, {
      resourceType: 'Encounter',
      status: 'finished',
      class: { code: 'AMB' },
      subject: { reference: `urn:uuid:00000000-0000-4000-8000-${String(i).padStart(12, '0')}` },
    }),
    posted(undefined, {
      resourceType: 'Observation',
      status: 'final',
      code: { text: String(i) },
      encounter: { reference: `urn:uuid:00000000-0000-4000-9000-${String(i).padStart(12, '0')}` },
      performer: [{ reference: `Practitioner/${practitioner.id}` }],
    }),
  ]).flat()
  const { status } = await admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  t.equal(status, 200)
}

function posted(fullUrl: string | undefined, resource: Resource): object {
  return { fullUrl, resource, request: { method: 'POST', url: resource.resourceType } }
}

t.test('reads four levels with four statements, for one parent or a hundred', async (t) => {
  await aFamily(1)
  await ask(admin, LEVELS)
  const one = await statementsAsked(services, admin, () => ask(admin, LEVELS))
  t.equal(one, 4)
  await aFamily(100)
  let found = 0
  const many = await statementsAsked(services, admin, async () => {
    const { body } = await ask(admin, LEVELS)
    t.notOk(body.errors)
    for (const { EncounterList } of body.data.PatientList) {
      for (const { ObservationList } of EncounterList) {
        for (const { performer } of ObservationList) {
          t.equal(performer[0].resource.__typename, 'Practitioner')
          found++
        }
      }
    }
  })
  t.equal(found, 101)
  t.equal(many, 4)
})

t.test('reads ids and references of one level with one statement', async (t) => {
  const [first, second] = await findIds('Patient?_count=2')
  const query = `{ a: Patient(id: "${first}") { id } b: Patient(id: "${second}") { id }
    c: Patient(id: "${first}") { id } }`
  t.equal(await statementsAsked(services, admin, () => ask(admin, query)), 1)
})

t.test('fetches no rows for a count and counts only on request', async (t) => {
  const asked = (fields: string) =>
    statementsAsked(services, admin, () => ask(admin, `{ PatientConnection { ${fields} } }`))
  t.equal(await asked('count'), 1)
  t.equal(await asked('edges { resource { id } }'), 1)
  t.equal(await asked('count edges { resource { id } }'), 2)
  t.equal(await asked('pageSize'), 0)
})

t.test('yields to other requests during a large page', async (t) => {
  const { turns, result } = await countEventLoopTurns(() =>
    ask(admin, '{ ObservationList(_count: 1000) { id code { text } } }'),
  )
  const { body } = result
  t.equal(body.data.ObservationList.length, 101)
  t.ok(turns > 0)
  const working = new TimeSlicer()
  const paced = await countEventLoopTurns(async () => {
    for (let i = 0; i < 100; i++) await working.spendAndYield(101)
  })
  t.ok(paced.turns >= 5)
})

t.test('spreads waiting requests over several turns', async (t) => {
  const working = new TimeSlicer()
  const { turns } = await countEventLoopTurns(() =>
    Promise.all(
      Array.from({ length: 40 }, async () => {
        await working.spendAndYield(2_001)
        working.spend(2_001)
      }),
    ),
  )
  t.ok(turns >= 10)
})

t.test('finds the same Synthea records as REST', async (t) => {
  const [text = ''] = await syntheaTexts()
  const bundle: Bundle = JSON.parse(text)
  const { body: made } = await admin.post<{ entry: { response: { location: string } }[] }>(
    '',
    bundle,
  )
  const locations = made.entry.map(({ response }) => response.location)
  const patient = locations.find((location) => location.startsWith('Patient/'))?.split('/')[1]
  const types = ['Encounter', 'Observation', 'Condition', 'Procedure', 'Claim', 'Immunization']
  const arguments_ = [
    ['', ''],
    ['_count: 3', '_count=3'],
    ['_count: 3, _offset: 2', '_count=3&_offset=2'],
    ['_sort: "_lastUpdated"', '_sort=_lastUpdated'],
    ['_sort: "-_id"', '_sort=-_id'],
    ['_lastUpdated: "gt2100-01-01"', '_lastUpdated=gt2100-01-01'],
  ] as const
  for (const type of types) {
    for (const [given, rest] of arguments_) {
      const { body } = await ask(
        admin,
        `{ Patient(id: "${patient}") { ${type}List(_reference: patient, ${given}) { id } } }`,
      )
      const found = body.data.Patient[`${type}List`].map(({ id }: { id: string }) => id)
      t.same(found, await findIds(`${type}?patient=${patient}&${rest}`), `${type} ${rest}`)
    }
  }
  const sorted = await ask(
    admin,
    `{ Patient(id: "${patient}") { ObservationList(_reference: subject, _sort: "code,-date",
        category: "laboratory,vital-signs", _count: 7) { id }
      ObservationConnection(_reference: subject, _count: 4) { count next } } }`,
  )
  const { ObservationList, ObservationConnection } = sorted.body.data.Patient
  t.same(
    ObservationList.map(({ id }: { id: string }) => id),
    await findIds(
      `Observation?subject=Patient/${patient}&category=laboratory,vital-signs&_sort=code,-date&_count=7`,
    ),
  )
  const { body: counted } = await admin.get<{ total: number }>(
    `Observation?subject=Patient/${patient}&_summary=count`,
  )
  t.equal(ObservationConnection.count, counted.total)
  const second = await ask(
    admin,
    `query ($c: String) { Patient(id: "${patient}") {
        ObservationList(_reference: subject, _count: 4, _cursor: $c) { id } } }`,
    { c: ObservationConnection.next },
  )
  t.same(
    second.body.data.Patient.ObservationList.map(({ id }: { id: string }) => id),
    await findIds(`Observation?subject=Patient/${patient}&_count=4&_offset=4`),
  )
})
