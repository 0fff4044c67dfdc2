/** Row leases for one worker at a time, by PostgreSQL's clock. Writes with an outdated fencing token change nothing. */
import { type Connection, hasRows } from './statement.ts'

export interface LeaseTable {
  readonly name: string
  /** Primary key columns with their types. */
  readonly key: Readonly<Record<string, 'uuid' | 'int' | 'text'>>
  readonly token: string
  readonly expiresAt: string
  readonly leaseMs: number
}

export interface Lease {
  readonly key: readonly (string | number)[]
  readonly token: number
}

export function leaseEnd({ leaseMs }: LeaseTable): string {
  return `clock_timestamp() + interval '${leaseMs} ms'`
}

/** SQL: the assignments that lease `row` to a new holder. */
export function leaseRow(table: LeaseTable, row: string): string {
  const { token, expiresAt } = table
  return `${token} = ${row}.${token} + 1, ${expiresAt} = ${leaseEnd(table)}`
}

/** SQL: true when `row` has no current lease. */
export function isFree({ expiresAt }: LeaseTable, row: string): string {
  return `(${row}.${expiresAt} is null or ${row}.${expiresAt} <= clock_timestamp())`
}

/** SQL: true when `row` still has this lease. The lease values are the first parameters. */
export function isLeased({ key, token }: LeaseTable, row?: string): string {
  const prefix = row === undefined ? '' : `${row}.`
  return [...Object.keys(key), token]
    .map((column, i) => `${prefix}${column} = $${i + 1}`)
    .join(' and ')
}

export function leaseValues({ key, token }: Lease): readonly (string | number)[] {
  return [...key, token]
}

export interface NextLease {
  readonly name: string
  /** A join with other tables, for the conditions and the order. */
  readonly join?: string
  /** A condition on the row `x`. */
  readonly where: string
  readonly values?: readonly unknown[]
  readonly orderBy: string
  readonly set: string
  readonly returning: string
}

/** Leases the first free row that meets a condition. The returned row includes its token. */
export async function leaseNext<Row>(
  connection: Connection,
  table: LeaseTable,
  { name, join = '', where, values = [], orderBy, set, returning }: NextLease,
): Promise<(Row & Pick<Lease, 'token'>) | undefined> {
  const columns = Object.keys(table.key).map((column) => `x.${column}`)
  const [row] = await connection.query<Row & Pick<Lease, 'token'>>({
    name,
    text: `update ${table.name} x set ${leaseRow(table, 'x')}, ${set}
      where (${columns}) = (select ${columns} from ${table.name} x ${join}
        where ${isFree(table, 'x')} and ${where} order by ${orderBy} limit 1 for update of x skip locked)
      returning ${returning}, x.${table.token} as token`,
    values,
  })
  return row
}

interface LeasedChange {
  readonly name: string
  /** Assignments; their parameters follow those of the lease. */
  readonly set: string
  readonly values?: readonly unknown[]
}

/** Updates a leased row. False when the lease was lost. */
export async function updateLeased(
  connection: Connection,
  table: LeaseTable,
  lease: Lease,
  { name, set, values = [] }: LeasedChange,
): Promise<boolean> {
  return await hasRows(connection, {
    name,
    text: `update ${table.name} set ${set} where ${isLeased(table)} returning 1`,
    values: [...leaseValues(lease), ...values],
  })
}

/** SQL: the assignment that ends a lease early; a renewal in flight has no effect. */
export function endLease({ token }: LeaseTable, row: string): string {
  return `${token} = ${row}.${token} + 1`
}

/** Updates a leased row and releases it; `set` defines when it is free. False when the lease was lost. */
export async function releaseLeased(
  connection: Connection,
  table: LeaseTable,
  lease: Lease,
  { set, ...change }: LeasedChange,
): Promise<boolean> {
  const end = endLease(table, table.name)
  return await updateLeased(connection, table, lease, { ...change, set: `${set}, ${end}` })
}

/** Deletes a leased row. False when the lease was lost. */
export async function deleteLeased(
  connection: Connection,
  table: LeaseTable,
  lease: Lease,
): Promise<boolean> {
  return await hasRows(connection, {
    name: `${table.name}-leased-delete`,
    text: `delete from ${table.name} where ${isLeased(table)} returning 1`,
    values: leaseValues(lease),
  })
}

/** Renews leases in one statement; returns the lost ones. */
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
