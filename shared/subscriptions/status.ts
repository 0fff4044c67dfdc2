/** `$status` of a Subscription. https://hl7.org/fhir/uv/subscriptions-backport/ */

import { randomUUID } from 'node:crypto'
import { SUBSCRIPTION } from '../access/subscription.ts'
import type { Operation } from '../request/operation.ts'
import { jsonReply } from '../request/reply.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { createPendingDeliveries } from './pending-deliveries.ts'

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
