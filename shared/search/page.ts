/** One page of a search for a Principal: one statement, plus one each for a total and each include step. */
import { visibleRows } from '../access/decisions/grant-predicates.ts'
import type { Principal } from '../access/principal.ts'
import { unlinked } from '../access/project-context.ts'
import { Cache } from '../core/cache.ts'
import { forbidden } from '../core/errors.ts'
import type { KeyStatistics } from '../store/index/statistics.ts'
import { redactRows } from '../store/read/read.ts'
import { requireAllowed, type StoreContext } from '../store/rows/context.ts'
import { countNow, type Total } from '../store/rows/counts.ts'
import { withContents } from '../store/rows/recent-versions.ts'
import { toVersion } from '../store/rows/rows.ts'
import type { SearchPage, Version } from '../store/rows/version.ts'
import { followIncludes } from './include.ts'
import type { SearchRequest } from './language/search-request.ts'
import { has } from './planner/bounds.ts'
import { sampledJoin } from './planner/counted.ts'
import { createKeyLimit } from './planner/key-count.ts'
import {
  countedStatement,
  fewKeysResult,
  fewKeysStatement,
  pageStatement,
  pagesStatement,
} from './planner/page-statement.ts'
import { planQuery, prepare } from './planner/prepare.ts'
import { orderOfTypes, resolveOrder, writeCursor } from './predicates/order.ts'
import type { KeysPredicate } from './predicates/predicate.ts'
import {
  estimateMatches,
  type Order,
  type PlannedQuery,
  type Position,
  type Query,
  type SortedRow,
  toPlannerStats,
} from './predicates/query.ts'

/** Errors: 403; 400 for invalid conditions, sort keys or cursors. */
export async function search(
  store: StoreContext,
  principal: Principal,
  request: SearchRequest,
): Promise<SearchPage> {
  requireAllowed(principal, request.type, 'search')
  const order = resolveOrder(request, store.keys, principal.project.parameters)
  return searchPage(store, principal, order, [request])
}

/** Searches types as one result, leaving out forbidden ones. Errors: like `search`; 403 when none remains. */
export async function searchTypes(
  store: StoreContext,
  principal: Principal,
  requests: readonly SearchRequest[],
): Promise<SearchPage> {
  const allowed = requests.filter(({ type }) =>
    visibleRows(store, principal, type, { interaction: 'search' }),
  )
  const [first] = allowed
  if (first === undefined) throw forbidden()
  return searchPage(store, principal, orderOfTypes(first, store.keys), [first, ...allowed.slice(1)])
}

export interface Explanation {
  /** `keys`, `ids`, `dates`, `join` or `walk`; undefined when nothing is visible. */
  readonly driver: string | undefined
  readonly sql: string
  readonly plan: readonly string[]
}

/** Errors: like `search`. Runs the statement and discards its rows. */
export async function explain(
  store: StoreContext,
  principal: Principal,
  request: SearchRequest,
): Promise<Explanation> {
  const { queries } = await prepareOne(store, principal, request)
  if (queries.length === 0) return { driver: undefined, sql: '', plan: [] }
  const plans = planQueries(store, queries)
  const { text, values } = pageStatement(plans)
  const rows = await store.connection.query<{ 'QUERY PLAN': string }>({
    text: `explain (analyze, buffers) ${text}`,
    values,
  })
  const driver = plans.map(({ accessPath }) => accessPath.name).join(', ')
  return { driver, sql: text, plan: rows.map((row) => row['QUERY PLAN']) }
}

async function prepareOne(store: StoreContext, principal: Principal, request: SearchRequest) {
  requireAllowed(principal, request.type, 'search')
  const order = resolveOrder(request, store.keys, principal.project.parameters)
  const prepared = await prepare(store, principal, order, [request])
  return { order, ...prepared }
}

/** Larger batches use several statements: PostgreSQL plans each search. */
const SEARCHES = 200

/** Reads first pages of several searches of one Project, without totals and includes; each may fail alone. */
export async function searchMany(
  store: StoreContext,
  member: Principal,
  requests: readonly SearchRequest[],
): Promise<readonly PromiseSettledResult<SearchPage>[]> {
  const principal = unlinked(member)
  const requireFewKeys = createKeyLimit(principal.project.parameters)
  const prepared = await Promise.allSettled(
    requests.map(async (request) => {
      requireFewKeys(request)
      const { order, after, queries } = await prepareOne(store, principal, request)
      return { order, after, parts: planQueries(store, queries) }
    }),
  )
  const asked = prepared.flatMap((result, n) =>
    result.status === 'fulfilled' ? result.value.parts.map((planned) => ({ n, ...planned })) : [],
  )
  // Sorts by value and scores add columns, so each such search has its own statement.
  const [alone, alike] = [true, false].map((isAlone) =>
    asked.filter(({ query }) => hasOwnColumns(query) === isAlone),
  )
  const groups = (alone ?? []).map((planned) => [planned])
  for (let from = 0; from < (alike?.length ?? 0); from += SEARCHES) {
    groups.push((alike ?? []).slice(from, from + SEARCHES))
  }
  const found = new Map<number, SortedRow[]>()
  for (const group of groups) {
    const rows = await store.connection.query<SortedRow & { n: number }>(pagesStatement(group))
    for (const [n, own] of Map.groupBy(rows, (row) => row.n)) found.set(n, own)
  }
  return Promise.allSettled(
    requests.map(async (request, n) => {
      const own = prepared[n]
      if (own?.status !== 'fulfilled') throw own?.reason
      const { order, after } = own.value
      const rows = found.get(n) ?? []
      return buildSearchPage(request, {
        order,
        after,
        rows: await showRows(store, principal, rows),
      })
    }),
  )
}

const hasOwnColumns = ({ order, score }: Query) => order.terms.length > 0 || score !== undefined

async function searchPage(
  store: StoreContext,
  principal: Principal,
  order: Order,
  requests: readonly [SearchRequest, ...SearchRequest[]],
): Promise<SearchPage> {
  const [paging] = requests
  const { count, total, includes } = paging
  const { projects, after, queries } = await prepare(store, principal, order, requests)
  const [rows, counted] = await Promise.all([
    count === 0 || queries.length === 0 ? [] : pageRows(store, queries),
    total === 'none' ? undefined : countRows(store, queries, total),
  ])
  const shown = await showRows(store, principal, rows)
  const page = {
    ...buildSearchPage(paging, { order, after, rows: shown }),
    total: counted?.count,
    isTotalEstimated: counted?.isEstimate === true,
  }
  if (projects.length === 0 || includes.length === 0) return page
  return {
    ...page,
    ...(await followIncludes(store, principal, { projects, includes, matches: page.versions })),
  }
}

function pageRows(store: StoreContext, queries: readonly Query[]): Promise<readonly SortedRow[]> {
  const plans = planQueries(store, queries)
  return withContents(store, queries, async (isBare) => {
    const few = await readByFewKeys(store, plans, isBare)
    return few ?? (await store.connection.query<SortedRow>(pageStatement(plans, isBare)))
  })
}

/** Statements that found too many keys; not retried for a while. */
const missed = new Cache<string, true>({ name: 'searches-of-many-keys', max: 1000, ttlMs: 10_000 })

async function readByFewKeys(
  { connection }: StoreContext,
  [planned, another]: readonly PlannedQuery[],
  isBare: boolean,
): Promise<readonly SortedRow[] | undefined> {
  const statement = planned && another === undefined ? fewKeysStatement(planned, isBare) : undefined
  if (statement === undefined || missed.has(statement.text)) return undefined
  const found = fewKeysResult(await connection.query<SortedRow | { readonly id: null }>(statement))
  if (found === undefined) missed.set(statement.text, true)
  return found
}

function planQueries(store: StoreContext, queries: readonly Query[]): readonly PlannedQuery[] {
  return queries.map((query) => planQuery(store, query))
}

interface ShownRow<Row extends SortedRow> {
  readonly row: Row
  readonly version: Version
}

export async function showRows<Row extends SortedRow>(
  store: StoreContext,
  principal: Principal,
  rows: readonly Row[],
): Promise<readonly ShownRow<Row>[]> {
  const versions = await redactRows(store, principal, () => 'search', rows)
  return rows.map((row, i) => ({ row, version: versions[i] ?? toVersion(row) }))
}

interface PageRows {
  readonly order: Order
  readonly after: Position | undefined
  readonly rows: readonly ShownRow<SortedRow>[]
}

export function buildSearchPage(
  { count }: SearchRequest,
  { order, after, rows }: PageRows,
): SearchPage {
  const shown = rows.slice(0, count)
  const isBackwards = after?.isBackwards === true
  if (isBackwards) shown.reverse()
  const hasMore = rows.length > count
  const [first, last] = [shown.at(0)?.row, shown.at(-1)?.row]
  // The page that the cursor came from lies in the opposite direction.
  const previous = (isBackwards ? hasMore : after !== undefined) ? first : undefined
  const next = hasMore || isBackwards ? last : undefined
  return {
    versions: shown.map(({ row: { score }, version }) =>
      typeof score === 'number' ? { ...version, score } : version,
    ),
    total: undefined,
    next: next && writeCursor(order, next),
    previous: previous && writeCursor(order, previous, true),
    included: [],
    isTruncated: false,
  }
}

/* Totals: counted, or estimated from PostgreSQL's statistics or a sample. */

/** Estimated totals are counted exactly up to here. */
const EXACT_COUNT = 10_000
/** Under a policy, estimates are counted up to here: the statistics include invisible rows. */
const LIMITED_COUNT = 100_000
/** Above this number, accurate totals are estimated too: counting as many index entries takes 200 ms. */
const MAX_COUNTED = 600_000
/** The same for one code: its rows are checked in the table, at 0.5 to 2 µs each. */
const MAX_COUNTED_OF_CODE = 100_000
/** Larger estimates from good statistics are totals with `_total=estimate`: counting even a part of so many is slow. */
const GOOD_ESTIMATE = 2 * EXACT_COUNT
/** Rows that the total of a join may walk, at 0.5 µs each, or as many lookups as take the time. */
const WORK = { accurate: 500_000, estimate: 50_000 } as const

async function countRows(
  { statistics, connection, counts }: StoreContext,
  queries: readonly Query[],
  asked: 'estimate' | 'accurate',
): Promise<Total> {
  if (queries.length === 0) return { count: 0, isEstimate: false }
  const guesses = queries.map((query) => estimateTotal(statistics, query))
  const estimate = Math.round(guesses.reduce((sum, { rows }) => sum + rows, 0))
  const isLimited = queries.some((query) => query.hasPolicyTests)
  const isGood = !isLimited && guesses.every((guess) => guess.isGood)
  const most = asked === 'estimate' ? GOOD_ESTIMATE : mostExact(queries)
  if (isGood && estimate > most) return { count: estimate, isEstimate: true }
  const max = mostCounted(asked, { queries, isLimited, estimate })
  const counted = queries.map((query) => ({ query, stats: toPlannerStats(statistics, query) }))
  const statement = countedStatement(counted, { max, work: WORK[asked] })
  const total =
    counts === undefined
      ? await countNow(connection, statement)
      : await counts.count(connection, statement)
  if (max === undefined || total.count < max) return total
  return { count: isLimited ? max - 1 : Math.max(total.count, estimate), isEstimate: true }
}

const mostExact = (queries: readonly Query[]) =>
  queries.some((query) => has(query, 'keys')) ? MAX_COUNTED_OF_CODE : MAX_COUNTED

interface Guessed {
  readonly queries: readonly Query[]
  readonly isLimited: boolean
  readonly estimate: number
}

/** Returns the number of matches at which counting ends and the total is estimated; undefined: counting ends by itself. */
function mostCounted(
  asked: 'estimate' | 'accurate',
  { queries, isLimited, estimate }: Guessed,
): number | undefined {
  if (queries.every((query) => sampledJoin(query) !== undefined)) return undefined
  if (asked === 'estimate') return (isLimited ? LIMITED_COUNT : EXACT_COUNT) + 1
  return estimate <= MAX_COUNTED ? undefined : MAX_COUNTED + 1
}

interface Guess {
  readonly rows: number
  /** False for an upper bound: several conditions, or one without statistics. */
  readonly isGood: boolean
}

/** Estimates by the rarest key; without statistics, keys are ignored. */
function estimateTotal(statistics: KeyStatistics, query: Query): Guess {
  const { rare } = statistics
  const { isKnown, rows: all } = toPlannerStats(statistics, query)
  const [only, another] = query.predicates
  if (rare === undefined) return { rows: all, isGood: false }
  const held = (test: KeysPredicate) =>
    Math.max(estimateMatches(statistics, test), rare * test.any.length)
  const isOnly = isKnown && another === undefined
  if (isOnly && only?.kind === 'filter' && only.none !== undefined) {
    return { rows: Math.max(0, all - held(only.none)), isGood: true }
  }
  const matches = query.predicates.flatMap((predicate) =>
    predicate.kind === 'keys' ? held(predicate) : [],
  )
  const isGood = isOnly && (only === undefined || only.kind === 'keys')
  return { rows: Math.min(all, ...matches), isGood }
}
