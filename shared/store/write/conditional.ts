/** Conditional writes. Equal ones take an advisory lock: https://hl7.org/fhir/R4/http.html#ccreate */

import { needsSql } from '../../access/decisions/decide.ts'
import type { Principal } from '../../access/principal.ts'
import { unlinked } from '../../access/project-context.ts'
import {
  badRequest,
  conflict,
  HttpError,
  isAbsent,
  multipleMatches,
  notFound,
  preconditionFailed,
} from '../../core/errors.ts'
import { LOST, retryOnConflict } from '../../core/retry.ts'
import type { Resource } from '../../fhir/resource.ts'
import { isCondition, type SearchRequest } from '../../search/language/search-request.ts'
import { search } from '../../search/page.ts'
import { normalId, requireAllowed, rowScope, type StoreContext } from '../rows/context.ts'
import type { Deletion, Version, WriteOptions, WriteResult } from '../rows/version.ts'
import type { KeyedMutex } from '../rows/write-rows.ts'
import { remove } from './deletions.ts'
import { create, update } from './write.ts'

/** Waiting for the lock in PostgreSQL costs a connection each; waiting here costs none. */
export function createKeyedMutex(): KeyedMutex {
  const last = new Map<bigint, Promise<void>>()
  return async (key, work) => {
    const before = last.get(key)
    const turn = Promise.withResolvers<void>()
    last.set(key, turn.promise)
    try {
      await before
      return await work()
    } finally {
      turn.resolve()
      if (last.get(key) === turn.promise) last.delete(key)
    }
  }
}

interface ConditionalWrite {
  readonly resource: Resource
  readonly condition: SearchRequest
  readonly options?: WriteOptions | undefined
}

export async function createConditional(
  store: StoreContext,
  principal: Principal,
  { resource, condition, options = {} }: ConditionalWrite,
): Promise<WriteResult> {
  requireAllowed(principal, resource.resourceType, 'create')
  const answer = (match: Version): WriteResult => ({ ...match, outcome: 'unchanged' })
  const match = options.isMissing ? undefined : await findOne(store, principal, condition)
  if (match !== undefined) return answer(match)
  return locked(store, principal, condition, async (inner) => {
    const late = await findOne(inner, principal, condition)
    return late === undefined ? create(inner, principal, resource, options) : answer(late)
  })
}

export async function updateConditional(
  store: StoreContext,
  principal: Principal,
  { resource, condition, options = {} }: ConditionalWrite,
): Promise<WriteResult> {
  requireAllowed(principal, resource.resourceType, 'update')
  const overwrite = (inner: StoreContext, match: Version) => {
    requireMatchedId(resource.id, match)
    const check = async (live: Version | undefined) => {
      if (live?.ver === match.ver) return
      const newest = await findOne(inner, principal, condition)
      if (newest?.id !== match.id) throw notFound()
    }
    return update(inner, principal, { ...resource, id: match.id }, { ...options, check })
  }
  const match = await findOne(store, principal, condition)
  if (match !== undefined) {
    const isDecidedInSql = needsSql(store, principal, match.type, 'update')
    try {
      return isDecidedInSql
        ? await store.transact((inner) => overwrite(inner, match), [])
        : await overwrite(store, match)
    } catch (error) {
      // The match has changed and matches no longer.
      if (!isAbsent(error)) throw error
    }
  }
  return locked(store, principal, condition, async (inner) => {
    const late = await findOne(inner, principal, condition)
    if (late !== undefined) return overwrite(inner, late)
    if (options.ifMatch !== undefined || options.mustExist) throw preconditionFailed()
    if (resource.id === undefined || options.keepId) {
      return create(inner, principal, resource, options)
    }
    requireUpdateAsCreate(principal)
    const { resourceType: type, id } = resource
    return update(inner, principal, resource, { ...options, check: requireNoLive(type, id) })
  })
}

/** Checks that an update that found no match does not overwrite another resource. Errors: 409. */
export function requireNoLive(type: string, id: string): NonNullable<WriteOptions['check']> {
  return async (live) => {
    if (live !== undefined) throw conflict(`${type}/${id} exists already, and does not match`)
  }
}

export async function deleteConditional(
  store: StoreContext,
  principal: Principal,
  { condition, limit }: { readonly condition: SearchRequest; readonly limit: number },
): Promise<readonly Deletion[]> {
  requireAllowed(principal, condition.type, 'delete')
  if (condition.conditions.length === 0) throw badRequest('Search criteria are required')
  return locked(store, principal, condition, (inner) => {
    const deleted: Deletion[] = []
    const attempt = async () => {
      const asked = firstPage(condition, limit + 1)
      const { versions } = await search(inner, unlinked(principal), asked)
      if (versions.length + deleted.length > limit) throw multipleMatches()
      for (const version of versions) {
        const deletion = await removeMatch(inner, principal, version)
        if (deletion === LOST) return LOST
        deleted.push(deletion)
      }
      return deleted
    }
    return retryOnConflict(attempt, { inTransaction: true })
  })
}

/** Deletes the version that matched: a newer one may match no longer. */
async function removeMatch(
  store: StoreContext,
  principal: Principal,
  { type, id, ver }: Version,
): Promise<Deletion | typeof LOST> {
  try {
    return await remove(store, principal, { type, id, options: { ifMatch: [ver] } })
  } catch (error) {
    if (error instanceof HttpError && error.status === 412) return LOST
    throw error
  }
}

/** Errors: 412 for more than one. */
async function findOne(
  store: StoreContext,
  principal: Principal,
  condition: SearchRequest,
): Promise<Version | undefined> {
  const { versions } = await search(store, unlinked(principal), firstPage(condition, 2))
  if (versions.length > 1) throw multipleMatches()
  return versions[0]
}

const FIRST = { sort: [], includes: [], offset: 0, cursor: undefined, total: 'none' } as const

function firstPage(condition: SearchRequest, count: number): SearchRequest {
  return { ...condition, ...FIRST, count }
}

async function locked<T>(
  store: StoreContext,
  principal: Principal,
  condition: SearchRequest,
  work: (inner: StoreContext) => Promise<T>,
): Promise<T> {
  const key = conditionKey(store, principal, condition)
  const run = () => store.transact(work, [key])
  return store.deferred ? run() : store.turns(key, run)
}

/** PostgreSQL has room for some thousand locks, and a bundle may have as many conditions. */
const LOCKS_OF_PROJECT = 256n

export function conditionKey(
  store: StoreContext,
  principal: Principal,
  condition: SearchRequest,
): bigint {
  const { type, conditions } = condition
  const criteria = conditions.map((criterion) =>
    isCondition(criterion)
      ? JSON.stringify([criterion.code, criterion.modifier ?? '', criterion.values.toSorted()])
      : JSON.stringify(criterion),
  )
  const { project } = rowScope(principal, type)
  const p = store.keys.param(project, type, '_condition')
  const key = store.keys.token(p, undefined, criteria.toSorted().join('&'))
  const first = store.keys.param(project, '*', '_lock')
  return BigInt.asIntN(64, first + (BigInt.asUintN(64, key) % LOCKS_OF_PROJECT))
}

/** Errors: 400 when the resource was sent with another id than the match has. */
export function requireMatchedId(sent: string | undefined, { type, id }: Version): void {
  if (sent !== undefined && normalId(sent) !== id) {
    throw badRequest('Resource ID did not match resolved ID', `${type}.id`)
  }
}

/** Errors: 400 unless the client may choose the id of a resource that a conditional update creates. */
export function requireUpdateAsCreate({ isSuperAdmin, project }: Principal): void {
  if (!isSuperAdmin && !project.updateAsCreate) {
    throw badRequest('Cannot perform create as update with client-assigned ID')
  }
}
