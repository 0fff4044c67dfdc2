/** Tests on a row of `resource r`: as data that a plan weighs, and as SQL. */
import { typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Bind } from '../../postgres/statement.ts'
import { isCanonicalParameter, plannedParameter } from '../../store/index/index-plan.ts'
import { type Keys, keysLiteral } from '../../store/index/keys.ts'
import type { KeyStatistics } from '../../store/index/statistics.ts'
import { type Criterion, isCondition, leavesOf, testedCodes } from '../language/search-request.ts'

export type Predicate =
  /** It holds one of the keys. */
  | KeysPredicate
  /** Its id is among those of a subselect on a side table. */
  | IdsPredicate
  | JoinPredicate
  /** `narrow`: found by an index of its own; `date`: a range of the main date; else a mere filter. */
  | {
      readonly kind: 'narrow' | 'date' | 'filter'
      readonly sql: (bind: Bind) => string
      /** The same for few rows. */
      readonly few?: (bind: Bind) => string
      /** The range of a column of the order that all matches are in. */
      readonly within?: TimeRange
      /** For a date: between what nearly all matches begin; absent where that is not bounded. */
      readonly begins?: TimeRange
      /** Looks beyond the row: worth asking only of rows that may be on the page. */
      readonly isCostly?: boolean
      /** The scope of `few`; absent: whatever its values lead to. */
      readonly reach?: ReadScope | undefined
      /** The tests that it says in one. */
      readonly of?: readonly Predicate[]
      /** Its opposite. */
      readonly none?: KeysPredicate
    }

/** A range of a time, bounds included, in epoch ms. */
export interface TimeRange {
  readonly column: 'lu' | 'd_lo'
  readonly from: number
  readonly to: number
}

export interface KeysPredicate {
  readonly kind: 'keys'
  readonly any: readonly bigint[]
  /** They are of identifiers: few rows hold one, also where no statistics say so. */
  readonly isIdentifying?: boolean
}

export interface IdsPredicate {
  readonly kind: 'ids'
  readonly ids: (bind: Bind) => string
  /** The same in fewer words, for a row at hand: the ranges of the index that `ids` reads are no help then. */
  readonly few?: (bind: Bind) => string
  /** About how many ids there are at most; absent: nobody knows. */
  readonly expected?: (statistics: Pick<Matches, 'startingWith'>) => number
  /** Read by the same indexes whatever is looked for. */
  readonly hasStablePlan?: boolean
}

/** It holds one of the keys that the other side of a reference gives, or a dictionary. */
export interface JoinPredicate {
  readonly kind: 'join'
  /** One bigint[] of those keys; more than allowed is an error. */
  readonly keys: (bind: Bind) => string
  /** The same keys, some of them twice, as a subselect that is worth a try to its first ones. */
  readonly some?: (bind: Bind) => string
  /** Looks the row up in the keys, given as a bigint[], or `isNamed` by the name of one; for many rows. */
  readonly check: (keys: string, isNamed: boolean) => string
  /** Tests this row alone; for few rows, where the keys may be many. */
  readonly probe?: (bind: Bind) => string
  /** Both sides are read by the same indexes whatever is looked for. */
  readonly hasStablePlan?: boolean
  /** A walk that is worth a try before the keys are looked for, which may be many or held by many rows. */
  readonly walk?: JoinWalk
  /** The same where the statistics say how to look rows up; absent: in one way. */
  readonly withStatistics?: (statistics: KeyStatistics) => JoinPredicate
  /** Says what to do where the keys may be many; absent: they are few, or `walk` says it. */
  readonly fanOut?: (statistics: KeyStatistics) => FanOut
  /** The scope of `probe`; absent: whatever its values lead to. */
  readonly reach?: ReadScope | undefined
}

export interface FanOut {
  /** Rows of the searched type, of so many, that hold one of the keys. */
  readonly matchingRows: (rows: number) => number
  /** Counts the other side, to a bound, before its keys are asked for; with the rows to walk if it is not few. */
  readonly walk?: { readonly isMany: (bind: Bind) => string; readonly rows: number }
}

/** How far a test looks: at the row itself, or at rows beside it, each found by one key or id that the row holds. */
type ReadScope = 'row' | 'beside'

interface JoinWalk {
  /** How far; 0 is not worth it. */
  readonly rows: (statistics: Matches) => number
  /** Tests one row; without it, whether the row holds one of the keys. */
  readonly test?: (bind: Bind) => string
  /** The share of walked rows that pass, if they are spread evenly. */
  readonly share?: (statistics: KeyStatistics) => number
  /** `test` as what `r` is joined with, once for each target that lets it through. */
  readonly targets?: (bind: Bind) => string
}

/** Statistics of keys and strings. */
export type Matches = Pick<KeyStatistics, 'matches' | 'startingWith'>

// Which tests ask the same of every row, so that one plan serves whatever is looked for.

/** Undefined: it reads whatever its values lead to. */
export function predicateReadScope(predicate: Predicate): ReadScope | undefined {
  if (predicate.kind === 'keys' || predicate.kind === 'date') return 'row'
  if (predicate.kind === 'ids') return predicate.hasStablePlan ? 'beside' : undefined
  return predicate.reach
}

/** True when it is read by the same indexes whatever it looks for. */
export function hasStablePlan(predicate: Predicate): boolean {
  if ((predicate.kind === 'ids' || predicate.kind === 'join') && predicate.hasStablePlan === true)
    return true
  return predicateReadScope(predicate) !== undefined
}

/** The widest scope of several tests. */
export function widestReadScope(predicates: readonly Predicate[]): ReadScope | undefined {
  const all = predicates.map(predicateReadScope)
  if (all.includes(undefined)) return undefined
  return all.includes('beside') ? 'beside' : 'row'
}

/** The parameters of `type` that a criterion tells resources apart by: `url`, too, for references by canonical. */
export function codesRead(
  type: string,
  criterion: Criterion,
  own: OwnParameters | undefined,
): readonly string[] {
  const readsUrl = leavesOf(criterion).some(
    (leaf) =>
      !isCondition(leaf) &&
      leaf.kind === 'has' &&
      leaf.ends.some((end) => isCanonicalParameter(end.type, leaf.code, own)),
  )
  return [...testedCodes(type, criterion), ...(readsUrl ? ['url'] : [])]
}

/** The rows that are searched, as one Principal sees them. */
export interface SearchScope {
  readonly keys: Keys
  readonly project: number
  readonly type: string
  /** Search parameters of the Principal's Project; in others nothing is indexed by them. */
  readonly own: OwnParameters | undefined
  /** UCUM codes in the data of the project, for quantities with a unit; empty when none is asked for. */
  readonly units: readonly string[]
  /** The tests for visible rows: part of every statement that reads such rows. */
  readonly visible: readonly Predicate[]
  /**
   * The other end of a join, whose rows `codes` tell apart; undefined for a type the Principal may not
   * search. Errors: 403 for a hidden one.
   */
  readonly enter: (type: string, codes: readonly string[]) => SearchScope | undefined
  /** All rows have what this version indexes; absent: older ones may lack keys by which they were found. */
  readonly isIndexed?: boolean | undefined
  /** Its tests are a policy's: as many resources as there are may be at the other end of a join. */
  readonly isPolicy?: true
}

/** `forced` keeps a test for keys from becoming an index condition. */
export function predicateSql(predicate: Predicate, bind: Bind, forced = false): string {
  if (predicate.kind === 'ids') return `r.id in (${predicate.ids(bind)})`
  if (predicate.kind === 'join') return predicate.check(predicate.keys(bind), false)
  if (predicate.kind !== 'keys') return predicate.sql(bind)
  const [first] = predicate.any
  // `@>` of an empty array would match every row, `&&` of one matches none.
  const held =
    first !== undefined && predicate.any.length === 1
      ? `r.keys @> array[${bind(first, 'bigint')}]`
      : `r.keys && ${bind(keysLiteral(predicate.any), 'bigint[]')}`
  return forced ? `(${held}) is true` : held
}

/** Tests that find rows together: keys that all must be held are one look into their index instead of several. */
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

/** A row of a side table belongs to one of the parameters; one alone bounds an index best. */
export function parameterSql(alias: string, ps: readonly bigint[], bind: Bind): string {
  const [first] = ps
  if (first !== undefined && ps.length === 1) return `${alias}.p = ${bind(first, 'bigint')}`
  return `${alias}.p = any(${bind(keysLiteral(ps), 'bigint[]')})`
}

/** As a test of rows that another test has found. */
export function fewSql(predicate: Predicate, bind: Bind): string {
  if (predicate.kind === 'filter' && predicate.few !== undefined) return predicate.few(bind)
  if (predicate.kind !== 'join') return predicateSql(predicate, bind)
  return predicate.probe?.(bind) ?? predicate.check(predicate.keys(bind), false)
}

/** The side table is asked for this row alone; `offset 0` keeps PostgreSQL from reading all of it. */
export function probeSql({ ids, few = ids }: IdsPredicate, bind: Bind): string {
  return `exists (select 1 from (${few(bind)}) x(id) where x.id = r.id offset 0)`
}

/** Tests a row that is found already, whatever its keys and ids say of others. */
export function oneRowSql(predicate: Predicate, bind: Bind): string {
  if (predicate.kind === 'ids') return probeSql(predicate, bind)
  return predicate.kind === 'keys' ? predicateSql(predicate, bind, true) : fewSql(predicate, bind)
}

/** True when `key` is among the keys. Not as a condition, which PostgreSQL would make a join a row. */
export function isHeldSql(key: string, keys: string): string {
  return `(${key} in (select unnest(${keys}))) is true`
}

/**
 * True when the row holds one of the keys. Where they have a name, which costs nothing to say again, the first references
 * are looked up one by one: to unnest them takes five times as long.
 */
export function holdsSql(keys: string, isNamed: boolean): string {
  const from = (first: number) =>
    `exists (select 1 from unnest(r.keys[${first}:r.nref]) x where ${isHeldSql('x', keys)})`
  if (!isNamed) return from(1)
  const each = FIRST_REFERENCES.map((place) => isHeldSql(`r.keys[${place}]`, keys))
  const rest = `(r.nref > ${FIRST_REFERENCES.length + 1} and ${from(FIRST_REFERENCES.length + 2)})`
  // PostgreSQL makes a table of the keys for each place.
  return `case when cardinality(${keys}) > ${MANY_KEYS} then ${from(1)}
    else ${[...each, rest].join(' or ')} end`
}

/** Places in `keys` behind the row's own. */
const FIRST_REFERENCES = [2, 3, 4]
const MANY_KEYS = 50_000

/**
 * Measured: a probe a key reads the pending list of the index each time (0.4 ms when it is full), an
 * overlap with many keys costs their number for each row it finds; so some at a time.
 */
export const CHUNK = 64
/** Above this the keys of a join are looked up row by row, not searched for. */
const FEW_KEYS = 200

/**
 * Rows that hold one of `keys`: only when the statement runs is known how many keys there are, so it
 * holds both ways, `found` for few of them and `walked` for many. `found` may repeat a row.
 */
export function heldRows(
  keys: string,
  found: (overlap: string) => string,
  walked: string,
): { readonly few: string; readonly many: string } {
  const overlap = `r.keys && ${keys}[s.start:s.start + ${CHUNK - 1}]`
  return {
    few: `select f.* from generate_series(1, cardinality(${keys}), ${CHUNK}) s(start)
      cross join lateral (${found(overlap)} offset 0) f where cardinality(${keys}) <= ${FEW_KEYS}`,
    many: `select * from (${walked}) b where cardinality(${keys}) > ${FEW_KEYS}`,
  }
}

/** In a group an array of ids can be a condition of an index, a subselect cannot. */
export function alternativeSql(predicate: Predicate, bind: Bind): string {
  return predicate.kind === 'ids'
    ? `r.id = any(array(${predicate.ids(bind)}))`
    : predicateSql(predicate, bind)
}

/** Rows of one type that are visible and fulfil the tests; `isHeld`: and hold a key that is looked for. */
export function whereSql(
  { project, type, visible }: SearchScope,
  predicates: readonly Predicate[],
  bind: Bind,
  isHeld = false,
): string {
  const all = [...visible, ...predicates]
  return [
    ...scopeSql(project, [typeNumber(type)], bind, isHeld || isByKeys(all)),
    ...all.map((predicate) => fewSql(predicate, bind)),
  ].join(' and ')
}

/** Found by keys and by nothing else that has an index. */
export function isByKeys(predicates: readonly Predicate[]): boolean {
  return (
    predicates.some(({ kind }) => kind === 'keys') &&
    !predicates.some(({ kind }) => kind === 'ids' || kind === 'narrow')
  )
}

/**
 * Narrows rows to a Project and types. Keys imply both: where rows are found by them, the words here
 * are such that no index serves them, or PostgreSQL would read every row of the type beside the keys.
 */
export function scopeSql(
  project: number,
  types: readonly number[],
  bind: Bind,
  isByKeys: boolean,
): string[] {
  const [first, ...others] = types
  const tests = [
    `r.project = ${bind(project, 'int')}`,
    others.length === 0
      ? `r.type = ${bind(first, 'smallint')}`
      : `r.type = any(${bind(types, 'smallint[]')})`,
  ]
  return isByKeys ? tests.map((test) => `(${test}) is true`) : tests
}

export function filter(sql: (bind: Bind) => string, reach?: ReadScope): Predicate {
  return { kind: 'filter', sql, reach }
}

/** The rows that lack a parameter, by a key of their own; undefined where only the walk can tell. */
export function absentPredicate(
  { keys, type, own, isIndexed }: SearchScope,
  ps: readonly bigint[],
  code: string,
): KeysPredicate | undefined {
  const [p, another] = ps
  if (isIndexed !== true) return undefined
  // Several stored parameters are absent where all of them are.
  if (p === undefined || another !== undefined) return undefined
  if (plannedParameter(type, code, own)?.isUsual !== true) return undefined
  return { kind: 'keys', any: [keys.absent(p)] }
}

/** Reads the value of `:missing`. */
export function isMissing([value]: readonly string[]): boolean {
  return value === 'true'
}

/** `:missing` of a parameter whose values are rows of a side table. */
export function missingTest(
  table: 'idx_string' | 'idx_range',
  { project }: SearchScope,
  ps: readonly bigint[],
  values: readonly string[],
): Predicate {
  return filter((bind) => {
    const exists = `exists (select 1 from ${table} s where s.id = r.id
      and s.project = ${bind(project, 'int')} and ${parameterSql('s', ps, bind)})`
    return isMissing(values) ? `not ${exists}` : exists
  })
}
