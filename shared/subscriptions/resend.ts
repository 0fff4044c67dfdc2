/** `$resend`: Subscriptions get the newest version of a resource again. */

import { type Change, SUBSCRIPTION } from '../access/subscription.ts'
import { allOk, badRequest } from '../errors.ts'
import { isObject, parseReference } from '../fhir/resource.ts'
import { readJson } from '../request/negotiate.ts'
import { readInputs } from '../request/parameters.ts'
import { jsonReply, outcomeReply } from '../request/reply.ts'
import type { Operation } from '../request/request.ts'
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

// `$redeliver`: deliveries of a Subscription that have failed are tried again.

const WEEK_MS = 7 * 24 * 3_600_000
// https://hl7.org/fhir/R4/datatypes.html#instant and #date
const INSTANT = /^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d))?$/

export const redeliver: Operation = {
  name: 'redeliver',
  on: [{ type: SUBSCRIPTION, level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  async run(call) {
    const inputs = readInputs(call, [
      { name: 'since', kind: 'text' },
      { name: 'until', kind: 'text' },
    ])
    const since = instant('since', inputs.text('since')) ?? new Date(Date.now() - WEEK_MS)
    const until = instant('until', inputs.text('until')) ?? new Date()
    if (since > until) throw badRequest('since is after until', 'since')
    const { repository } = call.services
    const count = await repository
      .feature(createPendingDeliveries)
      .redeliver(call.principal, call.id ?? '', since, until)
    return jsonReply(200, {
      resourceType: 'Parameters',
      parameter: [{ name: 'count', valueInteger: count }],
    })
  },
}

function instant(name: string, text: string | undefined): Date | undefined {
  if (text === undefined) return undefined
  const time = INSTANT.test(text) ? new Date(text) : undefined
  if (time === undefined || Number.isNaN(time.getTime())) {
    throw badRequest(`${name} must be an instant, as 2026-01-31T12:00:00Z, or a date`, name)
  }
  return time
}
