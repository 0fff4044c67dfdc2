/** `botica agent`: passes messages of devices to bots, as a plain listener or as an Agent with channels. */
import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import type { MedplumClient } from '@medplum/core'
import { note } from '../print.ts'
import { AgentConnection, type ServiceRequest } from './connection.ts'
import { type Answer, type Listening, listenMllp, type Received, sendMllp, toAck } from './mllp.ts'

export interface AgentOptions {
  readonly listen?: string
  readonly bot?: string
  readonly agent?: string
}

interface Channel {
  readonly name: string
  readonly endpoint: { readonly reference: string }
}

interface Agent {
  readonly status: string
  readonly channel?: readonly Channel[]
}

const HL7 = 'x-application/hl7-v2+er7'
const PING = 'x-application/ping'
const SEND_MS = 55_000
const PING_MS = 10_000
const MOST_LINES = 1000
const VERSION = 'botica-0.1.0'

/** Runs until a signal ends the process. Errors: invalid options, an address in use, a rejected agent. */
export async function runAgent(medplum: MedplumClient, options: AgentOptions): Promise<void> {
  const { listen, bot, agent } = options
  if (agent !== undefined) {
    if (listen !== undefined || bot !== undefined) {
      throw new Error(
        '--agent takes its addresses and bots from the Agent; leave out --listen and --bot',
      )
    }
    return await new AgentProgram(medplum, agent).run()
  }
  if (listen === undefined || bot === undefined) {
    throw new Error('Name --agent, or --listen and --bot')
  }
  const listening = await listenMllp(listen, executeEach(medplum, bot))
  note('green', `listening at ${listening.address} for bot ${bot}`)
}

/** The program of an Agent: its listeners and its connection. */
class AgentProgram {
  readonly #medplum: MedplumClient
  readonly #agentId: string
  readonly #connection: AgentConnection
  readonly #lines: { readonly level: string; readonly msg: string; readonly timestamp: string }[] =
    []
  #listening: Listening[] = []

  constructor(medplum: MedplumClient, agentId: string) {
    this.#medplum = medplum
    this.#agentId = agentId
    const handle = (request: ServiceRequest) => this.#handle(request)
    this.#connection = new AgentConnection({ medplum, agentId, version: VERSION, handle })
  }

  async run(): Promise<void> {
    try {
      await this.#load()
      await this.#connection.run()
    } finally {
      await this.#close()
    }
  }

  /** Reads the Agent and opens a listener per channel. Errors: those of the service and of the addresses. */
  async #load(): Promise<void> {
    const url = this.#medplum.fhirUrl('Agent', this.#agentId)
    const agent: Agent = await this.#medplum.get(url, { cache: 'reload' })
    await this.#close()
    if (agent.status === 'off') return this.#say('WARN', 'The Agent is off: no channel is served')
    for (const channel of agent.channel ?? []) {
      const listening = await this.#open(channel)
      // Added one by one, so that the next load closes them even if this one fails.
      if (listening !== undefined) this.#listening.push(listening)
    }
  }

  async #open({ name, endpoint }: Channel): Promise<Listening | undefined> {
    const url = this.#medplum.fhirUrl(endpoint.reference)
    const { address }: { address: string } = await this.#medplum.get(url, { cache: 'reload' })
    if (!address.startsWith('mllp:')) {
      this.#say('WARN', `Channel ${name} is not served: ${address} is not an MLLP address`)
      return undefined
    }
    const listening = await listenMllp(address, this.#answer(name))
    this.#say('INFO', `channel ${name} listens at ${listening.address}`)
    return listening
  }

  #answer(channel: string): Answer {
    return async ({ message, remote, signal }) => {
      const body = message.toString()
      const sent = { channel, remote, contentType: HL7, body }
      const answer = await this.#connection.transmit(sent, signal)
      if (answer === undefined) return undefined
      const isOk = answer.statusCode === 200
      if (!isOk) this.#say('ERROR', `Channel ${channel}: ${answer.body}`)
      return toAck(message, isOk, answer.body)
    }
  }

  async #handle(request: ServiceRequest): Promise<object> {
    switch (request.type) {
      case 'agent:transmit:request':
        return await deliver(request)
      case 'agent:reloadconfig:request':
        await this.#load()
        return { statusCode: 200 }
      case 'agent:logs:request':
        return this.#logs(request)
      case 'agent:stats:request':
        return {
          statusCode: 200,
          stats: { live: true, webSocketQueueDepth: this.#connection.waiting },
        }
      default:
        throw new Error(`This agent does not support ${request.type}`)
    }
  }

  /** `before` is the number of lines that are older than the page. */
  #logs({ limit = 20, before }: ServiceRequest): object {
    const end = before === undefined ? this.#lines.length : Number(before)
    const start = Math.max(0, end - Number(limit))
    const logs = this.#lines.slice(start, end).toReversed()
    const older = start > 0 ? { nextBefore: String(start) } : {}
    return { statusCode: 200, logs, hasMore: start > 0, ...older }
  }

  #say(level: 'INFO' | 'WARN' | 'ERROR', msg: string): void {
    this.#lines.push({ level, msg, timestamp: new Date().toISOString() })
    if (this.#lines.length > MOST_LINES) this.#lines.shift()
    note(level === 'INFO' ? 'green' : level === 'WARN' ? 'yellow' : 'red', msg)
  }

  async #close(): Promise<void> {
    await Promise.all(this.#listening.map((listening) => listening.close()))
    this.#listening = []
  }
}

/** Sends a message of the service to a device. Errors: unsupported, no connection, no answer. */
async function deliver({ remote, contentType, body, returnAck }: ServiceRequest): Promise<object> {
  const to = String(remote)
  if (contentType === PING) {
    // The service checks that it is an address or a host name, never an option.
    const { stdout } = await promisify(execFile)('ping', ['-c', '1', to], { timeout: PING_MS })
    return { remote: to, contentType: 'text/plain', statusCode: 200, body: stdout }
  }
  if (contentType !== HL7) throw new Error(`This agent does not send ${contentType}`)
  const kind = returnAck === 'application' ? 'application' : 'first'
  const ack = await sendMllp(to, String(body), kind, SEND_MS)
  return { remote: to, contentType: HL7, statusCode: 200, body: ack }
}

const RETRY_MS = 1000

/** `bot` is an id, or an identifier as `system|value`. */
function executeEach(medplum: MedplumClient, bot: string): Answer {
  const url = bot.includes('|')
    ? `${medplum.fhirUrl('Bot', '$execute')}?identifier=${encodeURIComponent(bot)}`
    : medplum.fhirUrl('Bot', bot, '$execute').href

  return async ({ message, remote, signal }: Received) => {
    // Repeats of one message are one run.
    const headers = { 'Content-Type': HL7, Prefer: 'wait=110', 'Idempotency-Key': randomUUID() }
    const request = { method: 'POST', headers, body: message.toString() }
    const response = await untilAnswered(medplum, url, request, signal)
    if (response === undefined) return undefined
    const body = await response.text()
    if (!response.ok) note('red', `${remote}: the bot answered ${response.status}: ${body}`)
    return toAck(message, response.ok, body)
  }
}

interface Request {
  readonly method: string
  readonly headers: Readonly<Record<string, string>>
  readonly body?: string
}

/** Repeats a request while the service is away, and asks for the result of a slow run. Undefined once aborted. */
async function untilAnswered(
  medplum: MedplumClient,
  url: string,
  request: Request,
  signal: AbortSignal,
): Promise<Response | undefined> {
  const pending = { url, request }
  while (!signal.aborted) {
    const response = await send(medplum, pending.url, pending.request, signal)
    const status = response?.status ?? 503
    if (response !== undefined && status < 500 && ![202, 401, 409, 429].includes(status)) {
      return response
    }
    const location = response?.headers.get('content-location')
    if (status === 202 && location) {
      pending.url = location.replace(/status$/, 'result')
      pending.request = { method: 'GET', headers: {} }
    }
    await delay(RETRY_MS, undefined, { signal }).catch(() => undefined)
  }
  return undefined
}

async function send(
  medplum: MedplumClient,
  url: string,
  { headers, ...request }: Request,
  signal: AbortSignal,
): Promise<Response | undefined> {
  try {
    await medplum.refreshIfExpired()
    const Authorization = `Bearer ${medplum.getAccessToken()}`
    return await fetch(url, { ...request, headers: { ...headers, Authorization }, signal })
  } catch (error) {
    if (!signal.aborted) note('yellow', `The service is not available: ${(error as Error).message}`)
    return undefined
  }
}
