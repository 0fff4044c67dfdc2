/** `Bot/:id/$runs`: what came of the latest runs, for the admins of the Project in which they ran. */
import { badRequest, forbidden } from '../errors.ts'
import { absoluteUrl, jsonReply } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import { type BotRunPlace, type BotRunRow, findBotRuns } from './run-records.ts'

const DEFAULT_COUNT = 20
const MOST = 100

/** Errors: 400, 403 for who is no project admin, 404. */
export const runs: Operation = {
  name: 'runs',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['GET'],
  area: 'administration',
  async run(call) {
    const { services, principal, request, id = '' } = call
    await requireAuthor(call)
    const count = readCount(request.query.get('_count'))
    const project = principal.isSuperAdmin ? undefined : principal.project.number
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
      parameter: [...page.map((row) => ({ name: 'run', part: partsOf(row) })), ...next],
    })
  },
}

/** Whoever may see what a bot wrote to its log. Errors: 403, 404 as for reading the bot. */
export async function requireAuthor({ services, principal, id = '' }: OperationCall) {
  const version = await services.repository.read(principal, 'Bot', id)
  if (!principal.isProjectAdmin && !principal.isSuperAdmin) throw forbidden()
  return version
}

function partsOf({ id, started, record }: BotRunRow): readonly unknown[] {
  const { memoryMb, requester, runAs, error, hold } = record
  return [
    { name: 'runId', valueUuid: `urn:uuid:${id}` },
    { name: 'status', valueCode: record.status },
    { name: 'started', valueInstant: started.toISOString() },
    { name: 'durationMs', valueDecimal: record.durationMs },
    { name: 'cpuMs', valueDecimal: record.cpuMs },
    ...(memoryMb === undefined ? [] : [{ name: 'memoryMb', valueDecimal: memoryMb }]),
    { name: 'botVersion', valueString: String(record.version) },
    { name: 'attempt', valueInteger: record.attempt },
    { name: 'mode', valueCode: record.mode },
    ...(hold === undefined
      ? []
      : [
          { name: 'waitedFor', valueCode: hold.reason },
          { name: 'waitedMs', valueDecimal: hold.ms },
        ]),
    ...(requester === undefined
      ? []
      : [{ name: 'requester', valueReference: { reference: requester } }]),
    ...(runAs === undefined ? [] : [{ name: 'runAs', valueReference: { reference: runAs } }]),
    { name: 'traceId', valueString: record.traceId },
    ...(error === undefined || error === '' ? [] : [{ name: 'error', valueString: error }]),
    ...(record.archive === undefined ? [] : [{ name: 'replayable', valueBoolean: true }]),
    // FHIR has no empty strings.
    ...(record.log === '' ? [] : [{ name: 'log', valueString: record.log }]),
  ]
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

function readPlace(cursor: string | null): BotRunPlace | undefined {
  if (cursor === null) return undefined
  const [, ms, id = ''] =
    /^(\d{1,13})-([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/.exec(cursor) ?? []
  if (ms === undefined) throw badRequest('Invalid cursor', '_cursor')
  return { started: new Date(Number(ms)), id }
}
