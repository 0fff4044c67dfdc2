/** Pages of searches, and lists inside a resource. https://hl7.org/fhir/R4/graphql.html#list */
import { badRequest, notSupported } from '../../core/errors.ts'
import { publishedDefinition, publishedParameters, publishedType } from '../../fhir/published.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import { compileTenant, withinLimits } from '../../fhirpath/custom.ts'
import { loadEngine } from '../../fhirpath/engine.ts'
import type { SearchPage, Version } from '../../store/rows/version.ts'
import type { Child, Given } from '../schema/elements.ts'
import type { Plan, Shape } from './plan.ts'
import type { Search } from './reads.ts'
import type { Run } from './run.ts'

/** Evaluations that run without yielding and share a time limit. */
const BATCH = 20
const BATCH_MS = 40
/** Bounds the parser's time. */
const MAX_TOKENS = 120

interface Filtered {
  readonly items: readonly unknown[]
  readonly fhirpath: string | undefined
  part(items: readonly unknown[]): readonly unknown[]
}

export function filterItems(
  value: readonly unknown[],
  { fhirpath, _count, _offset, ...filters }: Given,
): Filtered {
  const wanted = Object.entries(filters).filter(([, text]) => text !== null)
  const items =
    wanted.length === 0
      ? value
      : value.filter(
          (item) => isObject(item) && wanted.every(([name, text]) => item[name] === text),
        )
  const start = readNonNegative('_offset', _offset) ?? 0
  const count = readNonNegative('_count', _count)
  return {
    items,
    fhirpath: typeof fhirpath === 'string' ? fhirpath : undefined,
    part: (all) => all.slice(start, count === undefined ? undefined : start + count),
  }
}

interface Evaluated {
  readonly items: readonly unknown[]
  readonly child: Child
  readonly expression: string
}

export function unfiltered(items: readonly unknown[]): Filtered {
  return { items, fhirpath: undefined, part: (all) => all }
}

/** In a list of primitives, null marks an item that has only extensions. */
export function withoutNulls(items: readonly unknown[]): readonly unknown[] {
  return items.includes(null) ? items.filter((item) => item !== null) : items
}

export async function itemsWhereTrue(
  run: Run,
  owner: Resource | undefined,
  { items, child, expression }: Evaluated,
): Promise<readonly unknown[]> {
  const values = await evaluateAll(run, owner, { items, child, expression })
  return items.filter((_, i) => values[i]?.length === 1 && values[i][0] === true)
}

/** Returns the string result of an expression for each item; `$index` is its position. */
export async function evaluateTexts(
  run: Run,
  owner: Resource | undefined,
  { items, child, expression }: Evaluated,
): Promise<readonly string[]> {
  if (expression === '$index') return items.map((_, i) => String(i))
  const values = await evaluateAll(run, owner, { items, child, expression })
  return values.map((found) => found.map(String).join(','))
}

function fhirPathBase({ content }: Child): string {
  if (content.kind !== 'object') return ''
  const { type, path } = content.place
  return path === '' ? type : `${type}.${path}`
}

/** Functions that reach other resources or servers, or write to the log. */
const REFUSED =
  /\b(resolve|trace|memberOf|validateVS|translate|subsumes|subsumedBy|conformsTo)\s*\(/

async function evaluateAll(
  run: Run,
  owner: Resource | undefined,
  { items, child, expression }: Evaluated,
): Promise<readonly unknown[][]> {
  const refused = REFUSED.exec(expression.replace(/'(?:\\.|[^'\\])*'/g, "''"))?.[1]
  if (refused !== undefined)
    throw notSupported(`FHIRPath function ${refused}() is not available here`)
  await loadEngine()
  // Compiling a new expression takes milliseconds.
  const compiling = run.turns.spendAndYield(BATCH)
  if (compiling !== undefined) await compiling
  const evaluate = compileTenant(expression, fhirPathBase(child), MAX_TOKENS)
  const variables = owner === undefined ? {} : { resource: owner, rootResource: owner }
  run.spend('evaluations', items.length)
  const values: unknown[][] = []
  for (let start = 0; start < items.length; start += BATCH) {
    const turn = run.turns.spendAndYield(BATCH)
    if (turn !== undefined) await turn
    const batch = items.slice(start, start + BATCH)
    values.push(...withinLimits(() => batch.map((item) => evaluate(item, variables)), BATCH_MS))
  }
  return values
}

function readNonNegative(name: string, value: unknown): number | undefined {
  if (typeof value !== 'number') return undefined
  if (value < 0) throw badRequest(`Invalid ${name}: ${value}`, name)
  return value
}

// Shared definitions are stored in no Project. The SDK reads them through root lists, which append them.

/** Returns the definitions for a list by url, `StructureDefinitionList` by name or `SearchParameterList` by type. */
export function publishedFor(type: string, given: Given): readonly Resource[] {
  const { _count, ...asked } = given
  const [[name, value] = [], ...others] = Object.entries(asked)
  // A single string variable counts as a list of one.
  const texts: readonly unknown[] = Array.isArray(value) ? value : [value]
  const text = texts.length === 1 && typeof texts[0] === 'string' ? texts[0] : undefined
  if (name === undefined || text === undefined || others.length > 0) return []
  if (type === 'SearchParameter') return name === 'base' ? publishedParameters(text) : []
  if (name === 'url') {
    return [publishedDefinition(type, text)].filter((found) => found !== undefined)
  }
  if (type !== 'StructureDefinition') return []
  const wanted = name === '_filter' ? /^name eq "?(\w+)"?$/.exec(text)?.[1] : text
  if (wanted === undefined || !['_filter', 'name', 'type'].includes(name)) return []
  const found = publishedType(wanted)
  return found === undefined ? [] : [found]
}

const DEFAULT_COUNT = 20
const MAX_COUNT = 1000

export const LIST: Omit<Search, 'type' | 'args'> = {
  hasTotal: false,
  hasRows: true,
  hasNext: false,
}

/** Skips counting and fetching unless their fields are requested. */
export function requestedParts(shape: Shape): Omit<Search, 'type' | 'args'> {
  const steps = shape.kind === 'object' ? shape.plan().steps : []
  const names = new Set(steps.map(({ field }) => field?.name))
  const hasNext = names.has('next') || names.has('previous')
  return { hasTotal: names.has('count'), hasRows: hasNext || names.has('edges'), hasNext }
}

export interface Edge {
  readonly mode: 'match'
  readonly version: Version
}

/** https://hl7.org/fhir/R4/graphql.html#connection */
export function connection({ versions, total, previous, next }: SearchPage, given: Given): object {
  const size = resolvePageSize(given)
  const edges: readonly Edge[] = versions.map((version) => ({ mode: 'match', version }))
  const sizes = { offset: given._offset ?? 0, pageSize: size, pagesize: size }
  return { count: total, ...sizes, first: null, previous, next, last: null, edges }
}

export function resolvePageSize({ _count }: Given): number {
  return typeof _count === 'number' ? Math.min(_count, MAX_COUNT) : DEFAULT_COUNT
}

/** Undefined for a type outside the schema. */
export function planForVersion(shape: Shape, { type }: Version): Plan | undefined {
  if (shape.kind === 'object') return shape.plan()
  return shape.kind === 'any' ? shape.planFor(type) : undefined
}
