/** `$resend`: Subscriptions are told of the newest version of a resource again. */
import { badRequest } from '../../errors.ts'
import { allOk } from '../../fhir/outcome.ts'
import { isObject, parseReference } from '../../fhir/resource.ts'
import { type Change, SUBSCRIPTION } from '../../fhir/subscription.ts'
import { readJson } from '../negotiate.ts'
import type { Operation } from '../operation.ts'
import { outcomeReply } from '../reply.ts'

const CHANGES: readonly Change[] = ['create', 'update', 'delete']

export const resend: Operation = {
  name: 'resend',
  on: [{ level: 'instance' }],
  methods: ['POST'],
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
    await services.repository.owed.resend(principal, type, id, {
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
