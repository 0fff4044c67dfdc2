/** The rows of one write or deletion, the answer to it, and the lease that the write of a bot run needs. */

import type { RunLease } from '../../access/principal.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Reference } from '../../fhir/resource.ts'
import type { ResourceText } from '../../fhir/searched-text.ts'
import { arrayLiteral, type Bind, type Connection } from '../../postgres/statement.ts'
import type { IndexRows } from '../index/indexes.ts'
import type { EventOrigin } from './event-rows.ts'
import type { VersionRow } from './rows.ts'
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

/** Returns the rows of each call of a statement; `n` is the place of their call, from 1. */
export function rowsByCall<Row extends { readonly n: number }>(
  rows: readonly Row[],
  calls: readonly unknown[],
): readonly (readonly Row[])[] {
  const found = Map.groupBy(rows, ({ n }) => n)
  return calls.map((_, i) => found.get(i + 1) ?? [])
}

/** A condition that holds, or ends the statement with LeaseLost; locks the rows until its end. */
export function runLeasesHeldSql(leases: readonly RunLease[], bind: Bind): string {
  const owners = bind(arrayLiteral(leases.map(({ owner }) => owner)), '"char"[]')
  const runs = bind(arrayLiteral(leases.map(({ run }) => run)), 'uuid[]')
  const counts = bind(arrayLiteral(leases.map(({ token }) => token)), 'int[]')
  return `(select bool_and(require_run(t.o, t.r, t.k))
    from (select distinct * from unnest(${owners}, ${runs}, ${counts}) as t(o, r, k)) t)`
}

/** Locks the row until the transaction ends. Errors: LeaseLost. */
export async function requireRunLease(
  connection: Connection,
  { owner, run, token }: RunLease,
): Promise<void> {
  await connection.query({
    name: 'run-require',
    text: 'select require_run($1, $2, $3)',
    values: [owner, run, token],
  })
}

export interface Deleted extends VersionRow {
  readonly n: number
  /** True for the new deletion; otherwise the row before it. */
  readonly deleted: boolean
  readonly gone: boolean
  /** ProjectMembership whose profile was just deleted. */
  readonly membership: string | null
  readonly hasEvents: boolean
}

export interface DeletionWrite {
  readonly project: number
  readonly type: number
  readonly id: string
  /** Any version when undefined. */
  readonly vers: readonly number[] | undefined
  readonly metaPrefix: string
  readonly author: string | undefined
  /** Absent when no Subscription can wait for it. */
  readonly event: EventOrigin | undefined
  /** Key of the ProjectMemberships with this profile, for profile types. */
  readonly profileKey: bigint | undefined
  readonly parts: readonly Omit<PartRow, 'row'>[]
  /** Lease that must be held; otherwise nothing is deleted. */
  readonly lease: RunLease | undefined
}

/** Returns the rows of one write; none when an update lost its race. */
export type Submit = (write: Write) => Promise<readonly Written[]>

export type KeyedMutex = <T>(key: bigint, work: () => Promise<T>) => Promise<T>

export interface CheckedReference extends Target {
  readonly path: string
}

export interface WritePlace {
  readonly kind: Write['kind']
  /** For registry types the number is the system project's, the id is not. */
  readonly project: number
  readonly projectId: string
  readonly id: string
  readonly ver: number
  readonly after: Date | undefined
  /** Accounts for a new resource that names none. */
  readonly accounts?: readonly Reference[] | undefined
  /** Row ids of patients: the write is held if one has accounts. */
  readonly patientIds?: readonly string[] | undefined
  readonly own: OwnParameters | undefined
}
