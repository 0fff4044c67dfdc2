/** `$redeliver`: deliveries of a Subscription that have failed are tried again. */

import { SUBSCRIPTION } from '../access/subscription.ts'
import { badRequest } from '../errors.ts'
import type { Operation } from '../request/operation.ts'
import { readInputs } from '../request/parameters.ts'
import { jsonReply } from '../request/reply.ts'
import { createPendingDeliveries } from './pending-deliveries.ts'

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
