/** What a row of `resource r` must fulfil, as data that the driver can weigh and SQL can say. */
import { typeNumber } from '../../fhir/definitions.ts'
import { type Keys, keysLiteral } from '../keys.ts'
import type { Bind } from '../side-rows.ts'

/** Whose rows are searched, in the eyes of one Principal. */
export interface Scene {
  readonly keys: Keys
  readonly project: number
  readonly type: string
  /** UCUM codes in the data of the project, for quantities with a unit; empty when none is asked for. */
  readonly units: readonly string[]
  /** What the Principal sees of them: part of every statement that reads such rows. */
  readonly visible: readonly Test[]
  /** The other end of a join; undefined for a type the Principal may not search. */
  readonly enter: (type: string) => Scene | undefined
}

export type Test =
  /** It holds one of the keys. */
  | { readonly kind: 'keys'; readonly any: readonly bigint[] }
  /** Its id is among those of a subselect on a side table. */
  | { readonly kind: 'ids'; readonly ids: (bind: Bind) => string }
  | JoinTest
  /** `narrow`: found by an index of its own; `date`: a range of the main date; else a mere filter. */
  | {
      readonly kind: 'narrow' | 'date' | 'filter'
      readonly sql: (bind: Bind) => string
    }

/**
 * It holds one of the keys that the other side of a reference gives. Measured: `&&` with a thousand
 * keys is quadratic, in the index as on the row; a probe a key and a hashed set are not.
 */
export interface JoinTest {
  readonly kind: 'join'
  /** One bigint[] of those keys; more than allowed is an error. */
  readonly keys: (bind: Bind) => string
  /** Looks the row up in the keys, given as a bigint[]; for many rows. */
  readonly check: (keys: string) => string
  /** Looks for the other side of this row; for few rows, where the keys may be many. */
  readonly probe?: (bind: Bind) => string
}

/** `forced` keeps a test for keys from becoming an index condition. */
export function sqlOf(test: Test, bind: Bind, forced = false): string {
  if (test.kind === 'ids') return `r.id in (${test.ids(bind)})`
  if (test.kind === 'join') {
    return forced ? test.check(test.keys(bind)) : heldSql(test.keys(bind))
  }
  if (test.kind !== 'keys') return test.sql(bind)
  const [first] = test.any
  // `@>` of an empty array would match every row, `&&` of one matches none.
  const held =
    first !== undefined && test.any.length === 1
      ? `r.keys @> array[${bind(first, 'bigint')}]`
      : `r.keys && ${bind(keysLiteral(test.any), 'bigint[]')}`
  return forced ? `(${held}) is true` : held
}

/** A row of a side table belongs to one of the parameters; one alone bounds an index best. */
export function parameterSql(alias: string, ps: readonly bigint[], bind: Bind): string {
  const [first] = ps
  if (first !== undefined && ps.length === 1) return `${alias}.p = ${bind(first, 'bigint')}`
  return `${alias}.p = any(${bind(keysLiteral(ps), 'bigint[]')})`
}

/** As a test of rows that another test has found. */
export function fewSql(test: Test, bind: Bind): string {
  if (test.kind !== 'join') return sqlOf(test, bind)
  return test.probe?.(bind) ?? test.check(test.keys(bind))
}

/** It holds one of `keys`; a list of any length costs a probe a key. */
export function heldTest(keys: readonly bigint[]): Test {
  if (keys.length <= FEW_KEYS) return { kind: 'keys', any: keys }
  return { kind: 'narrow', sql: (bind) => heldSql(bind(keysLiteral(keys), 'bigint[]')) }
}

/** Below this an overlap with all of them is as quick. */
const FEW_KEYS = 16

/** `keys` is the SQL of a bigint[] of any length. */
export function heldSql(keys: string): string {
  return `r.id = any(array(select h.id from unnest(${keys}) j(k) cross join lateral (
    select r.id from resource r where r.keys @> array[j.k] offset 0) h))`
}

/** For an `or`: an array of ids can be a condition of an index there, a subselect cannot. */
export function alternativeSql(test: Test, bind: Bind): string {
  return test.kind === 'ids' ? `r.id = any(array(${test.ids(bind)}))` : sqlOf(test, bind)
}

/** Rows of one type that are in sight and fulfil the tests. */
export function whereSql(
  { project, type, visible }: Scene,
  tests: readonly Test[],
  bind: Bind,
): string {
  return [
    `r.project = ${bind(project, 'int')}`,
    `r.type = ${bind(typeNumber(type), 'smallint')}`,
    ...[...visible, ...tests].map((test) => sqlOf(test, bind)),
  ].join(' and ')
}

export function filter(sql: (bind: Bind) => string): Test {
  return { kind: 'filter', sql }
}

/** Of the value of `:missing`. */
export function isMissing([value]: readonly string[]): boolean {
  return value === 'true'
}
