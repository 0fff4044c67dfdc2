/**
 * `Bot/:id/$logs`: what runs of the bot log, as server-sent events while they happen
 * (https://html.spec.whatwg.org/multipage/server-sent-events.html): `start`, `log`, `end`, `gap`, and
 * `close` with the reason before the service ends the stream.
 */
import { Readable } from 'node:stream'
import { badRequest, HttpError, tooManyRequests } from '../errors.ts'
import { within } from '../identity/principals.ts'
import { EVENT_STREAM } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import { type BotLogMessage, listenToBot } from './live-logs.ts'
import { requireAuthor } from './runs.ts'

/** Proxies cut off what is silent for longer; rights are looked at again as often. */
const HEARTBEAT_MS = 5000
/** No longer than a token lives; whoever listens comes again. */
const LONGEST_MS = 3_600_000
/** Each has two connections to Redis. */
const MAX_STREAMS = 50
/** The backlog of a reader that is too slow; further lines are left out. */
const MAX_WAITING = 1000

let streams = 0

/** Errors: 400 inside bundles and bots, 403 for who is no project admin, 404, 429. */
export const logs: Operation = {
  name: 'logs',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['GET'],
  area: 'administration',
  ownFormat: true,
  async run(call) {
    await requireAuthor(call)
    if (call.request.takesPieces !== true) throw badRequest('$logs is a stream of its own')
    if (streams >= MAX_STREAMS) throw tooManyRequests(HEARTBEAT_MS / 1000)
    return {
      status: 200,
      headers: {
        'Content-Type': EVENT_STREAM,
        'Cache-Control': 'no-store',
        // nginx would gather events otherwise.
        'X-Accel-Buffering': 'no',
      },
      body: undefined,
      open: async () => Readable.from(eventsOf(call), { objectMode: false, highWaterMark: 1 }),
    }
  },
}

async function* eventsOf(call: OperationCall): AsyncGenerator<Buffer> {
  const { services, principal, id = '' } = call
  const { config, log } = services
  const waiting: string[] = []
  let dropped = 0
  let wake = () => {}
  const hear = ({ project, events }: BotLogMessage) => {
    if (!principal.isSuperAdmin && project !== principal.project.number) return
    if (waiting.length >= MAX_WAITING) dropped++
    else waiting.push(events.map(({ type, ...data }) => eventText(type, data)).join(''))
    wake()
  }
  const endAt = Date.now() + LONGEST_MS
  streams++
  const listening = await listenToBot(config, log, id, hear).catch((error: unknown) => {
    streams--
    throw error
  })
  try {
    yield Buffer.from(': listening\n\n')
    for (let checkAt = Date.now() + HEARTBEAT_MS; ; ) {
      if (waiting.length === 0) await woken(checkAt - Date.now(), (wakeUp) => (wake = wakeUp))
      const gap = dropped === 0 ? '' : eventText('gap', { messages: dropped })
      const text = waiting.splice(0).join('') + gap
      dropped = 0
      if (text !== '') yield Buffer.from(text)
      if (Date.now() < checkAt) continue
      checkAt = Date.now() + HEARTBEAT_MS
      const reason = Date.now() > endAt ? 'expired' : await refusal(call)
      if (reason !== undefined) {
        yield Buffer.from(eventText('close', { reason }))
        return
      }
      yield Buffer.from(': beat\n\n')
    }
  } finally {
    streams--
    listening.close()
  }
}

function eventText(type: string, data: unknown): string {
  return `event: ${type}\ndata: ${JSON.stringify(data)}\n\n`
}

function woken(ms: number, set: (wake: () => void) => void): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, Math.max(0, ms))
    set(() => {
      clearTimeout(timer)
      resolve()
    })
  })
}

/** Why the listener may not listen any more. */
async function refusal(call: OperationCall): Promise<'revoked' | undefined> {
  const { principals } = call.services
  const { loginId, membershipId = '', project } = call.principal
  try {
    const session = await (loginId === undefined
      ? principals.forMembership(membershipId)
      : principals.forLogin(loginId))
    if (session?.principal.project.id !== project.id) return 'revoked'
    await requireAuthor({ ...call, principal: within(session, call.principal).principal })
    return undefined
  } catch (error) {
    // A store that is away for a moment refuses nobody.
    return error instanceof HttpError && error.status < 500 ? 'revoked' : undefined
  }
}
