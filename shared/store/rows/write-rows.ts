/** The rows of one write, and the answer to it. */

import type { RunLease } from '../../access/principal.ts'
import type { ResourceText } from '../../fhir/searched-text.ts'
import type { Bind, Connection } from '../../postgres/statement.ts'
import type { IndexRows } from '../index/indexes.ts'
import type { EventOrigin } from './event-rows.ts'
import type { Listed, Target, UniqueKey } from './side-rows.ts'

/** A version ready to be written. */
export interface Write {
  /** `insert` also brings a deleted resource back; `update` needs `ver - 1` of `after` to be the live version. */
  readonly kind: 'insert' | 'update'
  readonly project: number
  readonly type: number
  readonly id: string
  /** The version that is written. */
  readonly ver: number
  /** `lastUpdated` of the version before: time never runs backwards for a resource. */
  readonly after: Date | undefined
  /** `lastUpdated` of a new resource that comes from elsewhere; undefined: the time of the write. */
  readonly time: Date | undefined
  readonly author: string | undefined
  readonly head: string
  readonly tail: string
  readonly metaAt: number
  readonly metaExtension: string
  /** Undefined: an update leaves them as they are. */
  readonly rows: IndexRows | undefined
  /** False when an update leaves strings and ranges as they are. */
  readonly sideRows: boolean
  readonly unique: readonly UniqueKey[] | undefined
  readonly targets: readonly Target[]
  /** Row ids of patients of its Project: where one holds accounts, nothing is written. */
  readonly patientIds: readonly string[]
  /** Undefined: the row stays as it is. */
  readonly text: ResourceText | undefined
  /** Rows of the features' own tables, in the order in which the parts are registered. */
  readonly parts: readonly PartRow[]
  /** Undefined: nobody can wait for it. */
  readonly event: EventOrigin | undefined
  /** The run of a bot that has to be held still, or nothing is written. */
  readonly lease: RunLease | undefined
}

/** A part of the writing statements that a feature registers (`WritePart` in context.ts): its SQL. */
export interface StatementPart<Row = unknown> {
  /** The rows of the writes, and the common table expressions that write them; `w` holds the written rows. */
  sql?(rows: readonly Listed<Row>[], bind: Bind): PartSql
  /** The expression for creates that are planned: `list` is SQL of a text[] of rows as JSON, `$1` the Project. */
  readonly planned?: (rows: string) => string
  /** The expression of the deleting statement for one type; `d` holds the deleted rows, `now` the deletions. */
  readonly removal?: { readonly type: string } & PartSql
  /** Runs in a transaction that has written rows, before it commits. Errors undo it. */
  beforeCommit?(connection: Connection, written: readonly PartWritten<Row>[]): Promise<void>
  /** Runs after the commit, of a deletion too; the write is acknowledged when it resolves. */
  committed?(written: PartWritten<Row>): Promise<void>
}

export interface PartSql {
  /** Stands in the name of the statement: one name for one text. */
  readonly name: string
  readonly sql: readonly string[]
}

export interface PartWritten<Row = unknown> {
  readonly project: number
  readonly row: Row
}

/** The row of one write for a part. */
export interface PartRow {
  readonly part: StatementPart
  /** The place of the part among those registered. */
  readonly order: number
  readonly row: unknown
}

/** A row of the answer: `lu` of a written row, or `target`: the place of a reference not found, or HOLDER. */
export interface Written {
  readonly n: number
  readonly lu: Date | null
  readonly target: number | null
  /** The statement has put something into the outbox. */
  readonly hasEvents: boolean
}
