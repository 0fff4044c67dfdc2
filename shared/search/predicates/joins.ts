/**
 * Chains and `_has`. A reference key is P ^ R and the self key of its target is P' ^ R, so XOR with a constant
 * converts one side to the other in SQL. Unrelated keys become random 64-bit numbers and match nothing. Each end is
 * read with the Principal's visibility.
 */

import { badRequest, notSupported } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Bind } from '../../postgres/statement.ts'
import { CANONICAL_KEY } from '../../store/index/derivation.ts'
import { isCanonicalParameter, plannedParameter } from '../../store/index/index-plan.ts'
import { REMOVED_KEY } from '../../store/index/keys.ts'
import type { KeyStatistics } from '../../store/index/statistics.ts'
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
  type SearchScope,
  whereSql,
  widestReadScope,
} from './predicate.ts'
import { estimateMatches, estimateSelectivity } from './query.ts'
import { walkSql } from './walk-sql.ts'

/** More keys on one side of a join are 400 too-costly. For `_has`, all references of a row are keys: an Observation has four. */
const MAX_KEYS = { chain: 50_000, has: 200_000 } as const
/** Just below the largest PostgreSQL int. */
const UNLIMITED = 2_000_000_000

type CompilePredicate = (scope: SearchScope, criterion: Criterion) => Predicate

/** Errors: 400 for a join between the registry and a Project, which only searches resolve beforehand. */
export function joinPredicate(
  scope: SearchScope,
  join: Join,
  compile: CompilePredicate,
): Predicate {
  const byId = chainToIdPredicate(scope, join, compile)
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
    const predicate = compile(inner, criterion)
    const links =
      join.kind === 'chain'
        ? joinLinks(scope, scope.type, join.code, inner.type)
        : joinLinks(scope, inner.type, join.code, scope.type)
    const removed = join.isList === true ? removedConstant(inner, join.code) : undefined
    return links.map((link): Side => ({ link, inner, test: predicate, removed }))
  })
  const { kind } = join
  const bySelf = kind === 'has' && parts.every(({ link }) => !link.isCanonical)
  const some = (bind: Bind) => parts.map((part) => keysSql(kind, part, bind)).join(' union all ')
  const predicate: JoinPredicate = {
    kind: 'join',
    ...(scope.isPolicy ? {} : { some }),
    keys: (bind, mostKeys = MAX_KEYS[join.kind]) => {
      const found = some(bind)
      const most = bind(scope.isPolicy ? UNLIMITED : mostKeys, 'int')
      return `(select search_cap(array(
        select distinct k from (${found}) j(k) limit ${most} + 1), ${most}))`
    },
    check: (keys, isNamed) => (bySelf ? isHeldSql('r.keys[1]', keys) : holdsSql(keys, isNamed)),
    fanOut: (statistics) => estimateFanOut(kind, parts, statistics),
    ...(kind === 'chain' ? {} : probing(parts)),
    ...(scope.isPolicy ? policyBounds(kind, parts) : {}),
    hasStablePlan: parts.every(({ inner, test: predicate }) =>
      [...inner.visible, predicate].every(hasStablePlan),
    ),
  }
  if (kind === 'chain' || scope.isPolicy) return predicate
  const informed = (statistics: KeyStatistics): JoinPredicate => ({
    ...predicate,
    ...probing(parts.map((part) => ({ ...part, isCommon: isCommon(part, statistics) }))),
  })
  return { ...predicate, withStatistics: informed }
}

/** True when most rows of the other side match, so any referring row will do. */
function isCommon(
  { inner: { project, type }, test: predicate }: Side,
  statistics: KeyStatistics,
): boolean {
  const number = typeNumber(type)
  if (predicate.kind !== 'keys' || !statistics.knows(project, number)) return false
  return estimateMatches(statistics, predicate) >= statistics.typeRows(project, number) / 4
}

/** For `_has`: when most rows of the other side match, a short walk fills the page. */
function probing(parts: readonly Side[]): Pick<JoinPredicate, 'probe' | 'walk'> {
  const probe = (bind: Bind) =>
    `(${parts.map((part) => probeSideSql('has', part, bind)).join(' or ')})`
  const rows = (statistics: Matches) => {
    const matches = parts.map(({ test: predicate }) =>
      predicate.kind === 'keys' ? estimateMatches(statistics, predicate) : 0,
    )
    const fewest = Math.min(...matches)
    if (fewest > TOO_MANY_MATCHES) return LAST_PROBES
    const walked = fewest / MATCHES_A_PROBE
    return walked < FEWEST_PROBES ? 0 : Math.min(Math.round(walked), MOST_PROBES)
  }
  return { probe, walk: { rows, test: probe } }
}

/** A key of a chain matches all rows that refer to one target, a key of `_has` one row. */
function estimateFanOut(
  kind: Join['kind'],
  parts: readonly Side[],
  statistics: KeyStatistics,
): FanOut {
  const ends = parts.map(({ inner }) => [inner.project, typeNumber(inner.type)] as const)
  const counting = (matches: number) => (bind: Bind) => {
    const rows = parts.map(({ inner, test: predicate }) => `(${rowsSql(inner, predicate, bind)})`)
    const most = bind(matches, 'int')
    return `(select count(*) from (${rows.join(' union all ')} limit ${most} + 1) m) > ${most}`
  }
  if (kind === 'chain') {
    const targets = ends.reduce((sum, end) => sum + statistics.typeRows(...end), 0)
    const matchingRows = (rows: number) => Math.max(1, rows / Math.max(targets, 1))
    const isProbed = parts.every((part) => isBySelf(part) && part.test.kind !== 'join')
    if (!isProbed || targets <= FEW_TARGETS) return { matchingRows }
    const test = (bind: Bind) =>
      `(${parts.map((part) => probeSideSql(kind, part, bind)).join(' or ')})`
    return { matchingRows, probes: { targets, isMany: counting, test } }
  }
  const isCounted = parts.every(({ test: predicate }) => predicate.kind === 'keys')
  const isKnown = isCounted && ends.every((end) => statistics.knows(...end))
  if (isKnown || parts.some(({ test: predicate }) => predicate.kind === 'join'))
    return { matchingRows: () => 1 }
  const walk = { isMany: counting(MANY_MATCHES), rows: MOST_PROBES }
  return { matchingRows: () => 1, walk }
}

/** More matching rows on the other side count as many. */
const MANY_MATCHES = 1000
/** Chains to fewer targets read the keys of all that match at once. */
const FEW_TARGETS = 10_000

/** For a policy: most rows of a type hold one of the keys, so rows are walked in order first. */
function policyBounds(
  kind: Join['kind'],
  parts: readonly Side[],
): Pick<JoinPredicate, 'probe' | 'walk' | 'reach'> {
  const probe = (bind: Bind) =>
    `(${parts.map((part) => probeSideSql(kind, part, bind)).join(' or ')})`
  const isLight = kind === 'chain' && parts.every(isBySelf)
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
  // Few matches on the other side: their keys are looked up at once.
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

/** Rows of the other side that cost as much to read as one probe. */
const MATCHES_A_PROBE = 8
const FEWEST_PROBES = 50
const MOST_PROBES = 500
/** So many rows hold more keys than MAX_KEYS.has: after the probes, the search is too costly. */
const TOO_MANY_MATCHES = 50_000
const LAST_PROBES = 4000
/** Rows tested against keys that are computed once. */
const POLICY_WALK = 2000

function chainToIdPredicate(
  scope: SearchScope,
  join: Join,
  compile: CompilePredicate,
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
  return compile(scope, { code, type: 'reference', modifier: undefined, values })
}

interface Link {
  readonly constant: bigint
  readonly isCanonical: boolean
}

/** Returns the links from references of `source` to the identity of a `target`, and back. */
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

interface Side {
  readonly link: Link
  readonly inner: SearchScope
  readonly test: Predicate
  /** True when most of its rows match. */
  readonly isCommon?: boolean
  /** For a List: maps its item references to its deleted items. */
  readonly removed: bigint | undefined
}

function removedConstant({ keys, project, type }: SearchScope, code: string): bigint {
  return keys.param(project, type, code) ^ keys.param(project, type, REMOVED_KEY)
}

/** A chain starts from the identity of its target, `_has` from all references of its source. */
function keysSql(
  kind: Join['kind'],
  { link, inner, test: predicate, removed }: Side,
  bind: Bind,
): string {
  const c = bind(link.constant, 'bigint')
  const rows = rowsSql(inner, predicate, bind)
  if (kind === 'chain' && !link.isCanonical) return `select r.keys[1] # ${c} from (${rows}) r`
  if (removed !== undefined) {
    return `select x # ${c} from (${rows}) r cross join lateral (select unnest(r.keys[2:r.nref])
      except select unnest(r.keys[r.nref + 1:]) # ${bind(removed, 'bigint')}) i(x)`
  }
  return `select x # ${c} from (${rows}) r cross join unnest(r.keys[2:r.nref]) x`
}

function rowsSql(inner: SearchScope, predicate: Predicate, bind: Bind): string {
  const where = (predicates: readonly Predicate[], isHeld = false) =>
    `select r.keys, r.nref from resource r where ${whereSql(inner, predicates, bind, isHeld)}`
  if (predicate.kind === 'date' && predicate.within !== undefined) {
    const { project, type } = inner
    const order = { column: 'd_lo', descending: true } as const
    const typeNumbers = [typeNumber(type)]
    const walked = { project, typeNumbers, predicates: [predicate], order, after: undefined }
    const tested = [...inner.visible, predicate].map((one) => `(${oneRowSql(one, bind)}) is true`)
    return `select r.keys, r.nref from (${walkSql(walked, undefined, bind)}) r
      where ${tested.join(' and ')}`
  }
  if (predicate.kind === 'ids' && predicate.hasStablePlan === true) {
    // PostgreSQL looks up an array, but might scan all rows for a subselect.
    return where([{ kind: 'narrow', sql: (b) => alternativeSql(predicate, b) }])
  }
  if (predicate.kind !== 'join') return where([predicate])
  const keys = '(select k from j)'
  const found = (overlap: string) => `${where([], true)} and ${overlap}`
  const { few, many } = heldRows(keys, found, `${where([])} and ${predicate.check(keys, true)}`)
  return `with j as materialized (select ${predicate.keys(bind)} as k) ${few} union all ${many}`
}

/** Types whose self keys are indexed: those of the index resource_self, in its order. */
const BY_SELF = [
  'Patient',
  'Encounter',
  'RelatedPerson',
  'Practitioner',
  'PractitionerRole',
  'Organization',
  'Location',
  'CareTeam',
  'Group',
  'EpisodeOfCare',
  'Coverage',
  'Device',
].map(typeNumber)
const HAS_SELF = `(r.type in (${BY_SELF.join(', ')})) is true`

function isBySelf({ link, inner }: Pick<Side, 'link' | 'inner'>): boolean {
  return !link.isCanonical && BY_SELF.includes(typeNumber(inner.type))
}

function selfSql(inner: SearchScope, predicate: Predicate, bind: Bind): string {
  const tests = [...inner.visible, predicate].map((one) => oneRowSql(one, bind))
  const own = dialect.projectEquals('r', bind(inner.project, 'int'))
  return `${HAS_SELF} and (r.type = ${typeNumber(inner.type)}) is true and ${[own, ...tests].join(' and ')}`
}

/** A join instead of `exists`, because PostgreSQL memoizes its results and adjacent rows often share targets. */
function targetsSql({ link, inner, test: predicate }: Side, bind: Bind): string {
  return `cross join unnest(r.keys[2:r.nref]) x join (
    select r.keys[1] as self from resource r where ${selfSql(inner, predicate, bind)}) t
    on t.self = x # ${bind(link.constant, 'bigint')}`
}

function probeSideSql(kind: Join['kind'], side: Side, bind: Bind): string {
  const { link, inner, test: predicate, removed } = side
  const c = bind(link.constant, 'bigint')
  if (kind === 'chain' && isBySelf(side)) {
    return `exists (select 1 from unnest(r.keys[2:r.nref]) x cross join lateral (
      select 1 from resource r where r.keys[1] = x # ${c} and ${selfSql(inner, predicate, bind)} limit 1) s)`
  }
  const own =
    kind === 'chain'
      ? `select x # ${c} from unnest(r.keys[2:r.nref]) x`
      : link.isCanonical
        ? `select x # ${c} from unnest(r.keys[1:r.nref]) x`
        : `select r.keys[1] # ${c}`
  const kept =
    removed === undefined ? '' : ` and not r.keys @> array[o.k # ${bind(removed, 'bigint')}]`
  // Testing the few rows of a reference is faster than looking up a common key or all rows of a day.
  const isTested = side.isCommon || predicate.kind === 'date'
  const tested = isTested
    ? `${whereSql(inner, [], bind, true)} and (${oneRowSql(predicate, bind)}) is true`
    : whereSql(inner, [predicate], bind, true)
  return `exists (select 1 from (${own}) o(k) cross join lateral (
    select 1 from resource r where r.keys @> array[o.k]${kept} and ${tested} limit 1) s)`
}
