/**
 * Leases of rows: one worker at a time works on a row, and another one takes over when it is gone. A lease ends by
 * PostgreSQL's clock unless its holder renews it. Each lease of a row has the next number as its token. Every write of a
 * holder names its token, and changes nothing once the row has been leased again (a fencing token), or given back.
 */
import type { Connection } from './statement.ts'

export interface LeaseTable {
  readonly name: string
  /** The columns of the primary key, with their types. */
  readonly key: Readonly<Record<string, 'uuid' | 'int' | 'text'>>
  /** The column that counts the leases of a row. */
  readonly token: string
  /** The column that holds the end of the lease. */
  readonly expiresAt: string
  readonly leaseMs: number
}

export interface Lease {
  /** In the order of the columns. */
  readonly key: readonly (string | number)[]
  readonly token: number
}

/** SQL: the end of a lease that begins now. */
export function leaseEnd({ leaseMs }: LeaseTable): string {
  return `clock_timestamp() + interval '${leaseMs} ms'`
}

/** SQL: the assignments that lease the row `row` to another holder. */
export function leaseRow(table: LeaseTable, row: string): string {
  const { token, expiresAt } = table
  return `${token} = ${row}.${token} + 1, ${expiresAt} = ${leaseEnd(table)}`
}

/** SQL: no lease of the row `row` goes on. */
export function isFree({ expiresAt }: LeaseTable, row: string): string {
  return `(${row}.${expiresAt} is null or ${row}.${expiresAt} <= clock_timestamp())`
}

/** SQL: the row, of this alias, is that of a lease, and was not leased again. The values of the lease are the first parameters. */
export function isLeased({ key, token }: LeaseTable, row?: string): string {
  const prefix = row === undefined ? '' : `${row}.`
  return [...Object.keys(key), token]
    .map((column, i) => `${prefix}${column} = $${i + 1}`)
    .join(' and ')
}

/** The parameters of `isLeased`. */
export function leaseValues({ key, token }: Lease): readonly (string | number)[] {
  return [...key, token]
}

interface NextLease {
  /** Names the prepared statement. */
  readonly name: string
  /** A condition on the row `x`. */
  readonly where: string
  readonly orderBy: string
  /** Further assignments to the row `x`. */
  readonly set: string
  readonly returning: string
}

/** Leases the first free row that meets a condition. Its token is the column `token` of the row returned. */
export async function leaseNext<Row>(
  connection: Connection,
  table: LeaseTable,
  { name, where, orderBy, set, returning }: NextLease,
): Promise<(Row & Pick<Lease, 'token'>) | undefined> {
  const columns = Object.keys(table.key).join(', ')
  const [row] = await connection.query<Row & Pick<Lease, 'token'>>({
    name,
    text: `update ${table.name} x set ${leaseRow(table, 'x')}, ${set}
      where (${columns}) = (select ${columns} from ${table.name} x
        where ${isFree(table, 'x')} and ${where} order by ${orderBy} limit 1 for update skip locked)
      returning ${returning}, x.${table.token} as token`,
    values: [],
  })
  return row
}

interface LeasedChange {
  /** Names the prepared statement. */
  readonly name: string
  /** Assignments; their parameters come after those of the lease. */
  readonly set: string
  readonly values?: readonly unknown[]
}

/** Changes the row of a lease. False when the lease was lost. */
export async function updateLeased(
  connection: Connection,
  table: LeaseTable,
  lease: Lease,
  { name, set, values = [] }: LeasedChange,
): Promise<boolean> {
  const rows = await connection.query({
    name,
    text: `update ${table.name} set ${set} where ${isLeased(table)} returning 1`,
    values: [...leaseValues(lease), ...values],
  })
  return rows.length > 0
}

/** SQL: the assignment that ends a lease before its time; a renewal that is on its way comes too late. */
export function endLease({ token }: LeaseTable, row: string): string {
  return `${token} = ${row}.${token} + 1`
}

/** Changes the row of a lease and gives it back; the change says from when on it is free. False when the lease was lost. */
export async function releaseLeased(
  connection: Connection,
  table: LeaseTable,
  lease: Lease,
  { set, ...change }: LeasedChange,
): Promise<boolean> {
  const end = endLease(table, table.name)
  return await updateLeased(connection, table, lease, { ...change, set: `${set}, ${end}` })
}

/** Deletes the row of a lease. False when the lease was lost. */
export async function deleteLeased(
  connection: Connection,
  table: LeaseTable,
  lease: Lease,
): Promise<boolean> {
  const rows = await connection.query({
    name: `${table.name}-leased-delete`,
    text: `delete from ${table.name} where ${isLeased(table)} returning 1`,
    values: leaseValues(lease),
  })
  return rows.length > 0
}

/** Renews leases; returns those that were lost. One statement. */
export async function renewLeases<One extends Lease>(
  connection: Connection,
  table: LeaseTable,
  leases: readonly One[],
): Promise<readonly One[]> {
  if (leases.length === 0) return []
  const columns = Object.entries({ ...table.key, [table.token]: 'int' })
  const names = columns.map(([name]) => name)
  const lists = columns.map(([, type], i) => `$${i + 1}::${type}[]`)
  const rows = await connection.query<{ place: number }>({
    name: `${table.name}-leases-renew`,
    isMaintenance: true,
    text: `update ${table.name} t set ${table.expiresAt} = ${leaseEnd(table)}
      from unnest(${lists}) with ordinality as l(${names}, place)
      where ${names.map((name) => `t.${name} = l.${name}`).join(' and ')} returning l.place::int`,
    values: names.map((_, i) => leases.map((lease) => leaseValues(lease)[i])),
  })
  const renewed = new Set(rows.map(({ place }) => place))
  return leases.filter((_, i) => !renewed.has(i + 1))
}
