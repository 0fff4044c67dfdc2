/** Evaluation context and lookups of a ValueSet's parts. https://hl7.org/fhir/R4/valueset.html#compositions */
import { badRequest, tooCostly, unknownDefinition } from '../core/errors.ts'
import { isResource } from '../fhir/resource.ts'
import type { Compose, Contained, Include, ValueSet } from '../fhir/terminology.ts'
import type { CodeSource, Terminology } from './find.ts'

const MAX_DEPTH = 20
/** ValueSets visited, plus thousands of concepts filtered. */
const MOST_WORK = 2000

export interface Evaluation {
  readonly terminology: Terminology
  readonly work: { done: number }
  /** Urls of the ValueSets being evaluated, outermost first. */
  readonly path: readonly string[]
  readonly version?: string | undefined
  readonly language?: string | undefined
  /** Resources referenced by `#id`. */
  readonly contained?: readonly unknown[] | undefined
}

export function evaluation(terminology: Terminology, version?: string): Evaluation {
  return { terminology, work: { done: 0 }, path: [], version }
}

/** Errors: 400 for circular or too many imports. */
export function enterValueSet(
  from: Evaluation,
  { url, contained, language }: ValueSet,
): Evaluation {
  const outer = { ...from, language, contained: contained ?? from.contained }
  const { path } = outer
  spendWork(outer, 1)
  if (path.length >= MAX_DEPTH) throw tooCostly(`ValueSets are imported over ${MAX_DEPTH} levels`)
  if (url === undefined) return outer
  if (path.includes(url)) throw badRequest(`ValueSet ${url} imports itself`)
  return { ...outer, path: [...path, url] }
}

/** Errors: 400 above the limit. */
export function spendWork({ work }: Evaluation, amount: number): void {
  work.done += amount
  if (work.done > MOST_WORK) throw tooCostly('The ValueSet has too many parts')
}

/** Errors: 400 for an unknown one. */
export async function importedValueSet(
  { terminology, contained = [] }: Evaluation,
  canonical: string,
): Promise<ValueSet> {
  const inside = contained.find(
    (item) => isResource(item) && item.resourceType === 'ValueSet' && `#${item.id}` === canonical,
  )
  // Validated with its containing resource.
  const valueSet = (inside as ValueSet | undefined) ?? (await terminology.valueSet(canonical))
  if (valueSet === undefined) throw unknownDefinition(`ValueSet ${canonical} is not known`)
  return valueSet
}

/** Returns the canonical of a part's system, in the version of the code or of the part. */
export function systemCanonical(outer: Evaluation, { system = '', version }: Include): string {
  const wanted = outer.version ?? version
  return wanted === undefined ? system : `${system}|${wanted}`
}

/** Errors: 400 for unknown concepts. */
export async function requireConcepts(
  outer: Evaluation,
  { system = '', version, filter = [] }: Include,
): Promise<CodeSource> {
  const { terminology } = outer
  const broken = filter.find((one) => !one.property || !one.op || !one.value)
  if (broken !== undefined) throw badRequest(`A filter of ${system} has no property, op or value`)
  const canonical = systemCanonical(outer, { system, version })
  const source = await terminology.codeSystem(canonical)
  if (source === undefined) throw unknownDefinition(`CodeSystem ${canonical} is not known`)
  if (!source.hasConcepts) throw badRequest(`CodeSystem ${canonical} has no concepts here`)
  const size = await source.size()
  spendWork(outer, 1 + Math.floor((size * (1 + filter.length)) / 1000))
  return source
}

/** A ValueSet stored only as an expansion is the list of its codes. */
export function valueSetCompose({ compose, expansion }: ValueSet): Compose {
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

/** True for a CodeSystem whose content is complete. */
export function isCompleteCodeSystem({
  codeSystem,
  hasConcepts,
  isPublished,
}: CodeSource): boolean {
  const { content, caseSensitive } = codeSystem
  return isPublished !== true && hasConcepts && content === 'complete' && caseSensitive !== false
}
