/** Transactions of the repository: one connection, a group that shares statements, one check at the end. */
import type { Database } from '../database.ts'
import { retrying } from './coalesce.ts'
import { conditionKey, lockKeys } from './conditional.ts'
import type { Store } from './context.ts'
import { createGroup, type Group, GroupRefused } from './group.ts'
import {
  type CheckedReference,
  checkReferences,
  invalidReferences,
  missingReferences,
} from './references.ts'
import type { Guard } from './repository.ts'

/** A store inside a transaction, and the group of it. */
export interface Inner {
  readonly store: Store
  readonly group: Group
}

/** Equal conditions are waited for in this process first, then in PostgreSQL. */
export async function runTransaction<T>(
  database: Database,
  store: Store,
  work: (inner: Inner) => Promise<T>,
  guard: Guard | undefined,
): Promise<T> {
  const keys = guard === undefined ? [] : lockedKeys(store, guard)
  const guarded = async (inner: Inner) => {
    if (keys.length > 0) await lockKeys(inner.store, keys)
    return work(inner)
  }
  const run = () =>
    retrying(async () => {
      try {
        return await inTransaction(database, store, guarded, false)
      } catch (error) {
        if (!(error instanceof GroupRefused)) throw error
        return await inTransaction(database, store, guarded, true)
      }
    })
  return keys.reduceRight<() => Promise<T>>((inside, key) => () => store.turns(key, inside), run)()
}

/** In one order for all, so that nobody waits in a circle. */
function lockedKeys(store: Store, { principal, conditions }: Guard): bigint[] {
  const keys = new Set(conditions.map((condition) => conditionKey(store, principal, condition)))
  return [...keys].sort((a, b) => (a < b ? -1 : 1))
}

/** References are checked when all is written, so the order inside does not matter. */
export async function inTransaction<T>(
  database: Database,
  store: Store,
  work: (inner: Inner) => Promise<T>,
  alone: boolean,
): Promise<T> {
  const codes = new Set<bigint>()
  // What may still be rolled back proves nothing about the dictionary.
  const seenCodes: Store['seenCodes'] = {
    has: (key) => store.seenCodes.has(key),
    add: (key) => void codes.add(key),
  }
  const result = await database.transaction(async (connection) => {
    const deferred: CheckedReference[] = []
    const group = createGroup(connection, alone)
    const { fetch, submit, remove } = group
    const inner: Store = { ...store, connection, fetch, submit, remove, seenCodes, deferred }
    const result = await work({ store: inner, group })
    await checkReferences(connection, deferred)
    return result
  })
  for (const key of codes) store.seenCodes.add(key)
  return result
}

/** As `Transaction.together`: each piece gets a store that knows which references are its own. */
export async function runTogether<T>(
  { store, group }: Inner,
  pieces: readonly ((store: Store) => Promise<T>)[],
  failed: (index: number, error: unknown) => unknown,
): Promise<T[]> {
  const own = pieces.map((): CheckedReference[] => [])
  const results = await group.run(
    pieces.map((piece, i) => () => piece({ ...store, deferred: own[i] })),
    failed,
  )
  const owned = own.flatMap((list, owner) => list.map((reference) => ({ ...reference, owner })))
  const missing = await missingReferences(store.connection, owned)
  const [first] = missing.map(({ owner }) => owner).sort((a, b) => a - b)
  if (first === undefined) return results
  const paths = missing.filter(({ owner }) => owner === first).map(({ path }) => path)
  throw failed(first, invalidReferences(paths))
}
