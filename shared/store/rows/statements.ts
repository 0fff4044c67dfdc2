/**
 * The writing statement for single writes and batches; each shape has a name, and so one plan per connection.
 *
 *   i    the rows as sent, from parameters
 *   bad  references that do not resolve: their rows are not written
 *   heir patients with accounts, which their rows must inherit: these are not written either
 *   ok   updates with their time; those whose version is current are w
 *   w    the rows written
 *
 * All parts see one snapshot, so none may delete another's inserts. Sorted lists prevent deadlocks. Concurrent single
 * writes share a statement; if it fails, they run one by one, so that each gets its own error.
 */
import { batchInLanes, type Pending } from '../../core/batching.ts'
import { LeaseLost, TransactionConflict } from '../../core/errors.ts'
import { retryOnConflict } from '../../core/retry.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Database } from '../../postgres/database.ts'
import { SqlError } from '../../postgres/sql-error.ts'
import {
  arrayLiteral,
  type Bind,
  binder,
  type Connection,
  type Statement,
} from '../../postgres/statement.ts'
import { eventPart, registryEventPart } from './event-rows.ts'
import {
  codeRows,
  contentSql,
  heirRows,
  INTO,
  type Listed,
  missingTargets,
  rangeRows,
  stringRows,
  textRows,
  uniqueRows,
} from './side-rows.ts'
import {
  type PartRow,
  type PartSql,
  rowsByCall,
  runLeasesHeldSql,
  type Submit,
  type Write,
  type Written,
} from './write-rows.ts'

/** For 1 to 100 writes of one kind to different resources. */
export function writeStatement(writes: readonly Write[]): Statement {
  const isUpdate = writes[0]?.kind === 'update'
  const { values, bind } = binder()
  const shape: string[] = [isUpdate ? 'update' : 'insert', writes.length === 1 ? '1' : 'n']
  const parts = [`i as (${inputRows(writes, bind)})`]

  const targets = listed(writes, (write) => write.targets)
  if (targets.length > 0) {
    shape.push('targets')
    parts.push(missingTargets(targets, bind))
  }
  const heirs = listed(writes, (write) => write.patientIds)
  if (heirs.length > 0) {
    shape.push('heirs')
    parts.push(heirRows(heirs, bind))
  }
  const refused = [...(targets.length > 0 ? ['bad'] : []), ...(heirs.length > 0 ? ['heir'] : [])]
  const leases = writes.flatMap(({ lease }) => lease ?? [])
  if (leases.length > 0) shape.push('runs')
  const isLeft = [
    ...(leases.length > 0 ? [runLeasesHeldSql(leases, bind)] : []),
    ...refused.map((part) => `i.n not in (select n from ${part})`),
  ].join(' and ')
  const times = listed(writes, ({ time }) => (time ? [time] : []))
  if (times.length > 0) shape.push('times')
  parts.push(`${isUpdate ? 'ok' : 'w'} as materialized (
    select i.*, ${times.length > 0 ? timeGiven(times, bind) : NOW} as lu
    from i ${isLeft && `where ${isLeft}`})`)
  parts.push(isUpdate ? UPDATE_RESOURCE : INSERT_RESOURCE, INSERT_VERSION)
  const sides = [...sideParts(writes, isUpdate, bind), ...compileParts(writes, bind)]
  const events = eventParts(writes, isUpdate ? 'u' : 'c', bind)
  for (const { name, sql } of [...sides, ...events.parts]) {
    shape.push(name)
    parts.push(...sql)
  }
  const missing = refused.map(
    (part) => `union all select n, null::timestamptz, target, false from ${part}`,
  )
  // Policy conditions differ each time.
  const isNamed = targets.every(({ item }) => item.visible === undefined)
  return {
    ...(isNamed ? { name: shape.join('-') } : {}),
    text: `with ${parts.join(',\n')}
      select w.n, w.lu, null::int as target, ${events.made.join(' or ') || 'false'} as "hasEvents"
      from w ${missing.join(' ')}`,
    values,
  }
}

const NOW = `greatest(date_trunc('milliseconds', clock_timestamp()), i.after)`

/** Caps times at now. */
function timeGiven(times: readonly Listed<Date>[], bind: Bind): string {
  const numbers = bind(arrayLiteral(times.map(({ n }) => n)), 'int[]')
  const given = bind(arrayLiteral(times.map(({ item }) => item)), 'timestamptz[]')
  return `least(${NOW},
    (select g.lu from ${dialect.unnest(numbers, given)} as g(n, lu) where g.n = i.n))`
}

const INSERT_RESOURCE = `r as (
  insert into ${INTO.resource}
  select project, type, id, ver, lu, d_lo, d_hi, nref, keys from w)`

/** Without keys the row keeps its index. */
const UPDATE_RESOURCE = `w as (
  update resource r set ver = ok.ver, lu = ok.lu,
    d_lo = case when ok.keys is null then r.d_lo else ok.d_lo end,
    d_hi = case when ok.keys is null then r.d_hi else ok.d_hi end,
    nref = coalesce(ok.nref, r.nref), keys = coalesce(ok.keys, r.keys)
  from ok
  where r.project = ok.project and r.type = ok.type and r.id = ok.id and r.ver = ok.ver - 1
    and r.lu = ok.after
  returning ok.*)`

const INSERT_VERSION = `v as (
  insert into ${INTO.version}
  select project, type, id, ver, lu, author,
    ${contentSql('lu')},
    meta_at, meta_ext
  from w)`

function listed<W, T>(writes: readonly W[], items: (write: W) => readonly T[]): Listed<T>[] {
  return writes.flatMap((write, i) => items(write).map((item) => ({ n: i + 1, item })))
}

function sideParts(writes: readonly Write[], isUpdate: boolean, bind: Bind): readonly PartSql[] {
  const found: PartSql[] = []
  const sides = writes.map((write) => (write.sideRows ? write.rows : undefined))
  const hasSides = isUpdate && writes.some((write) => write.sideRows)
  const strings = listed(sides, (rows) => rows?.strings ?? [])
  if (strings.length > 0 || hasSides) {
    found.push({ name: 'strings', sql: stringRows(strings, isUpdate, bind) })
  }
  const ranges = listed(sides, (rows) => rows?.ranges ?? [])
  if (ranges.length > 0 || hasSides) {
    found.push({ name: 'ranges', sql: rangeRows(ranges, isUpdate, bind) })
  }
  const texts = listed(writes, (write) => (write.text ? [write.text] : []))
  if (texts.length > 0) found.push({ name: 'texts', sql: [textRows(texts, bind)] })
  const codes = listed(writes, (write) => write.rows?.codes ?? [])
  if (codes.length > 0) found.push({ name: 'codes', sql: [codeRows(codes, bind)] })
  const owners = writes.flatMap((write, n) => (write.unique ? [n + 1] : []))
  if (owners.length > 0) {
    const unique = listed(writes, (write) => write.unique ?? [])
    found.push({ name: 'unique', sql: uniqueRows(unique, owners, bind) })
  }
  return found
}

/** `made` has conditions in SQL, true when the statement has written to the outbox. */
function eventParts(writes: readonly Write[], op: 'c' | 'u', bind: Bind) {
  const filed = listed(writes, ({ event }) => (event?.home === undefined ? [] : [event]))
  const isPlain = writes.some(({ event }) => event !== undefined && event.home === undefined)
  return {
    parts: [
      ...(isPlain ? [{ name: 'events', sql: [eventPart(op)] }] : []),
      ...(filed.length > 0 ? [{ name: 'filed', sql: [registryEventPart(op, filed, bind)] }] : []),
    ],
    made: [
      ...(isPlain ? ['exists (select 1 from o)'] : []),
      ...(filed.length > 0 ? ['exists (select 1 from ro)'] : []),
    ],
  }
}

function compileParts(writes: readonly Write[], bind: Bind): readonly PartSql[] {
  const found: (PartRow & Listed<unknown>)[] = []
  for (const [i, { parts }] of writes.entries()) {
    for (const one of parts) found.push({ ...one, n: i + 1, item: one.row })
  }
  if (found.length === 0) return []
  const byPart = Map.groupBy(
    found.toSorted((a, b) => a.order - b.order),
    ({ part }) => part,
  )
  return [...byPart].flatMap(([part, rows]) => part.sql?.(rows, bind) ?? [])
}

const COLUMNS = [
  ['project', 'int'],
  ['type', 'smallint'],
  ['id', 'uuid'],
  ['ver', 'int'],
  ['after', 'timestamptz'],
  ['author', 'uuid'],
  ['head', 'text'],
  ['tail', 'text'],
  ['meta_at', 'int'],
  ['meta_ext', 'text'],
  ['d_lo', 'timestamptz'],
  ['d_hi', 'timestamptz'],
  ['nref', 'smallint'],
  ['keys', 'bigint[]'],
  ['side', 'boolean'],
  ['cause', 'text'],
] as const

function inputRows(writes: readonly Write[], bind: Bind): string {
  const rows = writes.map(inputRow)
  const [first] = rows
  if (first && rows.length === 1) {
    const columns = COLUMNS.map(([name, type], i) => `${bind(first[i], type)} as ${name}`)
    return `select 1 as n, ${columns.join(', ')}`
  }
  const lists = COLUMNS.map(([, type], i) => {
    const column = rows.map((row) => row[i])
    if (type !== 'text' && type !== 'bigint[]') return bind(arrayLiteral(column), `${type}[]`)
    // bigint[] travels as text: unnest would flatten an array of arrays.
    return `string_to_array(${bind(column.join(SEPARATOR), 'text')}, '${SEPARATOR}')`
  })
  const names = COLUMNS.map(([name, type]) =>
    type === 'bigint[]' ? `nullif(x.${name}, '')::bigint[] as ${name}` : `x.${name}`,
  )
  return `select x.n::int as n, ${names.join(', ')} from unnest(${lists.join(', ')})
    with ordinality as x(${COLUMNS.map(([name]) => name).join(', ')}, n)`
}

/** Joins JSON texts without quoting, since they hold no raw control character. */
const SEPARATOR = '\u0001'

function inputRow(write: Write): readonly unknown[] {
  const { rows } = write
  return [
    write.project,
    write.type,
    write.id,
    write.ver,
    write.after ?? null,
    write.author ?? null,
    write.head,
    write.tail,
    write.metaAt,
    write.metaExtension,
    rows?.dateLow ?? null,
    rows?.dateHigh ?? null,
    rows?.nref ?? null,
    rows && arrayLiteral(rows.keys),
    write.sideRows,
    write.event !== undefined && write.event.home === undefined ? write.event.cause : '',
  ]
}

const MAX_ROWS = 100
const MAX_BATCH_CHARACTERS = 4_000_000

type Waiting = Pending<Write, readonly Written[]>

export function createCoalescer(database: Pick<Database, 'query' | 'lane'>): Submit {
  // After the failure of a batch.
  const alone: Submit = (write) => database.query<Written>(writeStatement([write]))
  return batchInLanes<Connection, Write, readonly Written[]>(() => database.lane(), {
    take: takeBatch,
    async run(connection, batch) {
      try {
        const writes = batch.map(({ item }) => item)
        const rows = await connection.query<Written>(writeStatement(writes))
        const found = rowsByCall(rows, batch)
        batch.forEach(({ resolve }, i) => {
          resolve(found[i] ?? [])
        })
      } catch (error) {
        // Without a response the commit state is unknown: do not write again.
        const isOfOne = error instanceof SqlError || error instanceof LeaseLost
        const again = error instanceof TransactionConflict || (isOfOne && batch.length > 1)
        for (const { item, resolve, reject } of batch) {
          if (again) await retryOnConflict(() => alone(item)).then(resolve, reject)
          else reject(error)
        }
      }
    },
  })
}

/** One kind, each resource once. */
function takeBatch(queue: readonly Waiting[], share: number): [Waiting[], Waiting[]] {
  const most = Math.min(share, MAX_ROWS)
  const batch: Waiting[] = []
  const rest: Waiting[] = []
  const taken = new Set<string>()
  const kind = queue[0]?.item.kind
  let size = 0
  for (const pending of queue) {
    const { item: write } = pending
    const row = `${write.project}/${write.type}/${write.id}`
    size += write.tail.length
    const fits = batch.length < most && (batch.length === 0 || size < MAX_BATCH_CHARACTERS)
    if (fits && write.kind === kind && !taken.has(row)) batch.push(pending)
    else rest.push(pending)
    taken.add(row)
  }
  return [batch, rest]
}
