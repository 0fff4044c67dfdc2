/** The rows of one write, and the answer to it. */

import type { RunLease } from '../../access/principal.ts'
import type { ResourceText } from '../../fhir/searched-text.ts'
import type { Bind, Connection } from '../../postgres/statement.ts'
import type { IndexRows } from '../index/indexes.ts'
import type { EventOrigin } from './event-rows.ts'
import type { Listed, Target, UniqueKey } from './side-rows.ts'

export interface Write {
  /** `insert` also restores a deleted resource; `update` needs `ver - 1` of `after` to be the live version. */
  readonly kind: 'insert' | 'update'
  readonly project: number
  readonly type: number
  readonly id: string
  readonly ver: number
  /** `lastUpdated` of the version before: the time of a resource never decreases. */
  readonly after: Date | undefined
  /** `lastUpdated` of an imported resource; undefined: the time of the write. */
  readonly time: Date | undefined
  readonly author: string | undefined
  readonly head: string
  readonly tail: string
  readonly metaAt: number
  readonly metaExtension: string
  /** An update keeps the rows when this is undefined. */
  readonly rows: IndexRows | undefined
  /** False when an update keeps strings and ranges. */
  readonly sideRows: boolean
  readonly unique: readonly UniqueKey[] | undefined
  readonly targets: readonly Target[]
  /** Row ids of patients in its Project: if one holds accounts, nothing is written. */
  readonly patientIds: readonly string[]
  /** The row stays when this is undefined. */
  readonly text: ResourceText | undefined
  /** In registration order. */
  readonly parts: readonly PartRow[]
  /** Absent when no Subscription can wait for it. */
  readonly event: EventOrigin | undefined
  /** Lease that must be held; otherwise nothing is written. */
  readonly lease: RunLease | undefined
}

/** SQL of a `WritePart` (context.ts). */
export interface StatementPart<Row = unknown> {
  /** `w` holds the written rows. */
  sql?(rows: readonly Listed<Row>[], bind: Bind): PartSql
  /** `list` is SQL of a text[] of rows as JSON, `$1` the Project. */
  readonly planned?: (rows: string) => string
  /** `d` holds the deleted rows, `now` the deletions. */
  readonly removal?: { readonly type: string } & PartSql
  /** Runs in the transaction. Errors undo it. */
  beforeCommit?(connection: Connection, written: readonly PartWritten<Row>[]): Promise<void>
  /** The write is acknowledged when it resolves. */
  committed?(written: PartWritten<Row>): Promise<void>
}

export interface PartSql {
  /** Part of the statement's name: one name for one text. */
  readonly name: string
  readonly sql: readonly string[]
}

export interface PartWritten<Row = unknown> {
  readonly project: number
  readonly row: Row
}

export interface PartRow {
  readonly part: StatementPart
  readonly order: number
  readonly row: unknown
}

/** `target`: the position of an unresolved reference, or ACCOUNT_PATIENT. */
export interface Written {
  readonly n: number
  readonly lu: Date | null
  readonly target: number | null
  readonly hasEvents: boolean
}
