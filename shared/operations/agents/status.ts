/** `$status` and `$bulk-status` of Agents, and `$messages`. */

import { forbidden, unavailable } from '../../core/errors.ts'
import type { Resource } from '../../fhir/resource.ts'
import { type Output, parametersReply, parametersResource } from '../../request/parameters.ts'
import { jsonReply } from '../../request/reply.ts'
import type { Operation } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import { findAgent, forAgents } from './find.ts'
import { agentAddress, readAgentMessages, readAgentState } from './presence.ts'

/** Errors: 400 without id and identifier, 403, 404, 503. */
export const agentStatus: Operation = {
  name: 'status',
  on: [
    { type: 'Agent', level: 'instance' },
    { type: 'Agent', level: 'type' },
  ],
  methods: ['GET'],
  text: {
    summary: 'Read whether an agent is connected',
    description: 'connected, disconnected or unknown, with the version and the time of the change.',
    answer: 'Parameters',
  },
  async run(call) {
    const agent = await findAgent(call)
    return jsonReply(200, await readState(call.services, agent))
  },
}

/** Errors: 400 for an invalid search, 503. */
export const bulkStatus: Operation = {
  name: 'bulk-status',
  on: [{ type: 'Agent', level: 'type' }],
  methods: ['GET'],
  text: {
    summary: 'Read which agents of a search are connected',
    description: 'At most 100. A Bundle of Parameters with `agent` and `result`.',
    answer: 'Bundle',
  },
  run: (call) => forAgents(call, [], (agent) => readState(call.services, agent)),
}

async function readState({ redis }: Services, agent: Resource): Promise<Resource> {
  const state = await readAgentState(redis, agentAddress(agent)).catch(away)
  const { status, version, lastUpdated } = state
  return parametersResource([
    ['status', 'valueCode', status],
    ['version', 'valueString', version ?? 'unknown'],
    ['lastUpdated', 'valueInstant', lastUpdated?.toISOString()],
  ])
}

/** Errors: 403 for non-admins, 404, 503. */
export const agentMessages: Operation = {
  name: 'messages',
  on: [{ type: 'Agent', level: 'instance' }],
  methods: ['GET'],
  text: {
    summary: 'List the last 50 messages of an agent, without their content',
    answer: 'Parameters',
  },
  area: 'administration',
  async run(call) {
    const { principal, services } = call
    const agent = await findAgent(call)
    if (!principal.isProjectAdmin && !principal.isSuperAdmin) throw forbidden()
    const messages = await readAgentMessages(services.redis, agentAddress(agent)).catch(away)
    return parametersReply(
      messages.map(({ at, bot, ...message }): Output => {
        const parts: readonly Output[] = [
          ['at', 'valueInstant', new Date(at).toISOString()],
          ['direction', 'valueCode', message.direction],
          ['channel', 'valueString', message.channel],
          ['remote', 'valueString', message.remote],
          ['contentType', 'valueString', message.contentType],
          ['bytes', 'valueInteger', message.bytes],
          ['statusCode', 'valueInteger', message.statusCode],
          ['durationMs', 'valueInteger', message.durationMs],
          ['bot', 'valueReference', bot && { reference: `Bot/${bot}` }],
          ['runId', 'valueUuid', message.runId && `urn:uuid:${message.runId}`],
        ]
        return ['message', 'part', parts]
      }),
    )
  },
}

function away(error: unknown): never {
  throw unavailable('Redis', error)
}
