/** Operations on deliveries of Subscriptions: `$status`, and `$redeliver`, which sends them again. */

import { randomUUID } from 'node:crypto'
import type { Principal } from '../access/principal.ts'
import { type Change, SUBSCRIPTION } from '../access/subscription.ts'
import { badRequest, forbidden, gone, notFound, preconditionFailed } from '../errors.ts'
import { jsonReply } from '../request/reply.ts'
import type { Operation } from '../request/request.ts'
import { makesEvents } from '../store/events/rows.ts'
import type { Store } from '../store/rows/context.ts'
import { parseVersion, toVersion } from '../store/rows/rows.ts'
import { REGISTRY_PROJECT } from '../store/rows/tenants.ts'
import type { Version } from '../store/rows/version.ts'
import { readRuled } from '../store/rulings/rulings.ts'
import { addResend } from './outbox.ts'
import {
  type PendingDelivery,
  pendingOf,
  redeliver,
  type SubscriptionState,
  stateOf,
} from './state.ts'

interface PendingDeliveries {
  /** The newest version is matched again, for one Subscription or all. Errors: 400, 403, 404, 410, 412. */
  resend(principal: Principal, type: string, id: string, options: ResendOptions): Promise<void>
  /** Failed deliveries of a time are due again; answers how many. Errors: 403, 404. */
  redeliver(principal: Principal, id: string, since: Date, until: Date): Promise<number>
  /** Deliveries that wait or have failed. Errors: 403, 404, 410. */
  list(principal: Principal, id: string): Promise<readonly PendingDelivery[]>
  /** Errors: 404, 410. */
  state(principal: Principal, id: string): Promise<SubscriptionReport>
}

interface ResendOptions {
  readonly interaction: Change
  /** Id of the only Subscription to notify. */
  readonly subscription: string | undefined
  /** Workers log what each Subscription makes of it. */
  readonly verbose: boolean
}

interface SubscriptionReport {
  readonly version: Version
  /** Undefined when nothing was delivered yet. */
  readonly state: SubscriptionState | undefined
}

export function createPendingDeliveries(store: Store): PendingDeliveries {
  async function find(principal: Principal, type: string, id: string) {
    const found = await readRuled(store, principal, type, { id, interactions: ['read'] })
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
      const isAdded = await addResend(store.connection, row, {
        home: project,
        change: interaction,
        cause,
      })
      if (!isAdded) throw preconditionFailed(`${type}/${id} has changed meanwhile`)
      store.announce()
    },
    async redeliver(principal, id, since, until) {
      if (!principal.isProjectAdmin) throw forbidden()
      const row = await findLive(principal, SUBSCRIPTION, id)
      const count = await redeliver(store.connection, {
        project: row.project,
        id: row.id,
        since,
        until,
      })
      if (count > 0) store.announce()
      return count
    },
    async list(principal, id) {
      if (!principal.isProjectAdmin) throw forbidden()
      const row = await findLive(principal, SUBSCRIPTION, id)
      return await pendingOf(store.connection, row.project, row.id)
    },
    async state(principal, id) {
      const row = await findLive(principal, SUBSCRIPTION, id)
      const state = await stateOf(store.connection, row.project, row.id)
      return { version: toVersion(row, id), state }
    },
  }
}

/** `$status` of a Subscription. https://hl7.org/fhir/uv/subscriptions-backport/ */
export const subscriptionStatus: Operation = {
  name: 'status',
  on: [{ type: SUBSCRIPTION, level: 'instance' }],
  methods: ['GET'],
  async run({ services, principal, id = '' }) {
    const { version, state } = await services.repository
      .feature(createPendingDeliveries)
      .state(principal, id)
    const subscription = parseVersion(version)
    const { delivered = 0, failed = 0, waiting = 0 } = state ?? {}
    const error = subscription.error ?? state?.error ?? undefined
    return jsonReply(200, {
      resourceType: 'Bundle',
      id: randomUUID(),
      type: 'history',
      timestamp: new Date().toISOString(),
      entry: [
        {
          fullUrl: `urn:uuid:${randomUUID()}`,
          resource: {
            resourceType: 'SubscriptionStatus',
            type: 'query-status',
            status: subscription.status,
            eventsSinceSubscriptionStart: String(delivered + failed),
            subscription: { reference: `${SUBSCRIPTION}/${id}` },
            ...(error === undefined ? {} : { error: [{ text: error }] }),
            extension: [
              ...Object.entries({ delivered, failed, waiting }).map(([name, valueInteger]) => ({
                url: `${services.config.baseUrl}fhir/StructureDefinition/subscription-${name}`,
                valueInteger,
              })),
              ...(state?.paused
                ? [
                    {
                      url: `${services.config.baseUrl}fhir/StructureDefinition/subscription-paused-until`,
                      valueInstant: state.paused.toISOString(),
                    },
                  ]
                : []),
            ],
          },
        },
      ],
    })
  },
}
