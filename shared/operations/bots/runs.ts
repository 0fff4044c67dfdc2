/** `Bot/:id/$runs`, `$replay` and `$logs` (live), for project admins. */

import { Readable } from 'node:stream'
import { findBot, resolveRunAs } from '../../bots/bot.ts'
import { createJob, runBot } from '../../bots/execute.ts'
import { type ArchivedInput, readArchivedInput } from '../../bots/inputs.ts'
import { type BotLogMessage, subscribeToBotLogs } from '../../bots/live-logs.ts'
import {
  type BotRunCursor,
  type BotRunRow,
  type CallRecord,
  findArchivedRun,
  findBotRuns,
  type RunQuery,
} from '../../bots/run-records.ts'
import { badRequest, forbidden, HttpError, notFound, tooManyRequests } from '../../core/errors.ts'
import { parseBody } from '../../fhir/json.ts'
import { isObject } from '../../fhir/resource.ts'
import { narrowSession } from '../../identity/principals.ts'
import { absoluteUrl, EVENT_STREAM, jsonReply } from '../../request/reply.ts'
import type { FhirReply, Operation, OperationCall } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'

const DEFAULT_COUNT = 20
const MOST = 100
/** Longer inputs are truncated. */
const MOST_SHOWN_BYTES = 256 * 1024

/** Errors: 400, 403 for non-admins, 404. */
export const runs: Operation = {
  name: 'runs',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['GET'],
  area: 'administration',
  async run(call) {
    const { services, principal, request, id = '' } = call
    await requireLogAccess(call)
    const count = readCount(request.query.get('_count'))
    const project = principal.isSuperAdmin ? undefined : principal.project.number
    const runId = request.query.get('runId')
    if (runId !== null) return await oneRun(services, { bot: id, project, id: parseRunId(runId) })
    const after = readPlace(request.query.get('_cursor'))
    const rows = await findBotRuns(services.database, { bot: id, project, after, count: count + 1 })
    const page = rows.slice(0, count)
    const last = page.at(-1)
    const next =
      rows.length > count && last !== undefined
        ? [{ name: 'next', valueUrl: nextUrl(call, count, last) }]
        : []
    return jsonReply(200, {
      resourceType: 'Parameters',
      parameter: [...page.map((row) => ({ name: 'run', part: toRunParts(row) })), ...next],
    })
  },
}

type OneRun = Required<Pick<RunQuery, 'id'>> & Pick<RunQuery, 'bot' | 'project'>

async function oneRun({ database, storage }: Services, run: OneRun): Promise<FhirReply> {
  const rows = await findBotRuns(database, { ...run, count: MOST })
  const parameter = rows.map(async (row) => {
    const { archive, calls = [], callCount } = row.record
    const input = archive && (await readArchivedInput(storage, archive).catch(() => undefined))
    return {
      name: 'run',
      part: [
        ...toRunParts(row),
        ...(input?.input === undefined
          ? []
          : [{ name: 'input', valueAttachment: attachment(input) }]),
        ...(callCount === undefined ? [] : [{ name: 'callCount', valueInteger: callCount }]),
        ...calls.map((call) => ({ name: 'call', part: partsOfCall(call) })),
      ],
    }
  })
  return jsonReply(200, { resourceType: 'Parameters', parameter: await Promise.all(parameter) })
}

function attachment({ contentType, inputKind, input = '', shown = input }: ArchivedInput) {
  const content = Buffer.from(shown, inputKind === 'bytes' ? 'base64' : 'utf8')
  const data = content.subarray(0, MOST_SHOWN_BYTES).toString('base64')
  return { contentType, size: content.length, ...(data === '' ? {} : { data }) }
}

function partsOfCall({ method, path, status, ms, wrote = [] }: CallRecord): readonly unknown[] {
  return [
    { name: 'method', valueCode: method },
    ...(path === '' ? [] : [{ name: 'path', valueString: path }]),
    ...(status === undefined ? [] : [{ name: 'status', valueInteger: status }]),
    ...(ms === undefined ? [] : [{ name: 'ms', valueDecimal: ms }]),
    ...wrote.map((reference) => ({ name: 'wrote', valueReference: { reference } })),
  ]
}

/** Requires access to a bot's log. Errors: 403, 404 as for reading the bot. */
async function requireLogAccess({ services, principal, id = '' }: OperationCall) {
  const version = await services.repository.read(principal, 'Bot', id)
  if (!principal.isProjectAdmin && !principal.isSuperAdmin) throw forbidden()
  return version
}

function toRunParts({ id, started, record }: BotRunRow): readonly unknown[] {
  const { requester, runAs, hold } = record
  const parts: readonly (readonly [name: string, type: string, value: unknown])[] = [
    ['runId', 'Uuid', `urn:uuid:${id}`],
    ['status', 'Code', record.status],
    ['started', 'Instant', started.toISOString()],
    ['durationMs', 'Decimal', record.durationMs],
    ['cpuMs', 'Decimal', record.cpuMs],
    ['memoryMb', 'Decimal', record.memoryMb],
    ['botVersion', 'String', String(record.version)],
    ['attempt', 'Integer', record.attempt],
    ['mode', 'Code', record.mode],
    ['waitedFor', 'Code', hold?.reason],
    ['waitedMs', 'Decimal', hold?.ms],
    ['requester', 'Reference', requester && { reference: requester }],
    ['runAs', 'Reference', runAs && { reference: runAs }],
    ['traceId', 'String', record.traceId],
    ['error', 'String', record.error],
    ['replayable', 'Boolean', record.archive && true],
    ['log', 'String', record.log],
  ]
  // FHIR has no empty strings.
  const known = parts.filter(([, , value]) => value !== undefined && value !== '')
  return known.map(([name, type, value]) => ({ name, [`value${type}`]: value }))
}

function readCount(text: string | null): number {
  if (text === null) return DEFAULT_COUNT
  const wanted = /^\d{1,6}$/.test(text) ? Number(text) : 0
  if (wanted < 1)
    throw badRequest(`_count must be a whole number of at least 1, not ${text}`, '_count')
  return Math.min(wanted, MOST)
}

function nextUrl({ services, id = '' }: OperationCall, count: number, last: BotRunRow): string {
  const cursor = `${last.started.getTime()}-${last.id}`
  return absoluteUrl(services, `Bot/${id}/$runs?_count=${count}&_cursor=${cursor}`)
}

function readPlace(cursor: string | null): BotRunCursor | undefined {
  if (cursor === null) return undefined
  const [, ms, id = ''] =
    /^(\d{1,13})-([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/.exec(cursor) ?? []
  if (ms === undefined) throw badRequest('Invalid cursor', '_cursor')
  return { started: new Date(Number(ms)), id }
}

const RUN_ID = /^(?:urn:uuid:)?([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/i

/** Repeats a run. Errors: 400, 403 for non-admins, 404, also without an archived input. */
export const replay: Operation = {
  name: 'replay',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  ownFormat: true,
  async run(call) {
    const { services, principal, id = '' } = call
    await requireLogAccess(call)
    const runId = readRunId(call)
    const project = principal.isSuperAdmin ? undefined : principal.project.number
    const row = await findArchivedRun(services.database, id, project, runId)
    if (row?.record.archive === undefined) throw notFound()
    const { shown: _, ...kept } = await readArchivedInput(services.storage, row.record.archive)
    const found = await findBot(call)
    const acting = await resolveRunAs(services, principal, found)
    return await runBot(call, { ...createJob(call, found, acting), ...kept }, found)
  },
}

/** JSON `{runId}`, or Parameters as returned by `$runs`. */
function readRunId({ request }: OperationCall): string {
  const body = parseBody(request.body ?? '')
  const parameters = isObject(body) && Array.isArray(body.parameter) ? body.parameter : []
  const part = parameters.filter(isObject).find(({ name }) => name === 'runId')
  const given = isObject(body) ? (body.runId ?? part?.valueUuid ?? part?.valueString) : undefined
  return parseRunId(String(given))
}

function parseRunId(text: string): string {
  const [, runId] = RUN_ID.exec(text) ?? []
  if (runId === undefined) throw badRequest('Expected runId, the id of a run', 'runId')
  return runId
}

// `Bot/:id/$logs`: live log as server-sent events `start`, `log`, `end`, `gap`, and `close` with a reason.
// https://html.spec.whatwg.org/multipage/server-sent-events.html

/** Below proxies' idle timeouts; each heartbeat also checks access again. */
const HEARTBEAT_MS = 5000
/** Within a token's lifetime; clients reconnect. */
const LONGEST_MS = 3_600_000
/** Each has two Redis connections. */
const MAX_STREAMS = 50
/** Lines buffered for a slow reader; further ones are dropped. */
const MAX_WAITING = 1000

let streams = 0

/** Errors: 400 inside bundles and bots, 403 for non-admins, 404, 429. */
export const logs: Operation = {
  name: 'logs',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['GET'],
  area: 'administration',
  ownFormat: true,
  async run(call) {
    await requireLogAccess(call)
    if (call.request.takesPieces !== true) throw badRequest('$logs is a stream of its own')
    if (streams >= MAX_STREAMS) throw tooManyRequests(HEARTBEAT_MS / 1000)
    return {
      status: 200,
      headers: {
        'Content-Type': EVENT_STREAM,
        'Cache-Control': 'no-store',
        // Disables nginx's buffering.
        'X-Accel-Buffering': 'no',
      },
      body: undefined,
      open: async () =>
        Readable.from(streamLogEvents(call), { objectMode: false, highWaterMark: 1 }),
    }
  },
}

async function* streamLogEvents(call: OperationCall): AsyncGenerator<Buffer> {
  const { services, principal, id = '' } = call
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
  const listening = await subscribeToBotLogs(services.bus, id, hear).catch((error: unknown) => {
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

async function refusal(call: OperationCall): Promise<'revoked' | undefined> {
  const { principals } = call.services
  const { loginId, membershipId = '', project } = call.principal
  try {
    const session = await (loginId === undefined
      ? principals.forMembership(membershipId)
      : principals.forLogin(loginId))
    if (session?.principal.project.id !== project.id) return 'revoked'
    await requireLogAccess({ ...call, principal: narrowSession(session, call.principal).principal })
    return undefined
  } catch (error) {
    // A transient store failure revokes nothing.
    return error instanceof HttpError && error.status < 500 ? 'revoked' : undefined
  }
}
