/**
 * A Repository whose reads go to read replicas, as far as those have what the Project has written. What decides about
 * rights stays on the primary, as all of the registry does, and so do writes with what they read.
 */
import { type Principal, SYSTEM_PROJECT_NUMBER } from '../access/principal.ts'
import { HttpError } from '../errors.ts'
import type { Replica, Replicas } from '../platform/postgres/replicas.ts'
import type { Repository } from './repository.ts'

const READS = [
  'read',
  'readMany',
  'readBinaries',
  'readVersion',
  'history',
  'historyOf',
  'search',
  'searchTypes',
  'searchMany',
  'searchDeleted',
  'searchPerReference',
  'countPerReference',
  'compartment',
  'metaSummary',
] as const
const WRITES = [
  'create',
  'update',
  'patch',
  'delete',
  'createConditional',
  'updateConditional',
  'deleteConditional',
] as const

type Call = (principal: Principal, ...rest: readonly unknown[]) => Promise<unknown>

/** `readerOn` answers the Repository on a replica. */
export function routed(
  primary: Repository,
  replicas: Replicas,
  readerOn: (replica: Replica) => Repository,
): Repository {
  // Both lists hold methods whose first argument is the Principal.
  const callOf = (repository: Repository, name: (typeof READS | typeof WRITES)[number]) =>
    repository[name] as unknown as Call
  const reading =
    (name: (typeof READS)[number]): Call =>
    async (principal, ...rest) => {
      const replica = await choose(replicas, principal)
      if (replica === undefined) return await callOf(primary, name)(principal, ...rest)
      try {
        return await callOf(readerOn(replica), name)(principal, ...rest)
      } catch (error) {
        if (error instanceof HttpError && error.status < 500) throw error
        if (rest.some((item) => item instanceof AbortSignal && item.aborted)) throw error
        replicas.failed(replica)
        return await callOf(primary, name)(principal, ...rest)
      }
    }
  const writing =
    (name: (typeof WRITES)[number]): Call =>
    (principal, ...rest) =>
      marked(replicas, principal, callOf(primary, name)(principal, ...rest))
  const methods = {
    ...Object.fromEntries(READS.map((name) => [name, reading(name)])),
    ...Object.fromEntries(WRITES.map((name) => [name, writing(name)])),
  }
  return {
    ...primary,
    ...(methods as unknown as Partial<Repository>),
    transaction: (work, guard) =>
      marked(replicas, guard?.principal, primary.transaction(work, guard)),
    sideBySide: () => routed(primary.sideBySide(), replicas, readerOn),
  }
}

async function choose(replicas: Replicas, principal: Principal): Promise<Replica | undefined> {
  const { project, isSuperAdmin } = principal
  // A super admin sees all Projects, and the registry is asked about rights.
  if (isSuperAdmin || project.number === SYSTEM_PROJECT_NUMBER) return undefined
  const linked = project.linked?.map(({ number }) => number) ?? []
  return await replicas.choose([project.number, ...linked])
}

/** A write that has failed may have been committed all the same. Errors: those of `work`, the primary's. */
async function marked<T>(
  replicas: Replicas,
  principal: Principal | undefined,
  work: Promise<T>,
): Promise<T> {
  const isOne = principal !== undefined && !principal.isSuperAdmin
  const project = isOne ? principal.project.number : undefined
  const done = await work.catch(async (error: unknown) => {
    await replicas.written(project).catch(() => undefined)
    throw error
  })
  await replicas.written(project)
  return done
}
