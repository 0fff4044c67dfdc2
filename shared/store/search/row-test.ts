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
  /** `narrow`: found by an index of its own; `date`: a range of the main date; else a mere filter. */
  | {
      readonly kind: 'narrow' | 'date' | 'filter'
      readonly sql: (bind: Bind) => string
    }

/** `forced` keeps a test for keys from becoming an index condition. */
export function sqlOf(test: Test, bind: Bind, forced = false): string {
  if (test.kind === 'ids') return `r.id in (${test.ids(bind)})`
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
