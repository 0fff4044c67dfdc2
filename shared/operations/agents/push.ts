/** `Agent/:id/$push`: sends a message to a device behind an agent. */
import { isIP } from 'node:net'
import type { Principal } from '../../access/principal.ts'
import { allOk, badRequest } from '../../core/errors.ts'
import { requireNamedHost } from '../../fhir/bot-declarations.ts'
import { acceptRequest } from '../../jobs/async-requests.ts'
import { safeContentType } from '../../request/binary/content.ts'
import { type Inputs, readInputs, toInteraction } from '../../request/parameters.ts'
import { outcomeReply } from '../../request/reply.ts'
import type { FhirReply, Operation } from '../../request/request.ts'
import { findAgent, findDestination } from './find.ts'
import { agentAddress } from './presence.ts'
import { type AgentAnswer, askAgent } from './requests.ts'

const PING = 'x-application/ping'
const DEFAULT_WAIT_MS = 10_000
/** Below the time limits of common routers. */
const LONGEST_WAIT_MS = 55_000
const ACKS = ['first', 'application']

/** Errors: 400 for invalid parameters, an agent that is away or off, an error of the agent, and a timeout; 403, 404. */
export const push: Operation = {
  name: 'push',
  on: [
    { type: 'Agent', level: 'instance' },
    { type: 'Agent', level: 'type' },
  ],
  methods: ['POST'],
  inputs: {
    destination:
      'reference!: Device/id, or Device?identifier=…; the Device has a `url` such as mllp://10.1.2.3:5000. For a ping also a host',
    contentType: 'text!: Such as x-application/hl7-v2+er7, or x-application/ping',
    body: 'text!: The message',
    waitForResponse: 'flag: False by default',
    waitTimeout: 'whole: In ms, 0 to 55,000; 10,000 by default',
    returnAck: 'text: first, or application: not a commit acknowledgement',
  },
  text: {
    summary: 'Send a message to a device behind an agent',
    description:
      'Without an id, `identifier` in the query names the agent. With `waitForResponse` the answer is that of the device. `Prefer: respond-async` works.',
    answer: '*/*',
  },
  acts: true,
  async run(call) {
    const inputs = readInputs(call)
    const agent = await findAgent(call)
    const [destination, contentType] = [
      inputs.required('destination'),
      inputs.required('contentType'),
    ]
    const body = inputs.required('body')
    const isPing = contentType === PING
    const waitMs = readWait(inputs)
    const returnAck = readReturnAck(inputs)
    if (agent.status === 'off' && !isPing) throw badRequest('Agent is currently disabled')
    const isHostToPing = isPing && isHost(destination)
    const remote = isHostToPing
      ? destination
      : await findDestination(call.services, call.principal, destination)
    requireNamedRemote(call.principal, remote)
    const context = toInteraction(call)
    if (context.preferences.respondAsync) return await acceptRequest(context)
    const message = {
      type: 'agent:transmit:request',
      remote,
      contentType,
      body,
      ...returnAck,
    } as const
    const isAwaited = inputs.flag('waitForResponse') ?? false
    const { signal } = call.request
    const answer = await askAgent(call.services, agentAddress(agent), message, {
      waitMs,
      isAwaited,
      signal,
    })
    return isAwaited ? answerReply(answer) : outcomeReply(200, allOk)
  },
}

/** Errors: 403 for a device that the calling Bot does not name. */
function requireNamedRemote({ declared }: Principal, remote: string): void {
  if (declared === undefined) return
  const { hostname = remote, port = '' } = URL.parse(remote) ?? {}
  requireNamedHost(declared, hostname, port)
}

function readWait(inputs: Inputs): number {
  const waitMs = inputs.whole('waitTimeout') ?? DEFAULT_WAIT_MS
  if (waitMs >= 0 && waitMs <= LONGEST_WAIT_MS) return waitMs
  throw badRequest(`"waitTimeout" must be between 0 and ${LONGEST_WAIT_MS} ms`, 'waitTimeout')
}

function readReturnAck(inputs: Inputs): { readonly returnAck?: string } {
  const returnAck = inputs.text('returnAck')
  if (returnAck === undefined) return {}
  if (ACKS.includes(returnAck)) return { returnAck }
  throw badRequest('"returnAck" must be first or application', 'returnAck')
}

/** https://www.rfc-editor.org/rfc/rfc1123#page-13; never an option of a command. */
function isHost(text: string): boolean {
  if (isIP(text) !== 0) return true
  const label = '[a-z\\d](?:[a-z\\d-]{0,61}[a-z\\d])?'
  return text.length <= 253 && new RegExp(`^${label}(?:\\.${label})*$`, 'i').test(text)
}

/** Errors: 400 for an answer of another kind. */
function answerReply({ type, statusCode, contentType, body }: AgentAnswer): FhirReply {
  if (type !== 'agent:transmit:response') {
    throw badRequest(`Agent answered with ${type}`)
  }
  return {
    status: readStatus(statusCode),
    headers: { 'Content-Type': safeContentType(contentType) },
    body: typeof body === 'string' ? body : '',
  }
}

/** The fault of a device is not one of this server, so a status of 500 or above becomes 400. */
function readStatus(given: unknown): number {
  if (given === undefined) return 200
  return Number.isInteger(given) && Number(given) >= 200 && Number(given) < 500
    ? Number(given)
    : 400
}
