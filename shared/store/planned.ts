/**
 * Creates that are worked out before it is known whether their ids are free: many of them are one
 * statement, which fails where an id is taken. What they are made of need not be kept until then.
 */
import { grantsFor } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import type { OwnParameters } from '../fhir/own-parameters.ts'
import type { Resource } from '../fhir/resource.ts'
import { SUBSCRIPTION } from '../fhir/subscription.ts'
import type { Store } from './context.ts'
import { draft } from './create.ts'
import { compareRows } from './deletions.ts'
import { ownParametersOf } from './own-parameters.ts'
import type { CheckedReference } from './references.ts'
import { countStatement, type Write, type WrittenCount } from './statements.ts'

export interface PlannedCreate {
  readonly id: string
  /** Its rows are those of these search parameters. */
  readonly own: OwnParameters | undefined
  readonly write: Write
  readonly references: readonly CheckedReference[]
}

/** Undefined where it takes PostgreSQL to tell what may be written. Errors: as a create. */
export async function planCreate(
  store: Store,
  principal: Principal,
  resource: Resource,
): Promise<PlannedCreate | undefined> {
  const { resourceType: type } = resource
  const isPlain = !principal.isSuperAdmin && grantsFor(principal, type, 'create') === undefined
  // Becoming active takes more than its row.
  if (!isPlain || type === SUBSCRIPTION) return undefined
  const { id, own, heirOf, judge } = await draft(store, principal, resource, { keepId: true })
  if (heirOf.some((patient) => store.holders.has(patient))) return undefined
  const { prepared } = judge(heirOf.length === 0 ? [] : undefined)
  const { write, references } = prepared
  // In a transaction references are looked for once all is written.
  const isAlone = write.targets.length === 0
  return { id, own, write: isAlone ? write : { ...write, targets: [] }, references }
}

/**
 * Inside a transaction, which must not be committed when the answer is false: some were not written.
 * Errors: also that of PostgreSQL for an id that is taken.
 */
export async function createPlanned(
  store: Store,
  principal: Principal,
  planned: readonly PlannedCreate[],
): Promise<boolean> {
  const { number } = principal.project
  const own = await ownParametersOf(store.ownParameters, store.connection, principal, number)
  if (planned.some((item) => item.own !== own)) return false
  for (const { references } of planned) store.deferred?.push(...references)
  const writes = planned.map(({ write }) => write).sort(compareRows)
  const [answer] = await store.connection.query<WrittenCount>(countStatement(writes))
  if (answer?.written !== planned.length) return false
  for (const { rows } of writes) for (const { k } of rows?.codes ?? []) store.seenCodes.add(k)
  if (answer.hasEvents) store.announce()
  return true
}
