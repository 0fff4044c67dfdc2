/** Transactions of the repository: one connection, a group that shares statements, one check at the end. */
import type { Database } from '../platform/postgres/database.ts'
import type { Connection } from '../platform/postgres/statement.ts'
import type { TransactionOptions } from '../platform/postgres/transaction.ts'
import { type Group, GroupRefused, StatementGroup } from './group.ts'
import type { Guard } from './repository.ts'
import type { Store } from './rows/context.ts'
import { type Fetch, fetchAll, type RowKey } from './rows/fetch.ts'
import type { CheckedReference } from './rows/ports.ts'
import type { VersionRow } from './rows/rows.ts'
import type { PartWritten, StatementPart } from './rows/write-rows.ts'
import { retrying } from './write/coalesce.ts'
import { conditionKey } from './write/conditional.ts'
import { checkReferences, invalidReferences, missingReferences } from './write/references.ts'

/** A store inside a transaction, and the group of it. */
export interface Inner {
  readonly store: Store
  readonly group: Group
  /** Asks for rows that will be fetched, together with whatever statement comes next. */
  readonly readAhead: (keys: readonly RowKey[]) => void
}

/** Equal conditions are waited for in this process first, then in PostgreSQL. */
export async function runTransaction<T>(
  database: Database,
  store: Store,
  work: (inner: Inner) => Promise<T>,
  guard: Guard | undefined,
): Promise<T> {
  const locks = guard === undefined ? [] : lockedKeys(store, guard)
  const options = { locks, oneState: guard?.oneState ?? false }
  const run = () =>
    retrying(async () => {
      try {
        return await inTransaction(database, store, work, options)
      } catch (error) {
        if (!(error instanceof GroupRefused)) throw error
        return await inTransaction(database, store, work, { ...options, alone: true })
      }
    })
  return locks.reduceRight<() => Promise<T>>((inside, key) => () => store.turns(key, inside), run)()
}

/** In one order for all, so that nobody waits in a circle. */
export function lockedKeys(store: Store, { principal, conditions }: Guard): bigint[] {
  const keys = new Set(conditions.map((condition) => conditionKey(store, principal, condition)))
  return [...keys].sort((a, b) => (a < b ? -1 : 1))
}

interface Options extends TransactionOptions {
  /** A statement for each write. */
  readonly alone?: boolean
}

/** References are checked when all is written, so the order inside does not matter. */
export async function inTransaction<T>(
  database: Database,
  store: Store,
  work: (inner: Inner) => Promise<T>,
  { alone = false, ...options }: Options,
): Promise<T> {
  const codes = new Set<bigint>()
  // A write that may still be rolled back proves nothing about the dictionary.
  const seenCodes: Store['seenCodes'] = {
    has: (key) => store.seenCodes.has(key),
    add: (key) => void codes.add(key),
  }
  let hasEvents = false
  const announce = () => {
    hasEvents = true
  }
  const done = new Map<StatementPart, PartWritten[]>()
  const written: Store['written'] = async (part, row) =>
    void done.set(part, [...(done.get(part) ?? []), row])
  const result = await database.transaction(async (connection) => {
    const deferred: CheckedReference[] = []
    const group = new StatementGroup(connection, alone)
    const ahead = createReadAhead(connection, group.fetch)
    const { submit, remove } = group
    const inner: Store = {
      ...store,
      connection,
      fetch: ahead.fetch,
      recent: undefined,
      submit,
      remove,
      seenCodes,
      announce,
      written,
      deferred,
    }
    const result = await work({ store: inner, group, readAhead: ahead.read })
    await checkReferences(connection, deferred)
    for (const [part, rows] of done) await part.beforeCommit?.(connection, rows)
    return result
  }, options)
  for (const key of codes) store.seenCodes.add(key)
  if (hasEvents) store.announce()
  const rows = [...done].flatMap(([part, rows]) => rows.map((row) => [part, row] as const))
  await Promise.all(rows.map(([part, row]) => store.written(part, row)))
  return result
}

/** Early reads are one statement, and each result is given once: a second read sees what is there by then. */
function createReadAhead(connection: Connection, fetch: Fetch) {
  const ahead = new Map<string, Promise<VersionRow | undefined>>()
  const nameOf = ({ project, type, id }: RowKey) => `${project}/${type}/${id}`
  return {
    read(keys: readonly RowKey[]) {
      if (keys.length === 0) return
      const rows = fetchAll(connection, keys)
      for (const [i, key] of keys.entries()) {
        const row = rows.then((found) => found[i])
        // A failure ends the transaction; nobody may be waiting for this row yet.
        row.catch(() => undefined)
        ahead.set(nameOf(key), row)
      }
    },
    fetch(key: RowKey) {
      if (key.ruling !== undefined) return fetch(key)
      const name = nameOf(key)
      const row = ahead.get(name)
      ahead.delete(name)
      return row ?? fetch(key)
    },
  }
}

/** As `Transaction.together`: each piece gets a store that knows which references are its own. */
export async function runTogether<T>(
  { store, group }: Inner,
  pieces: readonly ((store: Store) => Promise<T>)[],
  failed: (index: number, error: unknown) => unknown,
): Promise<T[]> {
  const own = pieces.map((): CheckedReference[] => [])
  const owned = () =>
    own.flatMap((list, owner) => list.map((reference) => ({ ...reference, owner })))
  const check = () => {
    const references = owned()
    const missing = missingReferences(store.connection, references)
    missing.catch(() => undefined)
    return { count: references.length, missing }
  }
  let checked: ReturnType<typeof check> | undefined
  const results = await group.run(
    pieces.map((piece, i) => () => piece({ ...store, deferred: own[i] })),
    failed,
    () => {
      checked = check()
    },
  )
  // A piece that changes nothing writes nothing, and its references are checked all the same.
  if (checked?.count !== owned().length) checked = check()
  const [first] = (await checked.missing).toSorted((a, b) => a.owner - b.owner)
  if (first === undefined) return results
  const paths = (await checked.missing).filter(({ owner }) => owner === first.owner)
  throw failed(first.owner, invalidReferences(paths.map(({ path }) => path)))
}
