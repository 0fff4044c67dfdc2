/** Tests on a row of `resource r`, as data that the driver can weigh and SQL can say. */

import { typeNumber } from '../../../fhir/definitions.ts'
import type { OwnParameters } from '../../../fhir/definitions-data.ts'
import { plannedParameter } from '../../index/index-plan.ts'
import { type Keys, keysLiteral } from '../../index/keys.ts'
import type { Bind } from '../../rows/side-rows.ts'
import type { IdsTest, KeysTest, Reach, Test } from './test.ts'

/** The rows that are searched, as one Principal sees them. */
export interface Scene {
  readonly keys: Keys
  readonly project: number
  readonly type: string
  /** Search parameters of the Principal's Project; in others nothing is indexed by them. */
  readonly own: OwnParameters | undefined
  /** UCUM codes in the data of the project, for quantities with a unit; empty when none is asked for. */
  readonly units: readonly string[]
  /** The tests for visible rows: part of every statement that reads such rows. */
  readonly visible: readonly Test[]
  /**
   * The other end of a join, whose rows `codes` tell apart; undefined for a type the Principal may not
   * search. Errors: 403 for a hidden one.
   */
  readonly enter: (type: string, codes: readonly string[]) => Scene | undefined
  /** All rows have what this version indexes; absent: older ones may lack keys by which they were found. */
  readonly isIndexed?: boolean | undefined
  /** Its tests are a policy's: as many resources as there are may be at the other end of a join. */
  readonly isPolicy?: true
}

/** `forced` keeps a test for keys from becoming an index condition. */
export function sqlOf(test: Test, bind: Bind, forced = false): string {
  if (test.kind === 'ids') return `r.id in (${test.ids(bind)})`
  if (test.kind === 'join') return test.check(test.keys(bind), false)
  if (test.kind !== 'keys') return test.sql(bind)
  const [first] = test.any
  // `@>` of an empty array would match every row, `&&` of one matches none.
  const held =
    first !== undefined && test.any.length === 1
      ? `r.keys @> array[${bind(first, 'bigint')}]`
      : `r.keys && ${bind(keysLiteral(test.any), 'bigint[]')}`
  return forced ? `(${held}) is true` : held
}

/** Tests that find rows together: keys that all must be held are one look into their index instead of several. */
export function foundBySql(tests: readonly Test[], bind: Bind): string[] {
  const isOne = (test: Test) => test.kind === 'keys' && test.any.length === 1
  const keys = tests.flatMap((test) => (test.kind === 'keys' && isOne(test) ? test.any : []))
  if (keys.length < 2) return tests.map((test) => sqlOf(test, bind))
  const others = tests.filter((test) => !isOne(test)).map((test) => sqlOf(test, bind))
  return [`r.keys @> array[${keys.map((key) => bind(key, 'bigint')).join(', ')}]`, ...others]
}

/** A row of a side table belongs to one of the parameters; one alone bounds an index best. */
export function parameterSql(alias: string, ps: readonly bigint[], bind: Bind): string {
  const [first] = ps
  if (first !== undefined && ps.length === 1) return `${alias}.p = ${bind(first, 'bigint')}`
  return `${alias}.p = any(${bind(keysLiteral(ps), 'bigint[]')})`
}

/** As a test of rows that another test has found. */
export function fewSql(test: Test, bind: Bind): string {
  if (test.kind === 'filter' && test.few !== undefined) return test.few(bind)
  if (test.kind !== 'join') return sqlOf(test, bind)
  return test.probe?.(bind) ?? test.check(test.keys(bind), false)
}

/** The side table is asked for this row alone; `offset 0` keeps PostgreSQL from reading all of it. */
export function probeSql({ ids, few = ids }: IdsTest, bind: Bind): string {
  return `exists (select 1 from (${few(bind)}) x(id) where x.id = r.id offset 0)`
}

/** Tests a row that is found already, whatever its keys and ids say of others. */
export function oneRowSql(test: Test, bind: Bind): string {
  if (test.kind === 'ids') return probeSql(test, bind)
  return test.kind === 'keys' ? sqlOf(test, bind, true) : fewSql(test, bind)
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
export function alternativeSql(test: Test, bind: Bind): string {
  return test.kind === 'ids' ? `r.id = any(array(${test.ids(bind)}))` : sqlOf(test, bind)
}

/** Rows of one type that are visible and fulfil the tests; `isHeld`: and hold a key that is looked for. */
export function whereSql(
  { project, type, visible }: Scene,
  tests: readonly Test[],
  bind: Bind,
  isHeld = false,
): string {
  const all = [...visible, ...tests]
  return [
    ...scopeSql(project, [typeNumber(type)], bind, isHeld || isByKeys(all)),
    ...all.map((test) => fewSql(test, bind)),
  ].join(' and ')
}

/** Found by keys and by nothing else that has an index. */
export function isByKeys(tests: readonly Test[]): boolean {
  return (
    tests.some(({ kind }) => kind === 'keys') &&
    !tests.some(({ kind }) => kind === 'ids' || kind === 'narrow')
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

export function filter(sql: (bind: Bind) => string, reach?: Reach): Test {
  return { kind: 'filter', sql, reach }
}

/** The rows that lack a parameter, by a key of their own; undefined where only the walk can tell. */
export function absentTest(
  { keys, type, own, isIndexed }: Scene,
  ps: readonly bigint[],
  code: string,
): KeysTest | undefined {
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
