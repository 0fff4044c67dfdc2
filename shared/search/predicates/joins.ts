/**
 * Chains and `_has`. A reference key is P ^ R and the self key of its target is P' ^ R, so the keys of
 * one side become those of the other by XOR with a constant, in SQL. Stray values that go through it
 * are random 64-bit numbers and match nothing. Every end is read with what the Principal sees of it.
 */
import { badRequest, notSupported } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { Bind } from '../../postgres/statement.ts'
import { isCanonicalParameter, plannedParameter } from '../../store/index/index-plan.ts'
import { REMOVED_KEY } from '../../store/index/rows.ts'
import type { KeyStatistics } from '../../store/index/statistics.ts'
import { CANONICAL_KEY } from '../../store/index/type-constants.ts'
import { type Criterion, isCondition, type Join } from '../language/search-request.ts'
import {
  alternativeSql,
  codesRead,
  type FanOut,
  filter,
  hasStablePlan,
  heldRows,
  holdsSql,
  isHeldSql,
  type JoinPredicate,
  type Matches,
  oneRowSql,
  type Predicate,
  predicateSql,
  type SearchScope,
  whereSql,
  widestReadScope,
} from './predicate.ts'
import { estimateMatches, estimateSelectivity } from './query.ts'
import { walkSql } from './scan-sql.ts'

/** More than this on one side of a join is 400 too-costly. */
const MAX_KEYS = 50_000
/** The largest int of PostgreSQL, with room for one more. */
const UNLIMITED = 2_000_000_000

type CompilePredicate = (scope: SearchScope, criterion: Criterion) => Predicate

/** Errors: 400 for a join between the registry and a Project, which only searches have resolved before. */
export function joinPredicate(scope: SearchScope, join: Join, testOf: CompilePredicate): Predicate {
  const byId = referenceTest(scope, join, testOf)
  if (byId !== undefined) return byId
  const entered = join.ends.flatMap(({ type, criterion }) => {
    const codes = codesRead(type, criterion, scope.own)
    const isByUrl = join.kind === 'chain' && isCanonicalParameter(scope.type, join.code, scope.own)
    const link = join.kind === 'has' ? [join.code] : isByUrl ? ['url'] : []
    const inner = scope.enter(type, [...link, ...codes])
    return inner === undefined ? [] : [{ inner, criterion }]
  })
  if (entered.length === 0) return filter(() => 'false')
  const sides = entered.filter(({ inner }) => inner.project === scope.project)
  if (sides.length === 0) {
    const [other] = entered
    const types = `${scope.type} and ${other?.inner.type}`
    throw notSupported(`Filters and criteria cannot join ${types}`, join.code)
  }
  const parts = sides.flatMap(({ inner, criterion }) => {
    const predicate = testOf(inner, criterion)
    const links =
      join.kind === 'chain'
        ? joinLinks(scope, scope.type, join.code, inner.type)
        : joinLinks(scope, inner.type, join.code, scope.type)
    const removed = join.isList === true ? removedConstant(inner, join.code) : undefined
    return links.map((link): Side => ({ link, inner, test: predicate, removed }))
  })
  const isChain = join.kind === 'chain'
  const bySelf = !isChain && parts.every(({ link }) => !link.isCanonical)
  const some = (bind: Bind) => parts.map((part) => keysSql(isChain, part, bind)).join(' union all ')
  const predicate: JoinPredicate = {
    kind: 'join',
    ...(scope.isPolicy ? {} : { some }),
    keys: (bind) => {
      const found = some(bind)
      const most = bind(scope.isPolicy ? UNLIMITED : MAX_KEYS, 'int')
      return `(select search_cap(array(
        select distinct k from (${found}) j(k) limit ${most} + 1), ${most}))`
    },
    check: (keys, isNamed) => (bySelf ? isHeldSql('r.keys[1]', keys) : holdsSql(keys, isNamed)),
    fanOut: (statistics) => estimateFanOut(isChain, parts, statistics),
    ...(isChain ? {} : probing(parts)),
    ...(scope.isPolicy ? policyBounds(isChain, parts) : {}),
    hasStablePlan: parts.every(({ inner, test: predicate }) =>
      [...inner.visible, predicate].every(hasStablePlan),
    ),
  }
  if (isChain || scope.isPolicy) return predicate
  const informed = (statistics: KeyStatistics): JoinPredicate => ({
    ...predicate,
    ...probing(parts.map((part) => ({ ...part, isCommon: isCommon(part, statistics) }))),
  })
  return { ...predicate, withStatistics: informed }
}

/** Most rows of the other side match: any that refers to the row at hand will do. */
function isCommon(
  { inner: { project, type }, test: predicate }: Side,
  statistics: KeyStatistics,
): boolean {
  const number = typeNumber(type)
  if (predicate.kind !== 'keys' || !statistics.knows(project, number)) return false
  return estimateMatches(statistics, predicate) >= statistics.typeRows(project, number) / 4
}

/** For `_has`: where very many rows of the other side match, the first rows that are looked at fill a page. */
function probing(parts: readonly Side[]): Pick<JoinPredicate, 'probe' | 'walk'> {
  const probe = (bind: Bind) => `(${parts.map((part) => probeSql(false, part, bind)).join(' or ')})`
  const rows = (statistics: Matches) => {
    const matches = parts.map(({ test: predicate }) =>
      predicate.kind === 'keys' ? estimateMatches(statistics, predicate) : 0,
    )
    const walked = Math.min(...matches) / MATCHES_A_PROBE
    return walked < FEWEST_PROBES ? 0 : Math.min(Math.round(walked), MOST_PROBES)
  }
  return { probe, walk: { rows, test: probe } }
}

/** A key of a chain is held by all that refers to one target, one of `_has` by one row. */
function estimateFanOut(
  isChain: boolean,
  parts: readonly Side[],
  statistics: KeyStatistics,
): FanOut {
  const ends = parts.map(({ inner }) => [inner.project, typeNumber(inner.type)] as const)
  if (isChain) {
    const targets = ends.reduce((sum, end) => sum + statistics.typeRows(...end), 0)
    return { matchingRows: (rows) => Math.max(1, rows / Math.max(targets, 1)) }
  }
  const isCounted = parts.every(({ test: predicate }) => predicate.kind === 'keys')
  const isKnown = isCounted && ends.every((end) => statistics.knows(...end))
  if (isKnown || parts.some(({ test: predicate }) => predicate.kind === 'join'))
    return { matchingRows: () => 1 }
  const isMany = (bind: Bind) => {
    const rows = parts.map(({ inner, test: predicate }) => `(${rowsSql(inner, predicate, bind)})`)
    const most = bind(MANY_MATCHES, 'int')
    return `(select count(*) from (${rows.join(' union all ')} limit ${most} + 1) m) > ${most}`
  }
  return { matchingRows: () => 1, walk: { isMany, rows: MANY_MATCHES / MATCHES_A_PROBE } }
}

/** Rows of the other side up to which they are not many. */
const MANY_MATCHES = 1000

/** For a policy: most rows of a type hold one of the keys, so rows are walked in order before they are looked for. */
function policyBounds(
  isChain: boolean,
  parts: readonly Side[],
): Pick<JoinPredicate, 'probe' | 'walk' | 'reach'> {
  const probe = (bind: Bind) =>
    `(${parts.map((part) => probeSql(isChain, part, bind)).join(' or ')})`
  const isLight = isChain && parts.every(isBySelf)
  if (!isLight) return { probe, walk: { rows: () => POLICY_WALK } }
  const share = (statistics: KeyStatistics) =>
    Math.min(
      ...parts.map(({ inner: { project, type, visible }, test: predicate }) =>
        estimateSelectivity(statistics, { project, number: typeNumber(type) }, [
          ...visible,
          predicate,
        ]),
      ),
    )
  const [only, ...others] = parts
  const targets =
    only === undefined || others.length > 0
      ? {}
      : { targets: (bind: Bind) => targetsSql(only, bind) }
  const isOneWay = parts.every(({ inner, test: predicate }) =>
    widestReadScope([...inner.visible, predicate]),
  )
  // Few are let through: what refers to them is looked for at once.
  const isRare = (statistics: Matches) =>
    parts.every(({ inner, test: predicate }) =>
      [...inner.visible, predicate].some(
        (one) => one.kind === 'keys' && estimateMatches(statistics, one) === 0,
      ),
    )
  const rows = (statistics: Matches) => (isRare(statistics) ? 0 : MOST_PROBES)
  return {
    probe,
    walk: { rows, test: probe, share, ...targets },
    reach: isOneWay ? 'beside' : undefined,
  }
}

/** A probe costs as much as to read so many rows of the other side. */
const MATCHES_A_PROBE = 8
/** More than twice a page. */
const FEWEST_PROBES = 50
const MOST_PROBES = 500
/** Rows that are tested for keys found once. */
const POLICY_WALK = 2000

/** `subject._id=x` says what `subject=x` says. */
function referenceTest(
  scope: SearchScope,
  join: Join,
  testOf: CompilePredicate,
): Predicate | undefined {
  if (join.kind !== 'chain' || isCanonicalParameter(scope.type, join.code, scope.own))
    return undefined
  const values: string[] = []
  for (const { type, criterion } of join.ends) {
    if (!isCondition(criterion) || criterion.code !== '_id' || criterion.modifier !== undefined) {
      return undefined
    }
    values.push(...criterion.values.map((id) => `${type}/${id}`))
  }
  const { code } = join
  return testOf(scope, { code, type: 'reference', modifier: undefined, values })
}

interface Link {
  readonly constant: bigint
  /** The target is found by its url, not by its id. */
  readonly isCanonical: boolean
}

/** From references of `source` to what identifies a `target`, and back. */
function joinLinks(
  { keys, project, own }: SearchScope,
  source: string,
  code: string,
  target: string,
): readonly Link[] {
  const types = plannedParameter(source, code, own)?.types
  if (types === undefined) throw badRequest(`Unknown search parameter: ${code}`, code)
  const p = keys.param(project, source, code)
  const by = (identity: string) => p ^ keys.param(project, target, identity)
  const links: Link[] = []
  const isCanonical = isCanonicalParameter(source, code, own)
  if (!isCanonical || types.includes('Reference')) {
    links.push({ constant: by('_self'), isCanonical: false })
  }
  if (isCanonical) links.push({ constant: by(CANONICAL_KEY), isCanonical })
  return links
}

/** The other end of a join, and how its rows are found. */
interface Side {
  readonly link: Link
  readonly inner: SearchScope
  readonly test: Predicate
  /** True where most of its rows match. */
  readonly isCommon?: boolean
  /** For a List: from what it refers to, to what it has removed. */
  readonly removed: bigint | undefined
}

function removedConstant({ keys, project, type }: SearchScope, code: string): bigint {
  return keys.param(project, type, code) ^ keys.param(project, type, REMOVED_KEY)
}

/** A chain starts from what its target is, `_has` from all that its source refers to. */
function keysSql(
  isChain: boolean,
  { link, inner, test: predicate, removed }: Side,
  bind: Bind,
): string {
  const c = bind(link.constant, 'bigint')
  const rows = rowsSql(inner, predicate, bind)
  if (isChain && !link.isCanonical) return `select r.keys[1] # ${c} from (${rows}) r`
  if (removed !== undefined) {
    return `select x # ${c} from (${rows}) r cross join lateral (select unnest(r.keys[2:r.nref])
      except select unnest(r.keys[r.nref + 1:]) # ${bind(removed, 'bigint')}) i(x)`
  }
  return `select x # ${c} from (${rows}) r cross join unnest(r.keys[2:r.nref]) x`
}

function rowsSql(inner: SearchScope, predicate: Predicate, bind: Bind): string {
  const where = (predicates: readonly Predicate[], isHeld = false) =>
    `select r.keys, r.nref from resource r where ${whereSql(inner, predicates, bind, isHeld)}`
  if (predicate.kind === 'date' && predicate.begins !== undefined) {
    const { project, type } = inner
    const order = { column: 'd_lo', descending: true } as const
    const typeNumbers = [typeNumber(type)]
    const walked = { project, typeNumbers, predicates: [predicate], order, after: undefined }
    const tested = [...inner.visible, predicate].map((one) => `(${oneRowSql(one, bind)}) is true`)
    return `select r.keys, r.nref from (${walkSql(walked, undefined, bind)}) r
      where ${tested.join(' and ')}`
  }
  if (predicate.kind === 'ids' && predicate.hasStablePlan === true) {
    // As an array they are looked up, where a subselect may seem to be worth a look at all rows.
    return where([{ kind: 'narrow', sql: (b) => alternativeSql(predicate, b) }])
  }
  if (predicate.kind !== 'join') return where([predicate])
  const keys = '(select k from j)'
  const found = (overlap: string) => `${where([], true)} and ${overlap}`
  const { few, many } = heldRows(keys, found, `${where([])} and ${predicate.check(keys, true)}`)
  return `with j as materialized (select ${predicate.keys(bind)} as k) ${few} union all ${many}`
}

/** Types of which an index holds the self keys (resource_self). */
const BY_SELF = [112, 51, 125, 117, 118, 109, 79, 20, 65, 55, 37, 41]
/** In its words. */
const HAS_SELF = `(r.type in (${BY_SELF.join(', ')})) is true`

function isBySelf({ link, inner }: Pick<Side, 'link' | 'inner'>): boolean {
  return !link.isCanonical && BY_SELF.includes(typeNumber(inner.type))
}

/** Finds a target by its self key. */
function selfSql(inner: SearchScope, predicate: Predicate, bind: Bind): string {
  const tests = [...inner.visible, predicate].map((one) => oneRowSql(one, bind))
  const own = `(r.project = ${bind(inner.project, 'int')}) is true`
  return `${HAS_SELF} and (r.type = ${typeNumber(inner.type)}) is true and ${[own, ...tests].join(' and ')}`
}

/**
 * Rows that follow each other are often about the same: as a join, unlike in an `exists`, PostgreSQL
 * remembers what it has found. Measured: 144 instead of 1,091 buffers for a page of 90 rows walked.
 */
function targetsSql({ link, inner, test: predicate }: Side, bind: Bind): string {
  return `cross join unnest(r.keys[2:r.nref]) x join (
    select r.keys[1] as self from resource r where ${selfSql(inner, predicate, bind)}) t
    on t.self = x # ${bind(link.constant, 'bigint')}`
}

/** Whether a row of the source refers to this one, or this one (of a chain) to a target. */
function probeSql(isChain: boolean, side: Side, bind: Bind): string {
  const { link, inner, test: predicate, removed } = side
  const c = bind(link.constant, 'bigint')
  if (isChain && isBySelf(side)) {
    return `exists (select 1 from unnest(r.keys[2:r.nref]) x cross join lateral (
      select 1 from resource r where r.keys[1] = x # ${c} and ${selfSql(inner, predicate, bind)} limit 1) s)`
  }
  const own = isChain
    ? `select x # ${c} from unnest(r.keys[2:r.nref]) x`
    : link.isCanonical
      ? `select x # ${c} from unnest(r.keys[1:r.nref]) x`
      : `select r.keys[1] # ${c}`
  const kept =
    removed === undefined ? '' : ` and not r.keys @> array[o.k # ${bind(removed, 'bigint')}]`
  // To look for a common key in the index as well takes longer than to test the few rows of a reference.
  const tested = side.isCommon
    ? `${whereSql(inner, [], bind, true)} and ${predicateSql(predicate, bind, true)}`
    : whereSql(inner, [predicate], bind, true)
  return `exists (select 1 from (${own}) o(k) cross join lateral (
    select 1 from resource r where r.keys @> array[o.k]${kept} and ${tested} limit 1) s)`
}
