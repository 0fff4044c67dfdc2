/** What people may do with the deliveries of Subscriptions: look at them, and have them sent again (events.md §5.4). */
import type { Principal } from '../access/principal.ts'
import { type Change, SUBSCRIPTION } from '../access/subscription.ts'
import { badRequest, forbidden, gone, notFound, preconditionFailed } from '../errors.ts'
import { makesEvents } from '../store/events/rows.ts'
import type { Store } from '../store/rows/context.ts'
import { toVersion } from '../store/rows/rows.ts'
import { REGISTRY_PROJECT } from '../store/rows/tenants.ts'
import type { Version } from '../store/rows/version.ts'
import { readJudged } from '../store/rulings/rulings.ts'
import { addResend } from './outbox.ts'
import { redeliver, type SubscriptionState, stateOf } from './state.ts'

export interface PendingDeliveries {
  /** The newest version is matched again, for one Subscription or all. Errors: 400, 403, 404, 410, 412. */
  resend(principal: Principal, type: string, id: string, options: ResendOptions): Promise<void>
  /** Failed deliveries of a time are due again; answers how many. Errors: 403, 404. */
  redeliver(principal: Principal, id: string, since: Date, until: Date): Promise<number>
  /** Errors: 404, 410. */
  state(principal: Principal, id: string): Promise<SubscriptionReport>
}

export interface ResendOptions {
  readonly interaction: Change
  /** Id of the only Subscription to tell. */
  readonly subscription: string | undefined
  /** Workers log what each Subscription makes of it. */
  readonly verbose: boolean
}

export interface SubscriptionReport {
  readonly version: Version
  /** Undefined when nothing was delivered yet. */
  readonly state: SubscriptionState | undefined
}

export function createPendingDeliveries(store: Store): PendingDeliveries {
  async function find(principal: Principal, type: string, id: string) {
    const found = await readJudged(store, principal, type, id, ['read'])
    if (found?.rulings.read === undefined) throw notFound()
    return found.row
  }

  async function findLive(principal: Principal, type: string, id: string) {
    const row = await find(principal, type, id)
    if (row.content === null) throw gone()
    return row
  }

  return {
    async resend(principal, type, id, { interaction, subscription, verbose }) {
      if (!principal.isProjectAdmin) throw forbidden()
      if (!makesEvents(type)) throw badRequest(`Changes of ${type} are no events`)
      const row = await find(principal, type, id)
      const isDeleted = row.content === null
      if (isDeleted && interaction !== 'delete') throw gone()
      if (!isDeleted && interaction === 'delete') {
        throw badRequest(`${type}/${id} is not deleted`, 'interaction')
      }
      const only = subscription && (await findLive(principal, SUBSCRIPTION, subscription)).id
      const project = row.project === REGISTRY_PROJECT ? principal.project.number : row.project
      const cause = { ...principal.cause, resend: { only, verbose } }
      const isAdded = await addResend(store.connection, row, project, interaction, cause)
      if (!isAdded) throw preconditionFailed(`${type}/${id} has changed meanwhile`)
      store.announce()
    },
    async redeliver(principal, id, since, until) {
      if (!principal.isProjectAdmin) throw forbidden()
      const row = await findLive(principal, SUBSCRIPTION, id)
      const count = await redeliver(store.connection, row.project, row.id, since, until)
      if (count > 0) store.announce()
      return count
    },
    async state(principal, id) {
      const row = await findLive(principal, SUBSCRIPTION, id)
      const state = await stateOf(store.connection, row.project, row.id)
      return { version: toVersion(row, id), state }
    },
  }
}
