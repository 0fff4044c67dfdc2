/**
 * Creates that are worked out before it is known whether their ids are free: many of them are one
 * statement, which fails where an id is taken. What they are made of need not be kept until then.
 */

import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import type { Resource } from '../../fhir/resource.ts'
import { ownParametersOf } from '../index/custom-parameters.ts'
import type { Store } from '../rows/context.ts'
import { draft } from './create.ts'
import type { PlannedAnswer, PlannedCreates } from './planned-rows.ts'

/** Adds a create to the others; false where it takes PostgreSQL to tell what may be written. Errors: as a create. */
export async function planCreate(
  store: Store,
  principal: Principal,
  resource: Resource,
  plans: PlannedCreates,
): Promise<boolean> {
  const { resourceType: type } = resource
  const isPlain = !principal.isSuperAdmin && grantsFor(principal, type, 'create') === undefined
  if (!isPlain || store.rules.get(type)?.admit !== undefined) return false
  const { own, heirOf, judge } = await draft(store, principal, resource, { keepId: true })
  if (heirOf.some((patient) => store.holders.has(patient))) return false
  if (plans.rows.length === 0) plans.own = own
  if (plans.own !== own) return false
  const { write, references } = judge(heirOf.length === 0 ? [] : undefined).prepared
  if (!plans.rows.add(write)) return false
  // In a transaction references are looked for once all is written.
  plans.references.push(...references)
  return true
}

/**
 * Inside a transaction, which must not be committed when the answer is false: something is not as it was.
 * Errors: also that of PostgreSQL for an id that is taken.
 */
export async function createPlanned(
  store: Store,
  principal: Principal,
  { rows, references, own }: PlannedCreates,
): Promise<boolean> {
  const { number } = principal.project
  const now = await ownParametersOf(store.ownParameters, store.connection, principal, number)
  if (now !== own) return false
  store.deferred?.push(...references)
  const [answer] = await store.connection.query<PlannedAnswer>(rows.statement(store.parts))
  if (answer === undefined || answer.isHeld) return false
  for (const key of rows.codes) store.seenCodes.add(key)
  if (answer.hasEvents) store.announce()
  return true
}
