/** Predicates on a row of `resource r`: as data for the planner, and as SQL. */

import { typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, type Bind } from '../../postgres/statement.ts'
import { isCanonicalParameter, plannedParameter } from '../../store/index/index-plan.ts'
import type { Keys } from '../../store/index/keys.ts'
import type { KeyStatistics } from '../../store/index/statistics.ts'
import {
  type Condition,
  type Criterion,
  isCondition,
  listLeaves,
  testedCodes,
} from '../language/search-request.ts'

export type Predicate =
  | KeysPredicate
  | IdsPredicate
  | JoinPredicate
  /** `narrow`: has its own index; `date`: a range of the main date; otherwise a plain filter. */
  | {
      readonly kind: 'narrow' | 'date' | 'filter'
      readonly sql: (bind: Bind) => string
      /** Equivalent SQL for few rows. */
      readonly few?: (bind: Bind) => string
      /** Range of an order column that contains all matches; absent if unbounded. */
      readonly within?: TimeRange
      /** Reads other rows: use only on rows that may be on the page. */
      readonly isCostly?: boolean
      /** Scope of `few`; absent: depends on its values. */
      readonly reach?: ReadScope | undefined
      readonly of?: readonly Predicate[]
      readonly none?: KeysPredicate
    }

/** An inclusive time range, in epoch ms. */
export interface TimeRange {
  readonly column: 'lu' | 'd_lo'
  readonly from: number
  readonly to: number
  /** Matches that begin before `from`: they are longer than 25 hours, begin at `since` or later and end after `endsAfter`. */
  readonly long?: { readonly since: number; readonly endsAfter: number }
}

export interface KeysPredicate {
  readonly kind: 'keys'
  readonly any: readonly bigint[]
  /** Identifier keys: each matches few rows, even without statistics. */
  readonly isIdentifying?: boolean
}

export interface IdsPredicate {
  readonly kind: 'ids'
  readonly ids: (bind: Bind) => string
  /** Shorter SQL for a known row, where the index ranges of `ids` do not help. */
  readonly few?: (bind: Bind) => string
  /** Expected maximum number of ids; absent: unknown. */
  readonly expected?: (statistics: Pick<Matches, 'startingWith'>) => number
  readonly hasStablePlan?: boolean
}

/** The row holds one of the keys from the other side of a reference or from a dictionary. */
export interface JoinPredicate {
  readonly kind: 'join'
  /** Selects one bigint[] of keys; more than `most` are an error, except for a policy. */
  readonly keys: (bind: Bind, most?: number) => string
  /** Selects the keys one by one, possibly repeated, so that the first ones come early. */
  readonly some?: (bind: Bind) => string
  /** Tests a row against a bigint[], or against a named array if `isNamed`; for many rows. */
  readonly check: (keys: string, isNamed: boolean) => string
  /** Tests this row alone; for few rows, when there may be many keys. */
  readonly probe?: (bind: Bind) => string
  readonly hasStablePlan?: boolean
  /** A walk to try before the keys are looked up, which may be many or common. */
  readonly walk?: JoinWalk
  /** Returns a variant that depends on the statistics; absent: there is only one. */
  readonly withStatistics?: (statistics: KeyStatistics) => JoinPredicate
  /** Estimates the fan-out when there may be many keys; absent: few, or see `walk`. */
  readonly fanOut?: (statistics: KeyStatistics) => FanOut
  readonly reach?: ReadScope | undefined
}

export interface FanOut {
  /** Rows of the searched type that hold one of the keys, given its row count. */
  readonly matchingRows: (rows: number) => number
  /** Counts the other side, up to a bound, before its keys are read; `rows` are walked if there are many. */
  readonly walk?: { readonly isMany: (bind: Bind) => string; readonly rows: number }
  /** Tests walked rows one by one if more than `matches` of the targets match. */
  readonly probes?: {
    readonly targets: number
    readonly isMany: (matches: number) => (bind: Bind) => string
    readonly test: (bind: Bind) => string
  }
}

/** Reads the row alone, or also adjacent rows, each found by one key or id of the row. */
type ReadScope = 'row' | 'beside'

interface JoinWalk {
  /** How far; 0 is not worth it. */
  readonly rows: (statistics: Matches) => number
  /** Tests one row; absent: tests whether the row holds one of the keys. */
  readonly test?: (bind: Bind) => string
  /** Fraction of walked rows that pass, if evenly spread. */
  readonly share?: (statistics: KeyStatistics) => number
  /** `test` as a join with `r`, one row per matching target. */
  readonly targets?: (bind: Bind) => string
}

export type Matches = Pick<KeyStatistics, 'matches' | 'startingWith'>

// Stable plans: predicates that read the same indexes for any value

/** Returns undefined when the scope depends on the values. */
export function predicateReadScope(predicate: Predicate): ReadScope | undefined {
  if (predicate.kind === 'keys' || predicate.kind === 'date') return 'row'
  if (predicate.kind === 'ids') return predicate.hasStablePlan ? 'beside' : undefined
  return predicate.reach
}

export function hasStablePlan(predicate: Predicate): boolean {
  if ((predicate.kind === 'ids' || predicate.kind === 'join') && predicate.hasStablePlan === true)
    return true
  return predicateReadScope(predicate) !== undefined
}

export function widestReadScope(predicates: readonly Predicate[]): ReadScope | undefined {
  const all = predicates.map(predicateReadScope)
  if (all.includes(undefined)) return undefined
  return all.includes('beside') ? 'beside' : 'row'
}

/** Parameters of `type` that a criterion reads, including `url` for references by canonical. */
export function codesRead(
  type: string,
  criterion: Criterion,
  own: OwnParameters | undefined,
): readonly string[] {
  const readsUrl = listLeaves(criterion).some(
    (leaf) =>
      !isCondition(leaf) &&
      leaf.kind === 'has' &&
      leaf.ends.some((end) => isCanonicalParameter(end.type, leaf.code, own)),
  )
  return [...testedCodes(type, criterion), ...(readsUrl ? ['url'] : [])]
}

/** The rows of a search, as one Principal sees them. */
export interface SearchScope {
  readonly keys: Keys
  readonly project: number
  readonly type: string
  /** Search parameters of the Principal's Project; other Projects have no index for them. */
  readonly own: OwnParameters | undefined
  /** UCUM codes in the Project's data, for quantities with a unit; empty when not needed. */
  readonly units: readonly string[]
  /** Visibility predicates, part of every statement that reads these rows. */
  readonly visible: readonly Predicate[]
  /** Enters the far end of a join; undefined if the Principal may not search its type there. Errors: 403 if hidden. */
  readonly enter: (type: string, codes: readonly string[]) => SearchScope | undefined
  /** True when all rows have this version's index; absent: older rows may lack keys. */
  readonly isIndexed?: boolean | undefined
  /** The predicates belong to a policy: any number of resources may be at the other end of a join. */
  readonly isPolicy?: true
}

/** `forced` keeps a key predicate from becoming an index condition. */
export function predicateSql(predicate: Predicate, bind: Bind, forced = false): string {
  if (predicate.kind === 'ids') return `r.id in (${predicate.ids(bind)})`
  if (predicate.kind === 'join') return predicate.check(predicate.keys(bind), false)
  if (predicate.kind !== 'keys') return predicate.sql(bind)
  const [first] = predicate.any
  // `@>` with an empty array matches every row, `&&` matches none.
  const held =
    first !== undefined && predicate.any.length === 1
      ? `r.keys @> array[${bind(first, 'bigint')}]`
      : `r.keys && ${bind(arrayLiteral(predicate.any), 'bigint[]')}`
  return forced ? `(${held}) is true` : held
}

/** Combines predicates that find rows together: keys that must all be held are one index lookup. */
export function foundBySql(predicates: readonly Predicate[], bind: Bind): string[] {
  const isOne = (predicate: Predicate) => predicate.kind === 'keys' && predicate.any.length === 1
  const keys = predicates.flatMap((predicate) =>
    predicate.kind === 'keys' && isOne(predicate) ? predicate.any : [],
  )
  if (keys.length < 2) return predicates.map((predicate) => predicateSql(predicate, bind))
  const others = predicates
    .filter((predicate) => !isOne(predicate))
    .map((predicate) => predicateSql(predicate, bind))
  return [`r.keys @> array[${keys.map((key) => bind(key, 'bigint')).join(', ')}]`, ...others]
}

/** Restricts side table rows to the parameters; a single one bounds an index best. */
export function parameterSql(alias: string, ps: readonly bigint[], bind: Bind): string {
  const [first] = ps
  if (first !== undefined && ps.length === 1) return `${alias}.p = ${bind(first, 'bigint')}`
  return `${alias}.p = any(${bind(arrayLiteral(ps), 'bigint[]')})`
}

export function fewSql(predicate: Predicate, bind: Bind): string {
  if (predicate.kind === 'filter' && predicate.few !== undefined) return predicate.few(bind)
  if (predicate.kind !== 'join') return predicateSql(predicate, bind)
  return predicate.probe?.(bind) ?? predicate.check(predicate.keys(bind), false)
}

/** Probes the side table for this row alone; `offset 0` keeps PostgreSQL from reading all of it. */
export function probeSql({ ids, few = ids }: IdsPredicate, bind: Bind): string {
  return `exists (select 1 from (${few(bind)}) x(id) where x.id = r.id offset 0)`
}

/** Tests a row already found, without using its indexes. */
export function oneRowSql(predicate: Predicate, bind: Bind): string {
  if (predicate.kind === 'ids') return probeSql(predicate, bind)
  return predicate.kind === 'keys' ? predicateSql(predicate, bind, true) : fewSql(predicate, bind)
}

/** True when `key` is among the keys. Written so that PostgreSQL does not join once per row. */
export function isHeldSql(key: string, keys: string): string {
  return `(${key} in (select unnest(${keys}))) is true`
}

/** True when the row holds one of the keys. The first references are compared directly, faster than unnest. */
export function holdsSql(keys: string, isNamed: boolean): string {
  const from = (first: number) =>
    `exists (select 1 from unnest(r.keys[${first}:r.nref]) x where ${isHeldSql('x', keys)})`
  if (!isNamed) return from(1)
  const each = FIRST_REFERENCES.map((place) => isHeldSql(`r.keys[${place}]`, keys))
  const rest = `(r.nref > ${FIRST_REFERENCES.length + 1} and ${from(FIRST_REFERENCES.length + 2)})`
  // PostgreSQL builds one hash table of the keys per occurrence.
  return `case when cardinality(${keys}) > ${MANY_KEYS} then ${from(1)}
    else ${[...each, rest].join(' or ')} end`
}

/** Positions in `keys` after the row's own key. */
const FIRST_REFERENCES = [2, 3, 4]
const MANY_KEYS = 50_000

/** Keys per overlap query: many keys cost their number per found row, single probes reread the pending list. */
export const CHUNK = 64
/** With more keys, a join tests row by row. */
const FEW_KEYS = 200

/** Chooses at run time between `found` (few keys), which may repeat rows, and `walked` (many). */
export function heldRows(
  keys: string,
  found: (overlap: string) => string,
  walked: string,
  mostKeys = String(FEW_KEYS),
): { readonly few: string; readonly many: string } {
  const overlap = `r.keys && ${keys}[s.start:s.start + ${CHUNK - 1}]`
  return {
    few: `select f.* from generate_series(1, cardinality(${keys}), ${CHUNK}) s(start)
      cross join lateral (${found(overlap)} offset 0) f where cardinality(${keys}) <= ${mostKeys}`,
    many: `select * from (${walked}) b where cardinality(${keys}) > ${mostKeys}`,
  }
}

/** Within a group, an array of ids can be an index condition; a subselect cannot. */
export function alternativeSql(predicate: Predicate, bind: Bind): string {
  return predicate.kind === 'ids'
    ? `r.id = any(array(${predicate.ids(bind)}))`
    : predicateSql(predicate, bind)
}

/** Selects visible rows of one type that fulfil the predicates; `isHeld`: and hold a wanted key. */
export function whereSql(
  { project, type, visible }: SearchScope,
  predicates: readonly Predicate[],
  bind: Bind,
  isHeld: boolean,
): string {
  const all = [...visible, ...predicates]
  return [
    ...scopeSql(project, [typeNumber(type)], bind, isHeld || isByKeys(all)),
    ...all.map((predicate) => fewSql(predicate, bind)),
  ].join(' and ')
}

/** True when only keys have an index. */
export function isByKeys(predicates: readonly Predicate[]): boolean {
  return (
    predicates.some(({ kind }) => kind === 'keys') &&
    !predicates.some(({ kind }) => kind === 'ids' || kind === 'narrow')
  )
}

/** Restricts rows to a Project and types. For rows found by keys, written so that no index serves it. */
export function scopeSql(
  project: number,
  types: readonly number[],
  bind: Bind,
  isByKeys: boolean,
): string[] {
  const [first, ...others] = types
  const own = bind(project, 'int')
  const isOfType =
    others.length === 0
      ? `r.type = ${bind(first, 'smallint')}`
      : `r.type = any(${bind(types, 'smallint[]')})`
  return isByKeys
    ? [dialect.projectEquals('r', own), `(${isOfType}) is true`]
    : [`r.project = ${own}`, isOfType]
}

export function filter(sql: (bind: Bind) => string, reach?: ReadScope): Predicate {
  return { kind: 'filter', sql, reach }
}

/** Finds rows without a parameter by their absence key; undefined when only a walk can. */
export function absentPredicate(
  { keys, type, own, isIndexed }: SearchScope,
  ps: readonly bigint[],
  code: string,
): KeysPredicate | undefined {
  const [p, another] = ps
  if (isIndexed !== true) return undefined
  // With several stored parameters, a row must lack all of them.
  if (p === undefined || another !== undefined) return undefined
  if (plannedParameter(type, code, own)?.isUsual !== true) return undefined
  return { kind: 'keys', any: [keys.absent(p)] }
}

export function isMissing([value]: readonly string[]): boolean {
  return value === 'true'
}

/** `:missing` of values in a side table; by the absence key where one marks rows without a value. */
export function missingPredicate(
  table: 'idx_string' | 'idx_range',
  scope: SearchScope,
  ps: readonly bigint[],
  { code, values }: Pick<Condition, 'code' | 'values'>,
): Predicate {
  const absent = isMissing(values) ? absentPredicate(scope, ps, code) : undefined
  if (absent !== undefined) return absent
  return filter((bind) => {
    const exists = `exists (select 1 from ${table} s where s.id = r.id
      and s.project = ${bind(scope.project, 'int')} and ${parameterSql('s', ps, bind)})`
    return isMissing(values) ? `not ${exists}` : exists
  })
}
