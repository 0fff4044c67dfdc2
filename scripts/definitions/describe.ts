/** Converts StructureDefinitions and other conformance resources to compact lines, sorted by name. */
import type {
  CompartmentLine,
  Constraint,
  ElementDefinition,
  OperationLine,
  ProfileLine,
  SearchLine,
  SearchParameter,
  ShortsLine,
  SnapshotLine,
  TypeDefinition,
} from '../../shared/fhir/definitions-data.ts'
import { partFor } from '../../shared/search/language/custom-parameters.ts'

export interface StructureDefinition {
  readonly url: string
  readonly name: string
  readonly version?: string
  readonly kind: TypeDefinition['kind'] | 'logical'
  readonly type: string
  readonly abstract?: boolean
  readonly derivation?: string
  readonly baseDefinition?: string
  readonly snapshot?: { readonly element: readonly PublishedElement[] }
  readonly differential?: { readonly element: readonly PublishedElement[] }
  readonly [rest: string]: unknown
}

interface PublishedElement {
  readonly path: string
  readonly short?: string
  readonly min?: number
  readonly max?: string
  readonly type?: readonly {
    readonly code: string
    readonly profile?: readonly string[]
    readonly targetProfile?: readonly string[]
    readonly extension?: readonly { readonly url: string; readonly valueUrl?: string }[]
  }[]
  readonly contentReference?: string
  readonly binding?: { readonly strength: string; readonly valueSet?: string }
  readonly constraint?: readonly (Omit<Constraint, 'expression'> & Partial<Constraint>)[]
  readonly isSummary?: boolean
  readonly isModifier?: boolean
}

export interface PublishedParameter extends Pick<SearchParameter, 'code' | 'type' | 'url'> {
  readonly base: readonly string[]
  readonly expression?: string
  readonly target?: readonly string[]
  readonly component?: readonly { readonly definition: string; readonly expression: string }[]
}

export interface CompartmentDefinition {
  readonly code: string
  readonly resource: readonly { readonly code: string; readonly param?: readonly string[] }[]
}

export interface OperationDefinition {
  readonly code: string
  readonly resource?: readonly string[]
  readonly parameter?: readonly OperationParameter[]
}

interface OperationParameter {
  readonly name: string
  readonly use?: 'in' | 'out'
  readonly part?: readonly OperationParameter[]
}

/** Apply to every element, extension, reference or narrative; checked in code. */
const UNIVERSAL = new Set(['ele-1', 'ext-1', 'dom-3', 'ref-1', 'txt-1', 'txt-2'])
const STANDARD = 'http://hl7.org/fhir/StructureDefinition/'
/** R4 swaps the expressions of the two components of DocumentReference-relationship. */
const MISPRINTED: ReadonlyMap<string, string> = new Map([
  ['http://hl7.org/fhir/SearchParameter/DocumentReference-relatesto', 'target'],
  ['http://hl7.org/fhir/SearchParameter/DocumentReference-relation', 'code'],
])
/** More targets than this mean any resource. */
const ANY = 140

/** Members of a profile's elements that validation reads. */
const CHECKED =
  /^(id|path|sliceName|min|max|type|slicing|constraint|binding|fixed[A-Z].*|pattern[A-Z].*)$/
const PROSE =
  /^(definition|comment|requirements|mapping|alias|example|isModifierReason|meaningWhenMissing|orderMeaning)$/

const isProfile = ({ kind, derivation }: StructureDefinition) =>
  kind !== 'logical' && derivation === 'constraint'
const isType = ({ kind, derivation }: StructureDefinition) =>
  kind !== 'logical' && derivation !== 'constraint'

export function describeTypes(structures: readonly StructureDefinition[]): TypeDefinition[] {
  const own = constraintsOfProfiles(structures)
  const types = structures.flatMap((structure): TypeDefinition[] => {
    const { name, kind, url, baseDefinition, snapshot } = structure
    if (kind === 'logical' || isProfile(structure)) return []
    const [root, ...elements] = snapshot?.element ?? []
    const constraints = describeConstraints(root)
    return [
      {
        name,
        kind,
        ...(structure.abstract ? { abstract: true } : {}),
        ...(url.startsWith(STANDARD) ? {} : { platform: true }),
        ...(baseDefinition ? { base: lastPart(baseDefinition) } : {}),
        ...(constraints.length > 0 ? { constraints } : {}),
        elements: elements.map((element) => describeElement(name, element, own)),
      },
    ]
  })
  return sortBy(types, 'name')
}

/** Returns short descriptions of the types of `describeTypes`. */
export function describeShorts(structures: readonly StructureDefinition[]): ShortsLine[] {
  const lines = structures.filter(isType).map(({ name, snapshot }) => {
    const texts = (snapshot?.element ?? [])
      .filter(({ short }) => short !== undefined)
      .map(({ path, short = '' }) => [pathBelow(name, path), short])
    return { name, texts: Object.fromEntries(texts) }
  })
  return sortBy(lines, 'name')
}

/** Returns `value` for `Observation.value[x]`, and empty text for the type itself. */
function pathBelow(owner: string, path: string): string {
  return path.slice(owner.length + 1).replace(/\[x\]$/, '')
}

/** Returns the constraints of data type profiles, such as SimpleQuantity, by url. */
function constraintsOfProfiles(
  structures: readonly StructureDefinition[],
): ReadonlyMap<string, readonly Constraint[]> {
  const constraints = (structure: StructureDefinition | undefined) =>
    describeConstraints(structure?.snapshot?.element[0])
  return new Map(
    structures.filter(isProfile).map((profile) => {
      const base = constraints(structures.find(({ url }) => url === profile.baseDefinition))
      const isNew = ({ key }: Constraint) => base.every((constraint) => constraint.key !== key)
      return [profile.url, constraints(profile).filter(isNew)]
    }),
  )
}

function describeElement(
  owner: string,
  element: PublishedElement,
  profiles: ReadonlyMap<string, readonly Constraint[]>,
): ElementDefinition {
  const { path, min = 0, max, type = [], contentReference, binding } = element
  const named = type.flatMap(({ profile = [] }) => profile)
  const constraints = [
    ...describeConstraints(element),
    ...named.flatMap((url) => profiles.get(url) ?? []),
  ]
  const types = type.map(({ code, extension, targetProfile = [] }) => {
    const fhirType = extension?.find(({ url }) => url.endsWith('fhir-type'))?.valueUrl ?? 'string'
    const targets = targetProfile.map(lastPart).sort()
    const isOpen = targets.length === 0 || targets.includes('Resource')
    return { code: code.startsWith('http') ? fhirType : code, ...(isOpen ? {} : { targets }) }
  })
  return {
    path: pathBelow(owner, path),
    ...(path.endsWith('[x]') ? { choice: true } : {}),
    ...(min > 0 ? { min } : {}),
    ...(max === undefined || max === '1' ? {} : { max }),
    types,
    ...(contentReference ? { content: contentReference.replace(/^.*#/, '') } : {}),
    ...(binding?.strength === 'required' && binding.valueSet
      ? { binding: binding.valueSet.replace(/\|.*$/, '') }
      : {}),
    ...(element.isSummary ? { summary: true } : {}),
    ...(element.isModifier ? { modifier: true } : {}),
    ...(constraints.length > 0 ? { constraints } : {}),
  }
}

function describeConstraints(element: PublishedElement | undefined): Constraint[] {
  return (element?.constraint ?? []).flatMap(({ key, severity, human, expression }) =>
    expression === undefined || UNIVERSAL.has(key) ? [] : [{ key, severity, human, expression }],
  )
}

/** Throws when a parameter names an unknown resource type. */
export function describeSearch(
  types: readonly TypeDefinition[],
  parameters: readonly PublishedParameter[],
): SearchLine[] {
  const names = types.filter(({ kind }) => kind === 'resource').map(({ name }) => name)
  const known = new Set(types.map(({ name }) => name))
  const typesByUrl = new Map(parameters.map(({ url, type }) => [url, type]))
  const lines = new Map(names.map((name) => [name, new Map<string, SearchParameter>()]))
  for (const parameter of parameters) {
    for (const base of parameter.base) {
      const line = lines.get(base)
      if (line === undefined) throw new Error(`${parameter.url}: no type ${base}`)
      line.set(parameter.code, describeParameter(base, parameter, known, typesByUrl))
    }
  }
  const found = [...lines].map(([name, line]) => ({
    name,
    parameters: sortBy([...line.values()], 'code'),
  }))
  return sortBy(found, 'name')
}

function describeParameter(
  base: string,
  { code, type, url, expression, target = [], component }: PublishedParameter,
  known: ReadonlySet<string>,
  typesByUrl: ReadonlyMap<string, SearchParameter['type']>,
): SearchParameter {
  const targets = target.filter((name) => known.has(name)).sort()
  const own = expression ? partFor(base, expression) : undefined
  if (expression && own === undefined) throw new Error(`No part for ${base} in ${expression}`)
  const components = component?.map(({ definition, expression: given }) => {
    const expression = MISPRINTED.get(definition) ?? given
    // The components of ResearchStudy-progress-status-* name undefined parameters.
    const type = typesByUrl.get(definition) ?? (expression === 'period' ? 'date' : 'token')
    return { type, expression }
  })
  return {
    code,
    type,
    url,
    ...(own === undefined ? {} : { expression: own }),
    ...(targets.length > 0 && targets.length < ANY ? { targets } : {}),
    ...(components === undefined ? {} : { components }),
  }
}

export function describeCompartments(
  definitions: readonly CompartmentDefinition[],
): CompartmentLine {
  const compartments: Record<string, Record<string, string[]>> = {}
  for (const definition of definitions) {
    const members = compartments[definition.code] ?? {}
    compartments[definition.code] = members
    for (const { code, param = [] } of definition.resource) {
      const merged = new Set([...(members[code] ?? []), ...param])
      if (merged.size > 0) members[code] = [...merged].sort()
    }
  }
  return { name: 'compartments', compartments }
}

/** Returns the inputs of each operation, by type and code: `ValueSet/expand`. */
export function describeOperations(published: readonly OperationDefinition[]): OperationLine[] {
  const lines = published.flatMap(({ code, resource = [], parameter = [] }) => {
    const inputs = parameter.filter(({ use }) => use === 'in')
    const parameters = inputs.flatMap((one) => listParameterPaths(one))
    return resource.map((type) => ({ name: `${type}/${code}`, parameters }))
  })
  return sortBy(lines, 'name')
}

function listParameterPaths(
  { name, part = [] }: OperationParameter,
  above = '',
): readonly string[] {
  const path = `${above}${name}`
  return [path, ...part.flatMap((one) => listParameterPaths(one, `${path}.`))]
}

/** Returns profiles and extensions, reduced to the parts used by validation. */
export function describeProfiles(structures: readonly StructureDefinition[]): ProfileLine[] {
  const lines = structures.filter(isProfile).map((profile) => {
    const { url, type, baseDefinition, differential } = profile
    const element = (differential?.element ?? []).map(describeProfileElement)
    return { url, type, baseDefinition, differential: { element } }
  })
  return sortBy(lines, 'url')
}

function describeProfileElement(element: PublishedElement): object {
  const kept = Object.entries(element).filter(([name]) => CHECKED.test(name))
  const constraint = element.constraint
    ?.filter(({ severity }) => severity === 'error')
    .map(({ key, human, expression }) => ({ key, severity: 'error', human, expression }))
  return { ...Object.fromEntries(kept), ...(constraint && { constraint }) }
}

/** Returns profiles and extensions as clients read them, without prose. */
export function describeSnapshots(structures: readonly StructureDefinition[]): SnapshotLine[] {
  const lines = structures.filter(isProfile).map((profile) => {
    const { url, version, name, title, status, kind, abstract, context, type } = profile
    const { baseDefinition, derivation, snapshot } = profile
    const head = { url, version, name, title, status, kind, abstract, context, type }
    const element = (snapshot?.element ?? []).map((one) =>
      Object.fromEntries(Object.entries(one).filter(([member]) => !PROSE.test(member))),
    )
    return { ...head, baseDefinition, derivation, snapshot: { element } }
  })
  return sortBy(lines, 'url')
}

function lastPart(url: string): string {
  return url.slice(url.lastIndexOf('/') + 1)
}

function sortBy<Name extends string, T extends Readonly<Record<Name, string>>>(
  items: readonly T[],
  name: Name,
): T[] {
  return items.toSorted((a, b) => (a[name] < b[name] ? -1 : a[name] > b[name] ? 1 : 0))
}
