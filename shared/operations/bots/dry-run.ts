/** `Bot/:id/$dry-run`: repeats past runs with another version of the code, without effects, and compares the answers. */
import { randomUUID } from 'node:crypto'
import { may } from '../../access/policy.ts'
import { type Principal, servicePrincipal, systemPrincipal } from '../../access/principal.ts'
import { isJobFinished, isOpenJob, JobFinished } from '../../bots/async-jobs.ts'
import { botLimits, type FoundBot, maxQueueMs, resolveRunAs, toFoundBot } from '../../bots/bot.ts'
import { outcomeText } from '../../bots/dead-runs.ts'
import {
  type AnsweredRun,
  type DryRunReply,
  haveSameAnswer,
  haveSameWrites,
  listWrites,
} from '../../bots/run-answers.ts'
import {
  type ArchivedInput,
  type BotRunRow,
  findArchivedRun,
  findArchivedRuns,
  readArchivedInput,
} from '../../bots/run-records.ts'
import { intactCode, readHistory } from '../../bots/versions.ts'
import { badRequest, forbidden, HttpError, notFound, unavailable } from '../../core/errors.ts'
import { atLabel, codeAt } from '../../fhir/bot-labels.ts'
import { mapStrings, toStorable } from '../../fhir/json.ts'
import type { Resource } from '../../fhir/resource.ts'
import { startUpkeep } from '../../jobs/async-requests.ts'
import type { ExecuteJob } from '../../queue/jobs.ts'
import { type Output, readInputs, toParameters } from '../../request/parameters.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { DryRunInput, UpkeepJob } from '../../store/rows/upkeep-jobs.ts'
import { platformMeta, type Version } from '../../store/rows/version.ts'

const STAGING = 'staging'
const DEFAULT_COUNT = 100
const MOST_COUNT = 1000

/** 202 with a status URL. Errors: 400 without a kept run, 403 without the right to deploy, 404. */
export const dryRun: Operation = {
  name: 'dry-run',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['POST'],
  inputs: {
    version: 'text: A label or a version; default: staging',
    count: 'whole: Default 100, at most 1000',
    since: 'text: Started at this date or time, or later',
    until: 'text: Started in this period or before',
  },
  text: {
    summary: 'Repeat past runs of a bot with another version, and compare the answers',
    description:
      'Of the latest runs whose input was kept. Writes are rolled back, fetches get the recorded responses, mails and calls of agents are not made. Returns 202: the output of the AsyncJob counts the runs, and lists those whose answers or writes differ.',
    answer: 'OperationOutcome',
  },
  area: 'administration',
  async run(call) {
    const { services, principal, id = '' } = call
    const stored = await services.repository.read(principal, 'Bot', id)
    requireDeployer(principal, stored)
    const inputs = readInputs(call)
    const place = await findPlace(call, stored, inputs.text('version') ?? STAGING)
    const count = inputs.whole('count') ?? DEFAULT_COUNT
    if (count < 1 || count > MOST_COUNT) {
      throw badRequest(`count must be a whole number from 1 to ${MOST_COUNT}`, 'count')
    }
    const runs = await findArchivedRuns(services.database, {
      bot: id,
      project: principal.project.number,
      since: inputs.time('since', 'low'),
      until: inputs.time('until', 'high'),
      count,
    })
    if (runs.length === 0) {
      throw badRequest('No run of this period has its input kept: see BOT_INPUT_ARCHIVE')
    }
    return await startUpkeep(call, 'dry-run', principal.project.id, { dryRun: { ...place, runs } })
  },
}

function requireDeployer(principal: Principal, bot: Version): void {
  const isAdmin = principal.isProjectAdmin || principal.isSuperAdmin
  const isOwn = platformMeta(bot).project === principal.project.id
  if (!isAdmin || !isOwn || !may(principal, 'Bot', 'update')) throw forbidden()
}

/** Errors: 400 without such a label or version. */
async function findPlace(
  { services, principal, id = '' }: OperationCall,
  stored: Version,
  name: string,
): Promise<Omit<DryRunInput, 'runs'>> {
  if (codeAt(parseVersion(stored), name) !== undefined) return { version: stored.ver, label: name }
  const { project } = principal
  const { versions } = await readHistory(services, systemPrincipal(project), id)
  const found = versions.find((one) => one.name === name)
  if (found === undefined) {
    throw badRequest(`The bot has no label and no version "${name.slice(0, 64)}"`, 'version')
  }
  await intactCode(services, project, found)
  return found.place
}

// The job: portions of runs, with the AsyncJob brought up to date after each.

/** Other jobs of the worker get their turn after a portion. */
const PORTION = 10
const AT_ONCE = 2
/** A run that was stopped is repeated. */
const ATTEMPTS = 3
const MOST_LISTED = 100
const MOST_SHOWN = 2000

interface Comparison {
  readonly runId: string
  readonly status: 'same' | 'different' | 'not-compared'
  /** Why it was not compared. */
  readonly reason?: string
  readonly before?: AnsweredRun | undefined
  readonly after?: AnsweredRun
  readonly notes: readonly string[]
}

interface Progress {
  readonly done: number
  readonly counts: Readonly<Record<string, number>>
  /** The parts of those that are not the same. */
  readonly listed: readonly (readonly unknown[])[]
}

/** Repeats the next runs; undefined after the last one. Errors: 503 while no worker takes runs. */
export async function dryRunNext(
  services: Services,
  principal: Principal,
  { id: jobId, input }: UpkeepJob,
  progress: unknown,
): Promise<Progress | undefined> {
  const { dryRun, id = '', requester } = input
  const { done, counts, listed } = (progress ?? { done: 0, counts: {}, listed: [] }) as Progress
  const runs = dryRun?.runs ?? []
  if (dryRun === undefined || done >= runs.length) return undefined
  const found = await findBotVersion(services, principal, id, dryRun)
  const portion = runs.slice(done, done + PORTION)
  const compared: Comparison[] = []
  for (let start = 0; start < portion.length; start += AT_ONCE) {
    const some = portion.slice(start, start + AT_ONCE)
    compared.push(
      ...(await Promise.all(some.map((run) => compare(services, principal, found, run)))),
    )
  }
  const total = { ...counts }
  for (const { status } of compared) total[status] = (total[status] ?? 0) + 1
  const others = compared.filter(({ status }) => status !== 'same').map(toParts)
  const next = {
    done: done + portion.length,
    counts: total,
    listed: [...listed, ...others].slice(0, MOST_LISTED),
  }
  await showProgress(services, principal, { jobId, requester, of: runs.length, next })
  return next
}

async function findBotVersion(
  { repository }: Services,
  principal: Principal,
  id: string,
  { version, label }: DryRunInput,
): Promise<FoundBot> {
  const stored = await repository.read(principal, 'Bot', id)
  // The requester may have lost the right since.
  requireDeployer(principal, stored)
  const current = toFoundBot(stored)
  const reader = systemPrincipal(principal.project)
  const past = await repository.readVersion(reader, 'Bot', id, String(version))
  const bot = atLabel(parseVersion(past), label)
  if (bot === undefined) throw notFound()
  return { ...current, bot: { ...bot, id }, version, label }
}

interface Shown {
  readonly jobId: string
  readonly requester: string | undefined
  readonly of: number
  readonly next: Progress
}

async function showProgress(
  { repository }: Services,
  { project }: Principal,
  { jobId, requester, of, next }: Shown,
): Promise<void> {
  // Each portion is a version of the AsyncJob, so only the last one has the list.
  const output = {
    resourceType: 'Parameters',
    parameter: dryRunOutput({ ...next, listed: [] }, of),
  }
  try {
    await repository.patch(
      servicePrincipal(project, { profile: requester }),
      { type: 'AsyncJob', id: jobId },
      (current: Resource) => {
        if (!isOpenJob(current)) throw new JobFinished(String(current.status))
        return { ...current, status: 'active', output }
      },
    )
  } catch (error) {
    if (!isJobFinished(error)) throw error
  }
}

/** The output of the AsyncJob. */
export function dryRunOutput(progress: unknown, of: number): readonly unknown[] {
  const { done, counts, listed } = progress as Progress
  const outputs: readonly Output[] = [
    ['runs', 'valueInteger', of],
    ['done', 'valueInteger', done],
    ['same', 'valueInteger', counts.same ?? 0],
    ['different', 'valueInteger', counts.different ?? 0],
    ['notCompared', 'valueInteger', counts['not-compared'] ?? 0],
  ]
  return [...toParameters(outputs), ...listed.map((part) => ({ name: 'run', part }))]
}

async function compare(
  services: Services,
  principal: Principal,
  found: FoundBot,
  runId: string,
): Promise<Comparison> {
  const { database, storage } = services
  const skipped = (reason: string): Comparison => ({
    runId,
    status: 'not-compared',
    reason,
    notes: [],
  })
  const row = await findArchivedRun(database, found.bot.id, principal.project.number, runId)
  const archive = row?.record.archive
  const kept = archive && (await readArchivedInput(storage, archive).catch(() => undefined))
  if (row === undefined || kept === undefined) return skipped('Its input is no longer kept')
  if (kept.answer === undefined) return skipped('Its answer was not kept')
  const before = toAnsweredRun(row, kept.answer)
  const job = await createDryJob(services, principal, found, { row, kept })
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const reply = await execute(services, found, { ...job, runId: randomUUID() })
    if (typeof reply === 'string') return { ...skipped(reply), before }
    const { run: after, notes } = reply
    if (after === undefined) continue
    const isSame = haveSameAnswer(before, after) && haveSameWrites(before, after)
    return { runId, status: isSame ? 'same' : 'different', before, after, notes }
  }
  return { ...skipped('It was stopped, as others waited for rows that it had written'), before }
}

function toAnsweredRun({ id, started, record }: BotRunRow, answer: AnsweredRun['answer']) {
  const startedAt = started.getTime()
  const endedAt = startedAt + record.durationMs
  return { runId: id, startedAt, endedAt, answer, calls: record.calls ?? [] }
}

async function createDryJob(
  services: Services,
  principal: Principal,
  found: FoundBot,
  { row, kept }: { readonly row: BotRunRow; readonly kept: ArchivedInput },
): Promise<ExecuteJob> {
  const { shown: _, answer: __, fetches: ___, ...event } = kept
  const acting = await resolveRunAs(services, principal, found)
  const added = Date.now()
  return {
    ...event,
    ...acting,
    runId: row.id,
    projectId: principal.project.id,
    botId: found.bot.id,
    botProjectId: found.projectId,
    botVersion: found.version,
    ...(found.label === undefined ? {} : { label: found.label }),
    requester: row.record.requester,
    traceId: row.record.traceId,
    requestId: row.id,
    depth: 0,
    added,
    deadline: added + maxQueueMs(found.bot),
    dryRunOf: row.id,
  }
}

/** Returns the reply, or why there is none. Errors: 503. */
async function execute(
  { queues, config }: Services,
  { bot }: FoundBot,
  job: ExecuteJob,
): Promise<DryRunReply | string> {
  const waitMs = maxQueueMs(bot) + botLimits(bot, config).wallMs
  const reply = await queues.execute(job, { waitMs }).catch((error: unknown) => {
    if (error instanceof HttpError && error.status === 429) throw unavailable('Queue', error)
    throw error
  })
  if (reply === undefined) {
    await queues.cancel(job.runId, job.projectId)
    return 'It waited too long for a worker'
  }
  if (reply.status === 'unavailable') throw unavailable('Queue')
  if (reply.status !== 'ok') return outcomeText(JSON.parse(reply.body ?? '{}')) ?? reply.status
  return JSON.parse(reply.body ?? '') as DryRunReply
}

function toParts({ runId, status, reason, before, after, notes }: Comparison): readonly unknown[] {
  const sameWrites = before === undefined || after === undefined || haveSameWrites(before, after)
  const writes = (run: AnsweredRun | undefined) =>
    sameWrites || run === undefined
      ? undefined
      : listWrites(run).join(', ').slice(0, MOST_SHOWN) || 'none'
  const parts = toParameters([
    ['runId', 'valueUuid', `urn:uuid:${runId}`],
    ['status', 'valueCode', status],
    ['reason', 'valueString', reason],
    ['statusBefore', 'valueCode', before?.answer.status],
    ['statusAfter', 'valueCode', after?.answer.status],
    ['answerBefore', 'valueString', shown(before)],
    ['answerAfter', 'valueString', shown(after)],
    ['writesBefore', 'valueString', writes(before)],
    ['writesAfter', 'valueString', writes(after)],
    ...notes.map((note): Output => ['note', 'valueString', note]),
  ])
  // A cut may have left half a character.
  return mapStrings(parts, toStorable)
}

function shown(run: AnsweredRun | undefined): string | undefined {
  return run?.answer.body.slice(0, MOST_SHOWN)
}
