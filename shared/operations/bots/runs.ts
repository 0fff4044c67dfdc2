/** `Bot/$runs`, `Bot/:id/$runs`, `$replay` and `$logs` (live), for project admins. */

import { Readable } from 'node:stream'
import { findBot, findLabel, resolveRunAs, toFoundBot } from '../../bots/bot.ts'
import { createJob, runBot } from '../../bots/execute.ts'
import { type BotLogMessage, subscribeToBotLogs } from '../../bots/live-logs.ts'
import {
  type ArchivedInput,
  type BotRunRow,
  type CallRecord,
  findArchivedRun,
  findBotRuns,
  type RunQuery,
  readArchivedInput,
} from '../../bots/run-records.ts'
import { badRequest, forbidden, HttpError, notFound, tooManyRequests } from '../../core/errors.ts'
import { LIVE } from '../../fhir/bot-labels.ts'
import { parseBody } from '../../fhir/json.ts'
import { isObject, nonEmptyText, toObjects } from '../../fhir/resource.ts'
import { narrowSession } from '../../identity/principals.ts'
import { botAddress } from '../../queue/jobs.ts'
import { type Output, parametersReply } from '../../request/parameters.ts'
import { absoluteUrl, EVENT_STREAM } from '../../request/reply.ts'
import type { FhirReply, Operation, OperationCall } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import { REPLAY_INPUTS, replayLetters } from './dead-letters.ts'
import { MOST_RUNS, RUN_ID, readRunSelection, toRunCursor } from './run-query.ts'

/** Longer inputs are truncated. */
const MOST_SHOWN_BYTES = 256 * 1024

/** Lists the runs of one bot or of all. Errors: 400, 403 for non-admins, 404. */
export const runs: Operation = {
  name: 'runs',
  on: [
    { type: 'Bot', level: 'instance' },
    { type: 'Bot', level: 'type' },
  ],
  methods: ['GET'],
  text: {
    summary: 'List the latest runs of a bot, or of all bots',
    description:
      'With `runId`, for one bot: all attempts of one run, with the requests it made, the versions it wrote, and its input where inputs are kept. Secrets are left out.',
    query: {
      _count: 'whole: Default 20, at most 100',
      status: 'text: ok or failed',
      since: 'text: Started at this date or time, or later',
      until: 'text: Started in this period or before',
      runId: 'text: This run alone',
    },
    answer: 'Parameters',
  },
  area: 'administration',
  async run(call) {
    const { services, principal, request, id: bot } = call
    if (bot === undefined) requireAdmin(call)
    else await requireLogAccess(call)
    const project = principal.isSuperAdmin ? undefined : principal.project.number
    const runId = request.query.get('runId')
    if (runId !== null) {
      if (bot === undefined) throw badRequest('runId needs the bot: GET Bot/[id]/$runs', 'runId')
      return await oneRun(services, { bot, project, id: parseRunId(runId) })
    }
    const { count, ...selection } = readRunSelection(request.query)
    const query = { ...selection, bot, project, count: count + 1 }
    const rows = await findBotRuns(services.database, query)
    const page = rows.slice(0, count)
    const last = rows.length > count ? page.at(-1) : undefined
    const listed =
      bot === undefined
        ? await withBots(call, page)
        : page.map((row): Output => ['run', 'part', toRunParts(row)])
    return parametersReply([...listed, ['next', 'valueUrl', last && nextUrl(call, last)]])
  },
}

/** Names the bot of each run; runs of bots that the caller may not read are left out. */
async function withBots(
  { services, principal }: OperationCall,
  rows: readonly BotRunRow[],
): Promise<readonly Output[]> {
  const ids = [...new Set(rows.map(({ bot }) => bot))]
  const found = await services.repository.readMany(
    principal,
    ids.map((id) => ({ type: 'Bot', id })),
  )
  const bots = new Map(
    found.flatMap((version, place) =>
      version === undefined ? [] : [[ids[place], parseVersion(version)] as const],
    ),
  )
  return rows.flatMap((row): Output[] => {
    const bot = bots.get(row.bot)
    if (bot === undefined) return []
    const reference = { reference: `Bot/${row.bot}`, display: bot.name }
    return [['run', 'part', [['bot', 'valueReference', reference], ...toRunParts(row)]]]
  })
}

type OneRun = Required<Pick<RunQuery, 'id'>> & Pick<RunQuery, 'bot' | 'project'>

async function oneRun({ database, storage }: Services, run: OneRun): Promise<FhirReply> {
  const rows = await findBotRuns(database, { ...run, count: MOST_RUNS })
  const listed = rows.map(async (row): Promise<Output> => {
    const { archive, calls = [], callCount } = row.record
    const input = archive && (await readArchivedInput(storage, archive).catch(() => undefined))
    const parts: readonly Output[] = [
      ...toRunParts(row),
      ['input', 'valueAttachment', input?.input === undefined ? undefined : attachment(input)],
      ['callCount', 'valueInteger', callCount],
      ...calls.map((call): Output => ['call', 'part', partsOfCall(call)]),
    ]
    return ['run', 'part', parts]
  })
  return parametersReply(await Promise.all(listed))
}

function attachment({ contentType, inputKind, input = '', shown = input }: ArchivedInput) {
  const content = Buffer.from(shown, inputKind === 'bytes' ? 'base64' : 'utf8')
  const data = content.subarray(0, MOST_SHOWN_BYTES).toString('base64')
  return { contentType, size: content.length, ...(data === '' ? {} : { data }) }
}

function partsOfCall({ method, path, status, ms, wrote = [] }: CallRecord): readonly Output[] {
  return [
    ['method', 'valueCode', method],
    ['path', 'valueString', path],
    ['status', 'valueInteger', status],
    ['ms', 'valueDecimal', ms],
    ...wrote.map((reference): Output => ['wrote', 'valueReference', { reference }]),
  ]
}

/** Requires access to a bot's log. Errors: 403, 404 as for reading the bot. */
async function requireLogAccess({ services, principal, id = '' }: OperationCall) {
  const version = await services.repository.read(principal, 'Bot', id)
  requireAdmin({ principal })
  return version
}

function requireAdmin({ principal }: Pick<OperationCall, 'principal'>): void {
  if (!principal.isProjectAdmin && !principal.isSuperAdmin) throw forbidden()
}

function toRunParts({ id, started, record }: BotRunRow): readonly Output[] {
  const { requester, runAs, hold, stream } = record
  return [
    ['runId', 'valueUuid', `urn:uuid:${id}`],
    ['status', 'valueCode', record.status],
    ['started', 'valueInstant', started.toISOString()],
    ['durationMs', 'valueDecimal', record.durationMs],
    ['cpuMs', 'valueDecimal', record.cpuMs],
    ['memoryMb', 'valueDecimal', record.memoryMb],
    ['botVersion', 'valueString', String(record.version)],
    ['label', 'valueString', record.label],
    ['attempt', 'valueInteger', record.attempt],
    ['mode', 'valueCode', record.mode],
    ['waitedFor', 'valueCode', hold?.reason],
    ['waitedMs', 'valueDecimal', hold?.ms],
    ['key', 'valueString', record.key],
    ['replaced', 'valueInteger', record.replaced],
    ['streamedStatus', 'valueInteger', stream?.status],
    ['streamedBytes', 'valueInteger', stream?.bytes],
    ['requester', 'valueReference', requester && { reference: requester }],
    ['runAs', 'valueReference', runAs && { reference: runAs }],
    ['traceId', 'valueString', record.traceId],
    ['error', 'valueString', record.error],
    ['replayable', 'valueBoolean', record.archive && true],
    ['log', 'valueString', record.log],
  ]
}

function nextUrl({ services, request, id }: OperationCall, last: BotRunRow): string {
  const query = new URLSearchParams(request.query)
  query.set('_cursor', toRunCursor(last))
  return absoluteUrl(services, `Bot/${id === undefined ? '' : `${id}/`}$runs?${query}`)
}

/** Repeats a run, or dead letters. Errors: 400, 403 for non-admins, 404, also without an archived input. */
export const replay: Operation = {
  name: 'replay',
  on: [
    { type: 'Bot', level: 'instance' },
    { type: 'Bot', level: 'type' },
  ],
  methods: ['POST'],
  // These select dead letters of all bots; `text.query` has the parameters of one bot.
  inputs: REPLAY_INPUTS,
  text: {
    summary: 'Run a bot again on the input of an earlier run, or replay dead letters',
    description:
      'Of one bot: `runId`, whose input was kept; returns the result of the bot. Of all bots: the filters of `$dead-letters` and a `rate`; returns the count.',
    query: {
      runId: 'text: Of one bot: the run, whose input was kept; in the body',
      label: 'text: Of one bot: the label whose code runs; default: live; in the address',
    },
    answer: '*/*',
  },
  area: 'administration',
  ownFormat: true,
  async run(call) {
    if (call.id === undefined) return await replayLetters(call)
    const { services, principal, id = '' } = call
    await requireLogAccess(call)
    const runId = readRunId(call)
    const project = principal.isSuperAdmin ? undefined : principal.project.number
    const row = await findArchivedRun(services.database, id, project, runId)
    if (row?.record.archive === undefined) throw notFound()
    const kept = await readArchivedInput(services.storage, row.record.archive)
    const { shown: _, answer: __, fetches: ___, ...event } = kept
    const found = findLabel(await findBot(call), call.request.query.get('label') ?? LIVE)
    const acting = await resolveRunAs(services, principal, found)
    return await runBot(call, { ...createJob(call, found, acting), ...event }, found)
  },
}

/** JSON `{runId}`, or Parameters as returned by `$runs`. */
function readRunId({ request }: OperationCall): string {
  const body = parseBody(request.body ?? '')
  const parameters = isObject(body) ? toObjects(body.parameter) : []
  const part = parameters.find(({ name }) => name === 'runId')
  const given = isObject(body) ? (body.runId ?? part?.valueUuid ?? part?.valueString) : undefined
  return parseRunId(nonEmptyText(given) ?? '')
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
  text: {
    summary: 'Listen to the log of a bot',
    description: 'Server-sent events: start, log, end, gap, close.',
    answer: 'text/event-stream',
  },
  area: 'administration',
  ownFormat: true,
  async run(call) {
    const { bot, projectId } = toFoundBot(await requireLogAccess(call))
    const address = botAddress({ botProjectId: projectId, botId: bot.id })
    if (call.request.takesPieces !== true)
      throw badRequest('$logs is a stream: call it outside of a batch')
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
        Readable.from(streamLogEvents(call, address), { objectMode: false, highWaterMark: 1 }),
    }
  },
}

async function* streamLogEvents(call: OperationCall, bot: string): AsyncGenerator<Buffer> {
  const { services, principal } = call
  const waiting: string[] = []
  let dropped = 0
  let wake = () => {}
  const onLogs = ({ project, events }: BotLogMessage) => {
    if (!principal.isSuperAdmin && project !== principal.project.number) return
    if (waiting.length >= MAX_WAITING) dropped++
    else waiting.push(events.map(({ type, ...data }) => eventText(type, data)).join(''))
    wake()
  }
  const endAt = Date.now() + LONGEST_MS
  streams++
  const listening = await subscribeToBotLogs(services.bus, bot, onLogs).catch((error: unknown) => {
    streams--
    throw error
  })
  try {
    yield Buffer.from(': listening\n\n')
    for (let checkAt = Date.now() + HEARTBEAT_MS; ; ) {
      if (waiting.length === 0) await waitOrWake(checkAt - Date.now(), (wakeUp) => (wake = wakeUp))
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

function waitOrWake(ms: number, set: (wake: () => void) => void): Promise<void> {
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
  const { loginId, membershipId = '', project, onBehalfOf } = call.principal
  try {
    const caller = loginId === undefined ? undefined : await principals.forLogin(loginId)
    if (loginId !== undefined && caller === undefined) return 'revoked'
    // A caller that acts for a member has the rights of the member.
    const isOwn = caller !== undefined && onBehalfOf === undefined
    const session = isOwn ? caller : await principals.forMembership(membershipId)
    if (session?.principal.project.id !== project.id) return 'revoked'
    await requireLogAccess({ ...call, principal: narrowSession(session, call.principal).principal })
    return undefined
  } catch (error) {
    // A transient store failure revokes nothing.
    return error instanceof HttpError && error.status < 500 ? 'revoked' : undefined
  }
}
