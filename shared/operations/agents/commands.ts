/** Operations on an Agent, or on the Agents of a search: commands to connected agents, `$status` and `$messages`. */

import { badRequest, forbidden, unavailable } from '../../core/errors.ts'
import type { Resource } from '../../fhir/resource.ts'
import {
  type Inputs,
  type Output,
  parametersReply,
  parametersResource,
  readInputs,
} from '../../request/parameters.ts'
import { jsonReply } from '../../request/reply.ts'
import type { InputTexts, Operation, OperationCall } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import { type Found, findAgent, forAgents } from './find.ts'
import { agentAddress, readAgentMessages, readAgentState } from './presence.ts'
import { type AgentAnswer, type AgentRequest, askAgent } from './requests.ts'

interface Command {
  readonly name: string
  readonly text: Operation['text']
  readonly inputs: InputTexts
  /** True unless it only reads. */
  readonly acts: boolean
  readonly waitMs: number
  /** Errors: 400. */
  request(inputs: Inputs): AgentRequest
  outputs(answer: AgentAnswer): readonly Output[]
}

const WAIT_MS = 10_000
/** An agent downloads the installer before it answers. */
const UPGRADE_MS = 55_000
const MOST_LINES = 1000

const statusCode = ({ statusCode: code }: AgentAnswer): readonly Output[] => [
  ['statusCode', 'valueInteger', typeof code === 'number' ? code : 200],
]

export const reloadConfig = commandOperation({
  name: 'reload-config',
  text: { summary: 'Make agents read their configuration again', answer: 'Parameters' },
  inputs: {},
  acts: true,
  waitMs: WAIT_MS,
  request: () => ({ type: 'agent:reloadconfig:request' }),
  outputs: statusCode,
})

export const upgrade = commandOperation({
  name: 'upgrade',
  text: { summary: 'Make agents install another version of their program', answer: 'Parameters' },
  inputs: {
    version: 'text: Such as 5.1.29; the newest by default',
    force: 'flag: Also the installed version, and while an upgrade is running',
  },
  acts: true,
  waitMs: UPGRADE_MS,
  request(inputs) {
    const [version, force] = [inputs.text('version'), inputs.flag('force')]
    if (version !== undefined && !/^\d+\.\d+\.\d+(-[\w.-]+)?$/.test(version)) {
      throw badRequest('"version" must be a version such as 5.1.29', 'version')
    }
    return {
      type: 'agent:upgrade:request',
      ...(version === undefined ? {} : { version }),
      ...(force === undefined ? {} : { force }),
    }
  },
  outputs: statusCode,
})

export const agentStats = commandOperation({
  name: 'stats',
  text: {
    summary: 'Read the statistics of agents',
    description: '`stats` is a JSON text: connections, queues and times of answers.',
    answer: 'Parameters',
  },
  inputs: {},
  acts: false,
  waitMs: WAIT_MS,
  request: () => ({ type: 'agent:stats:request' }),
  outputs: ({ stats }) => [['stats', 'valueString', JSON.stringify(stats ?? {})]],
})

export const fetchLogs = commandOperation({
  name: 'fetch-logs',
  text: {
    summary: 'Read the latest lines of the logs of agents',
    description: '`logs` is a JSON text; `nextBefore` continues with older lines.',
    answer: 'Parameters',
  },
  inputs: {
    limit: `whole: At most ${MOST_LINES} lines`,
    before: 'text: nextBefore of an answer',
  },
  acts: false,
  waitMs: WAIT_MS,
  request(inputs) {
    const [limit, before] = [inputs.whole('limit'), inputs.text('before')]
    if (limit !== undefined && (limit < 1 || limit > MOST_LINES)) {
      throw badRequest(`"limit" must be between 1 and ${MOST_LINES}`, 'limit')
    }
    return {
      type: 'agent:logs:request',
      ...(limit === undefined ? {} : { limit }),
      ...(before === undefined ? {} : { before }),
    }
  },
  outputs: ({ logs, hasMore, nextBefore }) => [
    ['logs', 'valueString', JSON.stringify(Array.isArray(logs) ? logs : [])],
    ['hasMore', 'valueBoolean', hasMore === true],
    ['nextBefore', 'valueString', typeof nextBefore === 'string' ? nextBefore : undefined],
  ],
})

function commandOperation(command: Command): Operation {
  const { name, text, inputs, acts } = command
  const own = Object.keys(inputs)
  return {
    name,
    on: [
      { type: 'Agent', level: 'instance' },
      { type: 'Agent', level: 'type' },
    ],
    methods: ['GET', 'POST'],
    inputs,
    text: { description: 'Without an id: those of a search, at most 100, as a Bundle.', ...text },
    ...(acts ? { acts: true } : {}),
    async run(call) {
      const request = command.request(commandInputs(call, own))
      const ask = (agent: Found) => answer(call, command, agentAddress(agent), request)
      if (call.id !== undefined) return jsonReply(200, await ask(await findAgent(call)))
      return await forAgents(call, own, ask)
    },
  }
}

/** In the bulk form the query also has the parameters of the search, so those are not unknown ones. */
function commandInputs(call: OperationCall, own: readonly string[]): Inputs {
  if (call.id !== undefined) return readInputs(call)
  const query = new URLSearchParams([...call.request.query].filter(([name]) => own.includes(name)))
  return readInputs({ ...call, request: { ...call.request, query } })
}

/** Errors: 400, also for an answer of another kind or with an error status. */
async function answer(
  { services, request: { signal } }: OperationCall,
  { waitMs, outputs }: Command,
  agent: string,
  request: AgentRequest,
): Promise<Resource> {
  const found = await askAgent(services, agent, request, { waitMs, isAwaited: true, signal })
  if (found.type !== request.type.replace(/request$/, 'response')) {
    throw badRequest(`Agent answered with ${found.type}`)
  }
  const code = found.statusCode ?? 200
  if (typeof code === 'object') throw badRequest('Agent answered without a status')
  if (!(Number(code) < 400)) throw badRequest(`Agent answered with status ${Number(code)}`)
  return parametersResource(outputs(found))
}

// The connection and the messages of an agent, as Redis has them

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
  const state = await readAgentState(redis, agentAddress(agent)).catch(throwUnavailable)
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
    const messages = await readAgentMessages(services.redis, agentAddress(agent)).catch(
      throwUnavailable,
    )
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

function throwUnavailable(error: unknown): never {
  throw unavailable('Redis', error)
}
