/** Lists the codes of value sets that need only published CodeSystems. */
import type { ValueSetLine } from '../../shared/fhir/definitions-data.ts'

interface Concept {
  readonly code: string
  readonly concept?: readonly Concept[]
  readonly property?: readonly { readonly code: string; readonly valueCode?: string }[]
}

interface Include {
  readonly system?: string
  readonly concept?: readonly Concept[]
  readonly valueSet?: readonly string[]
  readonly filter?: readonly {
    readonly property: string
    readonly op: string
    readonly value: string
  }[]
}

interface Terminology {
  readonly resourceType: string
  readonly url?: string
  readonly content?: string
  readonly concept?: readonly Concept[]
  readonly compose?: { readonly include: readonly Include[]; readonly exclude?: readonly Include[] }
}

type Codes = Map<string, Set<string>>

/** `open`: value sets with a filter, system or import that cannot be listed. */
export function enumerateValueSets(
  urls: readonly string[],
  resources: readonly unknown[],
): { enumerated: ValueSetLine[]; open: string[] } {
  const valueSets = new Map<string, Terminology>()
  const codeSystems = new Map<string, Terminology>()
  for (const resource of resources as readonly Terminology[]) {
    if (resource.url === undefined) continue
    if (resource.resourceType === 'ValueSet') valueSets.set(resource.url, resource)
    if (resource.resourceType === 'CodeSystem') codeSystems.set(resource.url, resource)
  }
  const enumerated: ValueSetLine[] = []
  const open: string[] = []
  for (const url of urls) {
    const codes = expand(url, valueSets, codeSystems)
    if (codes === undefined) open.push(url)
    else {
      enumerated.push({
        url,
        systems: Object.fromEntries(
          [...codes].sort().map(([system, set]) => [system, [...set].sort()]),
        ),
      })
    }
  }
  return { enumerated, open }
}

function expand(
  url: string,
  valueSets: ReadonlyMap<string, Terminology>,
  codeSystems: ReadonlyMap<string, Terminology>,
): Codes | undefined {
  const compose = valueSets.get(url)?.compose
  if (compose === undefined) return undefined
  const codes: Codes = new Map()
  for (const include of compose.include) {
    const part = list(include, valueSets, codeSystems)
    if (part === undefined) return undefined
    for (const [system, set] of part) {
      codes.set(system, new Set([...(codes.get(system) ?? []), ...set]))
    }
  }
  for (const exclude of compose.exclude ?? []) {
    const part = list(exclude, valueSets, codeSystems)
    if (part === undefined) return undefined
    for (const [system, set] of part) for (const code of set) codes.get(system)?.delete(code)
  }
  return codes
}

function list(
  include: Include,
  valueSets: ReadonlyMap<string, Terminology>,
  codeSystems: ReadonlyMap<string, Terminology>,
): Codes | undefined {
  const { system, concept, valueSet, filter } = include
  if (valueSet !== undefined) {
    const [only, ...more] = valueSet
    if (only === undefined || more.length > 0 || system !== undefined) return undefined
    return expand(only.replace(/\|.*$/, ''), valueSets, codeSystems)
  }
  if (system === undefined) return undefined
  if (concept !== undefined) return new Map([[system, new Set(concept.map((item) => item.code))]])
  const codeSystem = codeSystems.get(system)
  if (codeSystem?.content !== 'complete' || codeSystem.concept === undefined) return undefined
  const all = codeSystem.concept
  if (filter === undefined) return new Map([[system, new Set(flatten(all))]])
  const [rule, ...rules] = filter
  if (rule?.property !== 'concept' || rule.op !== 'is-a' || rules.length > 0) return undefined
  return new Map([[system, descendants(all, rule.value)]])
}

function flatten(concepts: readonly Concept[]): string[] {
  return concepts.flatMap((item) => [item.code, ...flatten(item.concept ?? [])])
}

/** Children are nested or, in v3 code systems, name their parent as `subsumedBy`. */
function descendants(concepts: readonly Concept[], root: string): Set<string> {
  const found = new Set([root])
  let size = 0
  while (size !== found.size) {
    size = found.size
    collect(concepts, false, found)
  }
  return found
}

function collect(concepts: readonly Concept[], inside: boolean, found: Set<string>): void {
  for (const { code, concept = [], property = [] } of concepts) {
    const isChild = property.some(
      (item) => item.code === 'subsumedBy' && found.has(item.valueCode ?? ''),
    )
    if (inside || isChild) found.add(code)
    collect(concept, found.has(code), found)
  }
}
