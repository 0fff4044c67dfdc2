/** `COPY … TO STDOUT` over connections outside the pool, without a timeout: an export may take minutes. */
import type { Duplex } from 'node:stream'
import { Client, escapeLiteral, type Connection as PgConnection } from 'pg'
import { unavailable } from '../core/errors.ts'
import type { MovingSlice, Slice } from '../outbound/storage/storage.ts'
import { dialect } from './chosen-dialect.ts'
import { createCopySocket, readRows } from './copy-rows.ts'
import type { Database } from './database.ts'
import { rawPool } from './pool.ts'
import { toFailure } from './sql-error.ts'
import type { Connection, Statement } from './statement.ts'

/** Takes the fields of a row, valid until it returns. A returned promise pauses the rows. */
export type RowSink = (fields: readonly (Slice | null)[]) => Promise<void> | undefined

export interface CopySession extends Connection {
  snapshot<T>(work: () => Promise<T>): Promise<T>
  /** `select` has its values inlined. Errors: those of `sink`, 503. */
  copy(select: string, sink: RowSink): Promise<void>
  close(): Promise<void>
}

/** Index order avoids sorts and joins that would spill to PostgreSQL's disk. About 20,000 rows fit in memory. */
const OPTIONS =
  '-c jit=off -c enable_hashjoin=off -c standard_conforming_strings=on -c work_mem=32MB'

/** Keeps a connection between many small parts, which saves starting a process for each. */
const IDLE_MS = 5000

export interface CopySessions {
  /** Errors: 503; the signal's reason once it aborts. */
  open(signal: AbortSignal): Promise<CopySession>
  close(): Promise<void>
}

/** Keeps the connection of a successful session open for a while. */
export function openCopySessions(database: Opening): CopySessions {
  const idle = new Map<Client, NodeJS.Timeout>()
  const end = (client: Client) => {
    clearTimeout(idle.get(client))
    idle.delete(client)
    return client.end().catch(() => undefined)
  }
  return {
    async open(signal) {
      signal.throwIfAborted()
      const [kept] = idle.keys()
      clearTimeout(kept && idle.get(kept))
      if (kept !== undefined) idle.delete(kept)
      const client = kept ?? (await connect(database))
      // The user of a connection gets the failure from its statement.
      if (kept === undefined) client.once('end', () => void end(client))
      const release = (isSound: boolean) => {
        if (!isSound) return end(client)
        idle.set(client, setTimeout(() => void end(client), IDLE_MS).unref())
        return Promise.resolve()
      }
      return createSession(client, { signal, release })
    },
    async close() {
      await Promise.all([...idle.keys()].map(end))
    },
  }
}

type Opening = Pick<Database, 'knex' | 'directUrl'>

async function connect({ knex, directUrl }: Opening): Promise<Client> {
  const { connection } = rawPool(knex).config
  const settings = {
    ...Object(connection),
    // Poolers reject the settings.
    ...(directUrl && { connectionString: directUrl }),
    application_name: 'botica export',
    options: OPTIONS,
    statement_timeout: 0,
  }
  const isPlain = !new Client(settings).ssl
  const client = new Client({ ...settings, ...(isPlain && { stream: createCopySocket }) })
  // The failing statement reports the error; an unhandled `error` event would end the process.
  client.on('error', () => undefined)
  try {
    await client.connect()
  } catch (error) {
    throw unavailable('Database', error)
  }
  return client
}

interface SessionOptions {
  readonly signal: AbortSignal
  /** `isSound`: the connection can be reused. */
  readonly release: (isSound: boolean) => Promise<void>
}

function createSession(client: Client, { signal, release }: SessionOptions): CopySession {
  let isSound = true
  const abort = () => {
    isSound = false
    void client.end().catch(() => undefined)
  }
  signal.addEventListener('abort', abort)
  if (signal.aborted) abort()
  const guarded = async <T>(what: Statement, work: () => Promise<T>): Promise<T> => {
    try {
      return await work()
    } catch (error) {
      isSound = false
      signal.throwIfAborted()
      throw toFailure(error, what)
    }
  }
  const run = (text: string) => guarded({ text }, () => client.query(text))
  return {
    query: <Row extends object>(statement: Statement) =>
      guarded(statement, () =>
        dialect.run<Row>(statement, async <R extends object>({ text, values }: Statement) => {
          // pg's types ask for a mutable array but pg does not change it.
          return (await client.query<R>({ text, values: values as unknown[] | undefined })).rows
        }),
      ),
    async snapshot(work) {
      await run('begin isolation level repeatable read read only')
      try {
        const result = await work()
        await run('commit')
        return result
      } catch (error) {
        isSound = false
        throw error
      }
    },
    copy: (sql, sink) =>
      guarded({ text: 'an export' }, async () => {
        const query = new CopyQuery(sql, sink)
        client.query(query)
        await query.done
      }),
    async close() {
      signal.removeEventListener('abort', abort)
      await release(isSound)
    },
  }
}

/** Signature, flags and length of an extension: https://www.postgresql.org/docs/current/sql-copy.html */
const HEADER_BYTES = 19

/** The query object that pg drives during a statement; each COPY message holds one row. */
class CopyQuery {
  readonly done: Promise<void>
  readonly #settle: PromiseWithResolvers<void>
  readonly #text: string
  readonly #sink: RowSink
  readonly #fields = createFields()
  #isFirst = true
  #waits = 0
  #isOver = false
  #failure: { readonly reason: unknown } | undefined

  constructor(sql: string, sink: RowSink) {
    this.#text = `copy (${sql}) to stdout (format binary)`
    this.#sink = sink
    this.#settle = Promise.withResolvers<void>()
    this.done = this.#settle.promise
  }

  submit(connection: PgConnection): void {
    const { stream } = connection
    const row = (bytes: Buffer, start: number) => this.#take(bytes, start, stream)
    readRows(stream, row, (wait) => this.#pause(stream, wait))
    connection.query(this.#text)
  }

  #take(bytes: Buffer, start: number, stream: Duplex): void {
    if (this.#failure !== undefined) return
    const fields = this.#fields.read(bytes, start + (this.#isFirst ? HEADER_BYTES : 0))
    this.#isFirst = false
    if (fields === undefined) return
    try {
      const wait = this.#sink(fields)
      if (wait !== undefined) this.#pause(stream, wait)
    } catch (error) {
      this.#fail(stream, error)
    }
  }

  /** Rows already received still go to the sink. */
  #pause(stream: Duplex, wait: Promise<void>): void {
    this.#waits += 1
    stream.pause()
    wait.then(
      () => {
        this.#waits -= 1
        if (this.#waits > 0) return
        stream.resume()
        if (this.#isOver) this.#settle.resolve()
      },
      (error: unknown) => this.#fail(stream, error),
    )
  }

  /** Only closing the connection makes PostgreSQL stop sending. */
  #fail(stream: Duplex, reason: unknown): void {
    this.#failure ??= { reason }
    this.#settle.reject(this.#failure.reason)
    stream.destroy()
  }

  handleError(error: Error): void {
    this.#settle.reject(error)
  }

  handleCommandComplete(): void {}

  handleReadyForQuery(): void {
    this.#isOver = true
    if (this.#waits === 0) this.#settle.resolve()
  }
}

/** Reuses the same slices for every row; `read` returns undefined at the end. */
function createFields() {
  const slices: MovingSlice[] = []
  const fields: (Slice | null)[] = []

  function add(): void {
    slices.push({ bytes: NONE, start: 0, end: 0 })
    fields.push(null)
  }

  function read(bytes: Buffer, start: number): readonly (Slice | null)[] | undefined {
    const count = bytes.readInt16BE(start)
    if (count === -1) return undefined
    while (fields.length < count) add()
    let at = start + 2
    for (let i = 0; i < count; i++) {
      const length = bytes.readInt32BE(at)
      at += 4
      const slice = slices[i]
      if (length === -1 || slice === undefined) {
        fields[i] = null
        continue
      }
      slice.bytes = bytes
      slice.start = at
      at += length
      slice.end = at
      fields[i] = slice
    }
    return fields
  }

  return { read }
}

const NONE = Buffer.alloc(0)

// COPY takes no parameters: only `literal` inlines values, all quoted, of these types.
const TYPES = /^(int|smallint|bigint|float8|boolean|text|uuid|timestamptz)(\[\])?$/

/** Returns `'value'::type`. Errors: an unlisted type, a non-primitive value, a NUL. */
export function literal(value: unknown, type: string): string {
  if (!TYPES.test(type)) throw new Error(`No literal can be written of type ${type}`)
  if (value === null || value === undefined) return `null::${type}`
  return `${escapeLiteral(toText(value))}::${type}`
}

function toText(value: unknown): string {
  if (Array.isArray(value)) return `{${value.map(toItem).join(',')}}`
  if (value instanceof Date) return value.toISOString()
  switch (typeof value) {
    case 'string':
      if (value.includes('\0')) throw new Error('A literal holds no NUL')
      return value
    case 'number':
    case 'bigint':
    case 'boolean':
      return String(value)
    default:
      throw new Error(`No literal can be written of a ${typeof value}`)
  }
}

/** https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO */
function toItem(value: unknown): string {
  if (value === null || value === undefined) return 'null'
  return `"${toText(value).replace(/["\\]/g, '\\$&')}"`
}
