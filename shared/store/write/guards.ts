/** Checks of guarded elements (access/guarded/elements.ts). */
import { authorsChanges, guardedChanges } from '../../access/guarded/elements.ts'
import { hasAllRights } from '../../access/guarded/rights.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { forbiddenByPlatform } from '../../core/errors.ts'
import type { Resource } from '../../fhir/resource.ts'
import { readRow, type StoreContext, type WriteAttempt } from '../rows/context.ts'
import { parseVersion, toVersion } from '../rows/rows.ts'

/** Checks a write and returns the changed guarded paths. Errors: 403. */
export function checkGuarded({
  principal,
  before,
  meant,
  isNamed,
}: WriteAttempt): readonly string[] {
  const { resourceType: type } = meant
  const changes = guardedChanges(before, meant)
  if (changes.length === 0) return changes
  const isOwn = before === undefined || before.meta?.author?.reference === principal.profile
  const free = isOwn ? authorsChanges(before, meant) : []
  const path = changes.find((one) => !free.includes(one))
  if (path !== undefined && !principal.isProjectAdmin && !isNamed) throw notGuarded(type, path)
  if (changes.includes('identityProvider')) requireProviderRight(principal, type)
  return changes
}

/** Errors: 403. */
export async function checkGuardedDeletion(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  if (mayWriteGuarded(principal, type, 'delete')) return
  const stored = await readStored(store, principal, type, id)
  if (stored === undefined) return
  const free = authorsChanges(undefined, stored)
  const path = guardedChanges(undefined, stored).find((one) => !free.includes(one))
  if (path !== undefined) throw notGuarded(type, path)
}

export function mayWriteGuarded(
  principal: Principal,
  type: string,
  interaction: 'create' | 'update' | 'delete',
): boolean {
  return principal.isProjectAdmin || hasNamedGrant(principal, type, interaction)
}

export function hasNamedGrant(
  principal: Principal,
  type: string,
  interaction: 'create' | 'update' | 'delete',
): boolean {
  return grantsFor(principal, type, interaction)?.some(({ isNamed }) => isNamed) ?? false
}

export async function readStored(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<Resource | undefined> {
  const row = await readRow(store, principal, type, id)
  return row === undefined || row.content === null ? undefined : parseVersion(toVersion(row))
}

function notGuarded(type: string, path: string) {
  const reason = `is for project administrators, and for policies with an entry for ${type}`
  return forbiddenByPlatform(`${type}.${path} ${reason}`, `${type}.${path}`)
}

/** A provider acts for every member, so its author needs all rights. Errors: 403. */
export function requireProviderRight(principal: Principal, type: string): void {
  if (hasAllRights(principal)) return
  const reason = 'An identity provider is set up by administrators alone'
  throw forbiddenByPlatform(reason, `${type}.identityProvider`)
}
