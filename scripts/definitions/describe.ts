/** Converts StructureDefinitions, SearchParameters and CompartmentDefinitions to compact lines. */

import type {
  CompartmentLine,
  Constraint,
  ElementDefinition,
  SearchLine,
  SearchParameter,
  ShortsLine,
  TypeDefinition,
} from '../../shared/fhir/definitions-data.ts'
import { partFor } from '../../shared/search/language/custom-parameters.ts'

export interface Definition {
  readonly resourceType: string
  readonly name: string
  readonly url: string
  readonly version?: string
  readonly title?: string
  readonly status?: string
  readonly context?: readonly object[]
  readonly kind: TypeDefinition['kind'] | 'logical'
  readonly abstract?: boolean
  readonly derivation?: string
  readonly type: string
  readonly baseDefinition?: string
  readonly snapshot?: { readonly element: readonly Snapshot[] }
  readonly differential?: { readonly element: readonly object[] }
  readonly code: string
  readonly base: readonly string[]
  readonly expression?: string
  readonly target?: readonly string[]
  readonly component?: readonly { readonly definition: string; readonly expression: string }[]
  readonly resource: readonly { readonly code: string; readonly param?: readonly string[] }[]
  readonly parameter?: readonly Parameter[]
}

export interface Parameter {
  readonly name: string
  readonly use: 'in' | 'out'
  readonly part?: readonly Parameter[]
}

interface Snapshot {
  readonly path: string
  readonly short?: string
  readonly min: number
  readonly max: string
  readonly type?: readonly {
    readonly code: string
    readonly profile?: readonly string[]
    readonly targetProfile?: readonly string[]
    readonly extension?: readonly { readonly url: string; readonly valueUrl?: string }[]
  }[]
  readonly contentReference?: string
  readonly binding?: { readonly strength: string; readonly valueSet?: string }
  readonly constraint?: readonly Constraint[]
  readonly isSummary?: boolean
  readonly isModifier?: boolean
}

/** Apply to every element, extension, reference or narrative; checked in code. */
const UNIVERSAL = new Set(['ele-1', 'ext-1', 'dom-3', 'ref-1', 'txt-1', 'txt-2'])
const PROFILE = 'http://hl7.org/fhir/StructureDefinition/'
/** R4 swaps the expressions of the two components of DocumentReference-relationship. */
const MISPRINTED: ReadonlyMap<string, string> = new Map([
  ['http://hl7.org/fhir/SearchParameter/DocumentReference-relatesto', 'target'],
  ['http://hl7.org/fhir/SearchParameter/DocumentReference-relation', 'code'],
])
/** More targets than this mean any resource. */
const ANY = 140

export function describeTypes(structures: readonly Definition[]): TypeDefinition[] {
  const types: TypeDefinition[] = []
  const own = constraintsOfProfiles(structures)
  for (const structure of structures) {
    if (structure.kind === 'logical' || structure.derivation === 'constraint') continue
    const [root, ...elements] = structure.snapshot?.element ?? []
    const constraints = describeConstraints(root)
    types.push({
      name: structure.name,
      kind: structure.kind,
      ...(structure.abstract ? { abstract: true } : {}),
      ...(structure.url.startsWith(PROFILE) ? {} : { platform: true }),
      ...(structure.baseDefinition ? { base: lastPart(structure.baseDefinition) } : {}),
      ...(constraints.length > 0 ? { constraints } : {}),
      elements: elements.map((element) => describeElement(structure.name, element, own)),
    })
  }
  return types.sort((a, b) => compare(a.name, b.name))
}

/** Returns short descriptions of the types of `describeTypes`. */
export function describeShorts(structures: readonly Definition[]): ShortsLine[] {
  return structures
    .filter(({ kind, derivation }) => kind !== 'logical' && derivation !== 'constraint')
    .map(({ name, snapshot }) => ({
      name,
      texts: Object.fromEntries(
        (snapshot?.element ?? []).flatMap(({ path, short }) =>
          short === undefined ? [] : [[pathBelow(name, path), short]],
        ),
      ),
    }))
    .sort((a, b) => compare(a.name, b.name))
}

/** Returns `value` for `Observation.value[x]`, and empty text for the type itself. */
function pathBelow(owner: string, path: string): string {
  return path.slice(owner.length + 1).replace(/\[x\]$/, '')
}

/** Returns the constraints of data type profiles, such as SimpleQuantity, by url. */
function constraintsOfProfiles(
  structures: readonly Definition[],
): ReadonlyMap<string, readonly Constraint[]> {
  const root = (structure: Definition | undefined) =>
    describeConstraints(structure?.snapshot?.element[0])
  const profiles = structures.filter(({ derivation }) => derivation === 'constraint')
  return new Map(
    profiles.map((profile) => {
      const base = root(structures.find(({ url }) => url === profile.baseDefinition))
      const isNew = ({ key }: Constraint) => base.every((constraint) => constraint.key !== key)
      return [profile.url, root(profile).filter(isNew)]
    }),
  )
}

function describeElement(
  owner: string,
  element: Snapshot,
  profiles: ReadonlyMap<string, readonly Constraint[]>,
): ElementDefinition {
  const path = element.path.slice(owner.length + 1)
  const named = (element.type ?? []).flatMap(({ profile = [] }) => profile)
  const constraints = [
    ...describeConstraints(element),
    ...named.flatMap((url) => profiles.get(url) ?? []),
  ]
  const types = (element.type ?? []).map((type) => {
    const fhirType = type.extension?.find((item) => item.url.endsWith('fhir-type'))?.valueUrl
    const code = type.code.startsWith('http') ? (fhirType ?? 'string') : type.code
    const targets = (type.targetProfile ?? []).map(lastPart).sort()
    const isOpen = targets.length === 0 || targets.includes('Resource')
    return isOpen ? { code } : { code, targets }
  })
  return {
    path: pathBelow(owner, element.path),
    ...(path.endsWith('[x]') ? { choice: true } : {}),
    ...(element.min > 0 ? { min: element.min } : {}),
    ...(element.max === '1' ? {} : { max: element.max }),
    types,
    ...(element.contentReference ? { content: element.contentReference.replace(/^.*#/, '') } : {}),
    ...(element.binding?.strength === 'required' && element.binding.valueSet
      ? { binding: element.binding.valueSet.replace(/\|.*$/, '') }
      : {}),
    ...(element.isSummary ? { summary: true } : {}),
    ...(element.isModifier ? { modifier: true } : {}),
    ...(constraints.length > 0 ? { constraints } : {}),
  }
}

function describeConstraints(element: Snapshot | undefined): Constraint[] {
  return (element?.constraint ?? [])
    .filter(({ key, expression }) => expression !== undefined && !UNIVERSAL.has(key))
    .map(({ key, severity, human, expression }) => ({ key, severity, human, expression }))
}

export function describeSearch(
  types: readonly TypeDefinition[],
  parameters: readonly Definition[],
  compartments: readonly Definition[],
): { compartments: CompartmentLine; types: SearchLine[] } {
  const known = new Map(types.map((type) => [type.name, type]))
  const typesByUrl = new Map(
    parameters.map((item) => [item.url, item.type as SearchParameter['type']]),
  )
  const lines = new Map<string, Map<string, SearchParameter>>()
  for (const parameter of parameters) {
    for (const base of parameter.base) {
      if (known.get(base)?.kind !== 'resource') throw new Error(`${parameter.url}: no type ${base}`)
      const line = lines.get(base) ?? new Map()
      lines.set(
        base,
        line.set(parameter.code, describeParameter(base, parameter, known, typesByUrl)),
      )
    }
  }
  const bases = [...lines.keys(), ...known.keys()].filter(
    (name) => known.get(name)?.kind === 'resource',
  )
  return {
    compartments: { name: 'compartments', compartments: describeCompartments(compartments) },
    types: [...new Set(bases)].sort(compare).map((name) => ({
      name,
      parameters: [...(lines.get(name)?.values() ?? [])].sort((a, b) => compare(a.code, b.code)),
    })),
  }
}

function describeParameter(
  base: string,
  parameter: Definition,
  known: ReadonlyMap<string, TypeDefinition>,
  typesByUrl: ReadonlyMap<string, SearchParameter['type']>,
): SearchParameter {
  const targets = (parameter.target ?? []).filter((name) => known.has(name)).sort()
  return {
    code: parameter.code,
    type: parameter.type as SearchParameter['type'],
    url: parameter.url,
    ...(parameter.expression ? { expression: ownPart(base, parameter.expression) } : {}),
    ...(targets.length > 0 && targets.length < ANY ? { targets } : {}),
    ...(parameter.component
      ? {
          components: parameter.component.map(({ definition, expression: given }) => {
            const expression = MISPRINTED.get(definition) ?? given
            // The components of ResearchStudy-progress-status-* name undefined parameters.
            const type = typesByUrl.get(definition) ?? (expression === 'period' ? 'date' : 'token')
            return { type, expression }
          }),
        }
      : {}),
  }
}

function ownPart(base: string, expression: string): string {
  const own = partFor(base, expression)
  if (own === undefined) throw new Error(`No part for ${base} in ${expression}`)
  return own
}

function describeCompartments(definitions: readonly Definition[]): CompartmentLine['compartments'] {
  const found: Record<string, Record<string, string[]>> = {}
  for (const definition of definitions) {
    const members = found[definition.code] ?? {}
    found[definition.code] = members
    for (const { code, param = [] } of definition.resource) {
      const merged = new Set([...(members[code] ?? []), ...param])
      if (merged.size > 0) members[code] = [...merged].sort(compare)
    }
  }
  return found
}

function lastPart(url: string): string {
  return url.slice(url.lastIndexOf('/') + 1)
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}
