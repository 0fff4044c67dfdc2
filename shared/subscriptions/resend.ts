/** `$resend`: Subscriptions are told of the newest version of a resource again. */

import { type Change, SUBSCRIPTION } from '../access/subscription.ts'
import { allOk, badRequest } from '../errors.ts'
import { isObject, parseReference } from '../fhir/resource.ts'
import { readJson } from '../request/negotiate.ts'
import type { Operation } from '../request/operation.ts'
import { outcomeReply } from '../request/reply.ts'
import { createPendingDeliveries } from './pending-deliveries.ts'

const CHANGES: readonly Change[] = ['create', 'update', 'delete']

export const resend: Operation = {
  name: 'resend',
  on: [{ level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  async run({ services, principal, request, type = '', id = '' }) {
    const body = request.body === undefined || request.body.length === 0 ? {} : readJson(request)
    if (!isObject(body)) throw badRequest('The body must be a JSON object')
    const { interaction = 'update', subscription, verbose = false } = body
    const change = CHANGES.find((name) => name === interaction)
    if (change === undefined) {
      throw badRequest(`interaction must be one of ${CHANGES.join(', ')}`, 'interaction')
    }
    if (!/^(true|false)$/.test(String(verbose))) {
      throw badRequest('verbose must be true or false', 'verbose')
    }
    await services.repository.feature(createPendingDeliveries).resend(principal, type, id, {
      interaction: change,
      subscription: subscription === undefined ? undefined : subscriptionId(subscription),
      verbose: String(verbose) === 'true',
    })
    return outcomeReply(200, allOk)
  },
}

function subscriptionId(value: unknown): string {
  const reference = typeof value === 'string' ? parseReference(value) : undefined
  if (reference?.type === SUBSCRIPTION) return reference.id
  throw badRequest('subscription must be Subscription/<id>', 'subscription')
}
