/** Which codes are in a ValueSet, without listing it. https://hl7.org/fhir/R4/valueset.html#compositions */
import { badRequest, tooCostly, unknownDefinition } from '../errors.ts'
import { isResource } from '../fhir/resource.ts'
import type { Compose, Contained, Include, ValueSet } from '../fhir/terminology.ts'
import { UCUM } from '../fhir/values.ts'
import { type CodeSource, fitsVersion, type Terminology } from './find.ts'

/** Deeper nets of imports are refused. */
const MAX_DEPTH = 20
/** ValueSets visited, and thousands of concepts that a filter is tried on. */
const MOST_WORK = 2000

/** One evaluation: what it may use, and how far it has gone. */
export interface Evaluation {
  readonly terminology: Terminology
  readonly work: { done: number }
  /** Urls of the ValueSets that are being evaluated, the outermost first. */
  readonly path: readonly string[]
  /** The version of its CodeSystem that a code was given with. */
  readonly version?: string | undefined
  /** Resources that `#id` stands for. */
  readonly contained?: readonly unknown[] | undefined
}

export function evaluation(terminology: Terminology, version?: string): Evaluation {
  return { terminology, work: { done: 0 }, path: [], version }
}

/** Errors: 400 for a circle of imports and for too many. */
export function enter(from: Evaluation, { url, contained }: ValueSet): Evaluation {
  const outer = contained === undefined ? from : { ...from, contained }
  const { path } = outer
  spend(outer, 1)
  if (path.length >= MAX_DEPTH) throw tooCostly(`ValueSets are imported over ${MAX_DEPTH} levels`)
  if (url === undefined) return outer
  if (path.includes(url)) throw badRequest(`ValueSet ${url} imports itself`)
  return { ...outer, path: [...path, url] }
}

/** Errors: 400 when the sum is too large. */
export function spend({ work }: Evaluation, amount: number): void {
  work.done += amount
  if (work.done > MOST_WORK) throw tooCostly('The ValueSet has too many parts')
}

/** Errors: 400 when it is not known. */
export async function importedValueSet(
  { terminology, contained = [] }: Evaluation,
  canonical: string,
): Promise<ValueSet> {
  const inside = contained.find(
    (item) => isResource(item) && item.resourceType === 'ValueSet' && `#${item.id}` === canonical,
  )
  // It was validated with the resource that it is in.
  const valueSet = (inside as ValueSet | undefined) ?? (await terminology.valueSet(canonical))
  if (valueSet === undefined) throw unknownDefinition(`ValueSet ${canonical} is not known`)
  return valueSet
}

/** Errors: 400 when its concepts are not known. */
export async function contentOf(
  outer: Evaluation,
  { system = '', version, filter = [] }: Include,
): Promise<CodeSource> {
  const { terminology } = outer
  const broken = filter.find((one) => !one.property || !one.op || !one.value)
  if (broken !== undefined) throw badRequest(`A filter of ${system} has no property, op or value`)
  const wanted = outer.version ?? version
  const canonical = wanted === undefined ? system : `${system}|${wanted}`
  const source = await terminology.codeSystem(canonical)
  if (source === undefined) throw unknownDefinition(`CodeSystem ${canonical} is not known`)
  if (!source.hasConcepts) throw badRequest(`CodeSystem ${canonical} has no concepts here`)
  const size = await source.size()
  spend(outer, 1 + Math.floor((size * (1 + filter.length)) / 1000))
  return source
}

/** A ValueSet that is stored as nothing but an expansion is the list of its codes. */
export function composeOf({ compose, expansion }: ValueSet): Compose {
  if (compose !== undefined || expansion?.contains === undefined) return compose ?? {}
  const listed = (items: readonly Contained[]): Contained[] =>
    items.flatMap((item) => [item, ...listed(item.contains ?? [])])
  const systems = Map.groupBy(listed(expansion.contains), ({ system }) => system)
  const include = [...systems].map(([system, items]) => ({
    system,
    concept: items.flatMap(({ code, display, abstract }) =>
      code === undefined || abstract ? [] : [{ code, ...(display ? { display } : {}) }],
    ),
  }))
  return { include }
}

/** Returns those `codes`, all of one system, that the ValueSet holds. */
export async function membersOf(
  outer: Evaluation,
  valueSet: ValueSet,
  system: string,
  codes: readonly string[],
): Promise<ReadonlySet<string>> {
  const inner = enter(outer, valueSet)
  const { include = [], exclude = [], inactive } = composeOf(valueSet)
  const found = new Set<string>()
  for (const part of include) {
    const open = codes.filter((code) => !found.has(code))
    if (open.length === 0) break
    const members = await includedOf(inner, part, {
      system,
      codes: open,
      activeOnly: inactive === false,
    })
    for (const code of members) found.add(code)
  }
  for (const part of exclude) {
    if (found.size === 0) break
    for (const code of await includedOf(inner, part, {
      system,
      codes: [...found],
      activeOnly: false,
    }))
      found.delete(code)
  }
  return found
}

interface IncludedPart {
  readonly system: string
  readonly codes: readonly string[]
  readonly activeOnly: boolean
}

/** Returns those `codes` that one include or exclude covers. */
export async function includedOf(
  outer: Evaluation,
  part: Include,
  { system, codes, activeOnly }: IncludedPart,
): Promise<ReadonlySet<string>> {
  spend(outer, 1 + Math.floor(codes.length / 1000))
  let members = new Set(codes)
  if (part.system !== undefined) {
    if (part.system !== system) return new Set()
    members = new Set(await ofSystem(outer, part, codes, activeOnly))
  }
  for (const canonical of part.valueSet ?? []) {
    if (members.size === 0) break
    const valueSet = await importedValueSet(outer, canonical)
    members = new Set(await membersOf(outer, valueSet, system, [...members]))
  }
  const isEmpty = part.system === undefined && part.valueSet === undefined
  return isEmpty ? new Set() : members
}

async function ofSystem(
  outer: Evaluation,
  part: Include,
  codes: readonly string[],
  activeOnly: boolean,
): Promise<readonly string[]> {
  const { version } = outer
  if (version !== undefined && part.version !== undefined && !fitsVersion(version, part.version)) {
    return []
  }
  if (part.concept !== undefined) {
    const listed = new Set(part.concept.map(({ code }) => code))
    return await existing(
      outer,
      part,
      codes.filter((code) => listed.has(code)),
    )
  }
  const source = await contentOf(outer, part)
  const { filter: filters } = part
  // Nobody knows what else a system has of which only a fragment is here.
  if (filters === undefined && source.codeSystem.content === 'fragment') return codes
  const { concepts } = await source.list({ codes, filters, activeOnly, limit: codes.length })
  const fold = source.codeSystem.caseSensitive === false
  const found = new Set(concepts.map(({ code }) => (fold ? code.toLowerCase() : code)))
  return codes.filter((code) => found.has(fold ? code.toLowerCase() : code))
}

/** Units and languages are published as complete lists, but more are made by a grammar. */
const WITH_GRAMMAR: ReadonlySet<string | undefined> = new Set([UCUM, 'urn:ietf:bcp:47'])

/** True for a CodeSystem that has no codes but those that are here. */
export function isWhole({ codeSystem, hasConcepts }: CodeSource): boolean {
  const { url, content, caseSensitive } = codeSystem
  return hasConcepts && content === 'complete' && caseSensitive !== false && !WITH_GRAMMAR.has(url)
}

/** A code that is listed means nothing where its system is here and does not have it. */
async function existing(
  outer: Evaluation,
  { system = '', version }: Include,
  codes: readonly string[],
): Promise<readonly string[]> {
  if (codes.length === 0) return codes
  const wanted = outer.version ?? version
  const canonical = wanted === undefined ? system : `${system}|${wanted}`
  const source = await outer.terminology.codeSystem(canonical)
  if (source === undefined || !isWhole(source)) return codes
  const { concepts } = await source.list({ codes, limit: codes.length })
  const known = new Set(concepts.map(({ code }) => code))
  return codes.filter((code) => known.has(code))
}
