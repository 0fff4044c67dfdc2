/**
 * How an export comes by the versions of its rows: each is looked up, or all of the range are read in the
 * order of the rows, alongside them. The second takes PostgreSQL half of the time, 1.8 of 3.7 ms a MiB, as
 * long as there are few versions that are not exported.
 */
import type { Connection } from '../../database.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { Scene } from '../search/row-test.ts'
import { type Bind, binder } from '../side-rows.ts'
import { type ChangedRow, type Range, rangeSql, rowsSql, type Selection } from './select.ts'

/** Rows whose numbers of versions stand for those of all. */
const SAMPLE_ROWS = 1000
const MOST_VERSIONS = 3

/**
 * Inside a transaction, which is for that range alone: true when its versions are to be read alongside. With
 * tests of rows, which have plans of their own, they never are.
 */
export async function readAlongside(
  connection: Connection,
  { scene, reach, ruled, filter }: Selection,
  range: Range,
): Promise<boolean> {
  const isPlain = reach === 'all' && scene.visible.length === 0 && !ruled && !filter
  if (!isPlain) return false
  const { values, bind } = binder()
  const tests = rangeTests('r', scene, range, bind)
  const [found] = await connection.query<object>({
    text: `select set_config('enable_mergejoin', 'on', true), set_config('enable_nestloop', 'off', true)
      from (select avg(ver) as versions from (select r.ver from resource r
          where ${tests} order by r.id limit ${bind(SAMPLE_ROWS, 'int')}) r) a
      where a.versions <= ${bind(MOST_VERSIONS, 'int')}`,
    values,
  })
  return found !== undefined
}

/** Rows `x` with their versions `v`. */
export function alongsideSql(
  selection: Selection,
  range: Range,
  changed: readonly ChangedRow[],
  bind: Bind,
): string {
  return `(${rowsSql(selection, range, changed, bind)}) x
    join version v on v.id = x.id and v.ver = x.ver
      and ${rangeTests('v', selection.scene, range, bind)}`
}

function rangeTests(table: string, { project, type }: Scene, range: Range, bind: Bind): string {
  const tests = [
    `${table}.project = ${bind(project, 'int')}`,
    `${table}.type = ${bind(typeNumber(type), 'smallint')}`,
    ...rangeSql(`${table}.id`, range, bind),
  ]
  return tests.join(' and ')
}
