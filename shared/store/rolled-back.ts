/** A Repository whose writes are rolled back, and whose process forgets them. */
import { businessRule } from '../core/errors.ts'
import type { Database } from '../postgres/database.ts'
import { Repository } from './repository.ts'
import type { StoreContext, WritePart } from './rows/context.ts'
import { fetchAll } from './rows/newest.ts'
import { writeStatement } from './rows/statements.ts'
import type { Written } from './rows/write-rows.ts'
import { inTransaction } from './transaction.ts'
import { createKeyedMutex } from './write/conditional.ts'
import { deleteStatement } from './write/deletions.ts'

/**
 * `database` is that of `rolledBack`. Errors of writes: also 422 for `cached` types, of which processes would keep versions
 * that never come to be.
 */
export function rolledBackRepository(
  repository: Repository,
  database: Database,
  cached: ReadonlySet<string>,
): Repository {
  return repository.withStore((outer) => {
    const store: StoreContext = {
      ...outer,
      connection: database,
      submit: (write) => database.query<Written>(writeStatement([write])),
      fetch: async (key) => (await fetchAll(database, [key]))[0],
      remove: (deletion) => database.query(deleteStatement([deletion])),
      recent: undefined,
      counts: undefined,
      seenCodes: { has: (key) => outer.seenCodes.has(key), set: () => {} },
      holders: { has: (id) => outer.holders.has(id), set: () => {} },
      announce: () => {},
      written: async () => {},
      parts: [...outer.parts, refuseTypes(cached)],
      turns: createKeyedMutex(),
      transact: (work, locks) =>
        inTransaction(database, store, (inner) => work(inner.store), { locks }),
    }
    return new Repository(store, { database, replicas: undefined })
  })
}

function refuseTypes(types: ReadonlySet<string>): WritePart {
  return {
    types,
    buildRow({ resource: { resourceType } }) {
      throw businessRule(`A dry run does not write a ${resourceType}`, resourceType)
    },
  }
}
