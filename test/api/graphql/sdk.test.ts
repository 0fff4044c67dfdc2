/** GraphQL by Medplum's SDK: queries and definitions. */
import { readFileSync } from 'node:fs'
import {
  getDataType,
  getSearchParameters,
  type InternalTypeSchema,
  isDataTypeLoaded,
  isProfileLoaded,
  parseStructureDefinition,
} from '@medplum/core'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { openSdk } from '../../fixtures/sdk.ts'

const botica = await openBotica(t)
const sdk = await openSdk(botica)

const published: readonly Raw[] = readFileSync(
  new URL('../../data/definitions.ndjson', import.meta.url),
  'utf8',
)
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line))

/** Returns the elements of a definition that the SDK uses. */
function toShape({ elements, innerTypes }: InternalTypeSchema): unknown {
  const shapes = Object.entries(elements).map(([name, { min, max, isArray, type }]) => [
    name,
    { min, max, isArray, types: type.map(({ code }) => code) },
  ])
  return [
    Object.fromEntries(shapes),
    (innerTypes ?? []).map((inner) => [inner.name, toShape(inner)]),
  ]
}

for (const type of ['Patient', 'Observation', 'Questionnaire', 'Bot', 'ProjectMembership']) {
  t.test(`returns the definition and search parameters of ${type} to the SDK`, async (t) => {
    await sdk.requestSchema(type as 'Patient')
    t.ok(isDataTypeLoaded(type))
    const expected = parseStructureDefinition(published.find(({ name }) => name === type))
    t.same(toShape(getDataType(type)), toShape(expected))
    t.ok(Object.keys(getSearchParameters(type) ?? {}).length > 3)
  })
}

const PROFILE = 'http://hl7.org/fhir/StructureDefinition/'

t.test('finds a definition by url as REST does', async (t) => {
  for (const name of ['Patient', 'bmi', 'patient-birthTime', 'none']) {
    const { entry = [] } = await sdk.search('StructureDefinition', { url: PROFILE + name })
    const { data } = await sdk.graphql(
      `{ StructureDefinitionList(url: "${PROFILE}${name}") { url kind type derivation } }`,
    )
    const found = entry.map(({ resource: { url, kind, type, derivation } = {} as Raw }) => ({
      url,
      kind,
      type,
      derivation,
    }))
    t.equal(found.length, name === 'none' ? 0 : 1)
    t.same(data.StructureDefinitionList, found)
  }
})

t.test('loads profiles of the standard for the SDK', async (t) => {
  for (const options of [undefined, { expandProfile: true }]) {
    await sdk.requestProfileSchema(`${PROFILE}bmi`, options)
    t.ok(isProfileLoaded(`${PROFILE}bmi`))
  }
})
