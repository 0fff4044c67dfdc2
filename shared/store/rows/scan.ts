/** All live rows of a Project, whatever their type, in one order. */

import { typeName, typeNumber } from '../../fhir/definitions.ts'
import type { Connection } from '../../platform/postgres/statement.ts'
import { toVersion, type VersionRow, versionColumns } from './rows.ts'
import type { Version } from './version.ts'

/** The last row of a page. */
export interface ScanPosition {
  readonly type: string
  /** Row id. */
  readonly id: string
}

export interface ScanPage {
  readonly versions: readonly Version[]
  /** Undefined at the end. */
  readonly next: ScanPosition | undefined
}

/** One statement. */
export async function scanPage(
  connection: Connection,
  project: number,
  after: ScanPosition | undefined,
  count: number,
): Promise<ScanPage> {
  const rows = await connection.query<VersionRow>({
    name: 'scan',
    text: `select ${versionColumns('v')} from (
        select project, type, id, ver from resource
        where project = $1 and ($2::smallint is null or (type, id) > ($2, $3))
        order by type, id limit $4) r
      join version v using (project, type, id, ver) order by v.type, v.id`,
    values: [project, after ? typeNumber(after.type) : null, after?.id ?? null, count],
  })
  const last = rows.at(-1)
  const isEnd = last === undefined || rows.length < count
  return {
    versions: rows.map((row) => toVersion(row)),
    next: isEnd ? undefined : { type: typeName(last.type), id: last.id },
  }
}
