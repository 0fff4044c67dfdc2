/** Deletion: one statement, and one before it if a policy distinguishes resources of the type. */

import { isPlain, readDecided } from '../../access/decisions/decide.ts'
import { may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { conflict, forbidden, HttpError, notFound, preconditionFailed } from '../../core/errors.ts'
import { LOST, retryOnConflict } from '../../core/retry.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { isLegalId, readRow, requireAllowed, rowScope, type StoreContext } from '../rows/context.ts'
import { eventOrigin } from '../rows/event-rows.ts'
import type { Deleted } from '../rows/ports.ts'
import { toVersion } from '../rows/rows.ts'
import type { Deletion, Version, WriteOptions } from '../rows/version.ts'
import { profileKey } from './deletions.ts'
import { authorId } from './prepare.ts'

interface Removal {
  readonly type: string
  readonly id: string
  readonly options?: WriteOptions | undefined
}

/** Idempotent. Errors: 403, 404 unknown or not visible, 412. */
export async function remove(
  store: StoreContext,
  principal: Principal,
  { type, id, options = {} }: Removal,
): Promise<Deletion> {
  requireAllowed(principal, type, 'delete')
  if (!isLegalId(id)) throw notFound()
  const isMember = principal.membershipId !== undefined
  if (isMember) await store.rules.get(type)?.checkRemoval?.(store, principal, id)
  if (!isPlain(principal, type, 'delete') || !isSeen(principal, type)) {
    return removeRuled(store, principal, { type, id, options })
  }
  return removeRow(store, principal, { type, id, options })
}

function isSeen(principal: Principal, type: string): boolean {
  return may(principal, type, 'read') && isPlain(principal, type, 'read')
}

/** Deletes the version decided on; decides again on a newer one. */
function removeRuled(
  store: StoreContext,
  principal: Principal,
  removal: Removal,
): Promise<Deletion> {
  const inTransaction = store.deferred !== undefined
  return retryOnConflict(() => removeStored(store, principal, removal), { inTransaction })
}

async function removeStored(
  store: StoreContext,
  principal: Principal,
  { type, id, options = {} }: Removal,
): Promise<Deletion | typeof LOST> {
  const before = await readDecided(store, principal, type, { id, interactions: ['read', 'delete'] })
  if (before?.decisions.read === undefined) throw notFound()
  const { row } = before
  if (row.content === null) return { ...toVersion(row, id), membership: undefined }
  if (before.decisions.delete === undefined) throw forbidden('criteria of every entry for delete')
  if (options.ifMatch && !options.ifMatch.includes(row.ver)) throw preconditionFailed()
  try {
    return await removeRow(store, principal, { type, id, options: { ifMatch: [row.ver] } })
  } catch (error) {
    const isLostRace = error instanceof HttpError && error.status === 412
    if (!isLostRace || options.ifMatch) throw error
    return LOST
  }
}

async function removeRow(
  store: StoreContext,
  principal: Principal,
  { type, id, options = {} }: Removal,
): Promise<Deletion> {
  const isMember = principal.membershipId !== undefined
  if (isMember) await store.rules.get(type)?.checkDeletion?.(store, principal, id)
  const scope = rowScope(principal, type)
  const removeIn = (project: number) => {
    const deletion = {
      project,
      type: typeNumber(type),
      id: store.keys.rowId(type, id),
      vers: options.ifMatch,
      metaPrefix: scope.metaPrefix,
      author: principal.profile && authorId(store, principal.profile),
      event: eventOrigin(store.keys, principal, { type, projectId: undefined, operation: 'd' }),
      profileKey: profileKey(store.keys, type, id),
      lease: principal.lease,
      parts: store.parts.flatMap((part, order) =>
        part.removal?.type === type ? [{ part, order }] : [],
      ),
    }
    const inTransaction = store.deferred !== undefined
    return retryOnConflict(() => store.remove(deletion), { inTransaction })
  }
  let rows = await removeIn(scope.project)
  if (rows.length === 0 && scope.everywhere) {
    const row = await readRow(store, principal, type, id)
    if (row && row.project !== scope.project) rows = await removeIn(row.project)
  }
  const found = rows.find((row) => row.deleted) ?? rows[0]
  if (found?.hasEvents) store.announce()
  if (found === undefined) throw notFound()
  if (found.deleted) await notifyDeletion(store, found, toVersion(found, id))
  if (found.gone) return { ...toVersion(found, id), membership: found.membership ?? undefined }
  if (options.ifMatch) throw preconditionFailed()
  throw conflict('Too many concurrent changes, try again')
}

async function notifyDeletion(
  store: StoreContext,
  { project }: Deleted,
  version: Version,
): Promise<void> {
  for (const part of store.parts) {
    if (part.buildDeletionRow === undefined || part.types?.has(version.type) !== true) continue
    await store.written(part, { project, row: part.buildDeletionRow(version) })
  }
}
