/** Imports the definitions, to copy standard parameters. */
import t from 'tap'
import { searchParameter } from '../../../shared/fhir/definitions.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { expectedIds, idsFound, loadStage } from '../../fixtures/oracle/stage.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica
const all = await loadStage(botica)
const READY_MS = 120_000

/** Standard parameters redefined under a Project's name must find the same matches. */
const QUERIES = `
Patient?gender=male
Patient?gender:not=male
Patient?family=mc
Patient?family:contains=a
Patient?address-city:exact=Boston
Patient?birthdate=ge1980
Patient?birthdate=lt1990-06
Patient?death-date:missing=false
Patient?identifier=http://hospital.smarthealthit.org|
Observation?code=http://loinc.org|8302-2
Observation?code:text=body
Observation?category=laboratory
Observation?date=2021
Observation?date=ge2020-05,lt2012
Observation?value-quantity=gt100
Observation?value-quantity=gt1.7|http://unitsofmeasure.org|m
Observation?code-value-quantity=8302-2$gt165
Observation?patient:missing=false
Condition?onset-date=gt2015
Condition?clinical-status=active
Condition?recorded-date:missing=true
Encounter?length=gt30
Encounter?date=2020
ValueSet?url:below=http://example.org/vs
Procedure?instantiates-uri:below=http://example.org/a`
  .trim()
  .split('\n')

const rename = (query: string) => query.replace('?', '?own-')

function parseParameter(query: string): [type: string, code: string] {
  const [, type = '', code = ''] = /^(\w+)\?([\w-]+)/.exec(query) ?? []
  return [type, code]
}

const wanted = new Map(
  QUERIES.map((query) => [parseParameter(query).join(' '), parseParameter(query)]),
)
for (const [type, code] of wanted.values()) {
  const standard = searchParameter(type, code)
  await admin.create({
    resourceType: 'SearchParameter',
    url: `http://example.org/SearchParameter/${type}-${code}`,
    name: 'Own',
    description: 'A standard parameter under another name',
    status: 'active',
    code: `own-${code}`,
    base: [type],
    type: standard?.type,
    expression: standard?.expression,
    ...(standard?.targets ? { target: standard.targets } : {}),
    ...(standard?.components
      ? {
          component: [
            ['clinical-code', 'code'],
            ['Observation-value-quantity', 'value.as(Quantity)'],
          ].map(([name, expression]) => ({
            definition: `http://hl7.org/fhir/SearchParameter/${name}`,
            expression,
          })),
        }
      : {}),
  } as Resource)
}

t.test('finds the matches of the raw JSON by parameters of a Project', async (t) => {
  const last = rename(QUERIES.at(-1) ?? '')
  await until(async () => (await admin.get(last)).status === 200, READY_MS)
  for (const query of QUERIES) {
    const expected = expectedIds(all, query)
    const own = rename(query)
    await until(async () => (await admin.get(`${own}&_count=1`)).status === 200, READY_MS)
    const found = await idsFound(admin, `${own}&_count=100`)
    t.ok(expected.length > 0, `${query} asks something`)
    t.same(found.sort(), expected, own)
  }
})

t.test('sorts by parameters of a Project as by standard ones', async (t) => {
  for (const [type, code] of [
    ['Patient', 'family'],
    ['Patient', 'gender'],
    ['Observation', 'value-quantity'],
    ['Condition', 'recorded-date'],
  ]) {
    for (const sign of ['', '-']) {
      const of = (name: string) => idsFound(admin, `${type}?_sort=${sign}${name},_id&_count=50`)
      t.same(await of(`own-${code}`), await of(code ?? ''), `${type} by ${sign}${code}`)
    }
  }
})
