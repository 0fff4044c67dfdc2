/** Plans, queues, runs and retries the occurrences of schedules. */
import { EVENT_SYSTEM } from '../../shared/access/guarded/elements.ts'
import {
  type ProjectContext,
  type RunLease,
  systemPrincipal,
} from '../../shared/access/principal.ts'
import {
  botAt,
  codeLocation,
  type FoundBot,
  maxQueueMs,
  runLabel,
  toActing,
} from '../../shared/bots/bot.ts'
import { outcomeText } from '../../shared/bots/dead-runs.ts'
import { debounceMs, readEventPace } from '../../shared/bots/pace.ts'
import {
  buryOccurrence,
  claimOccurrences,
  type DueSchedule,
  dueSchedules,
  endOccurrence,
  type Occurrence,
  type Plan,
  readSchedule,
  removeOccurrence,
  retryOccurrence,
  savePlans,
} from '../../shared/bots/schedules.ts'
import { HttpError } from '../../shared/core/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import {
  countOccurrences,
  lastOccurrence,
  nextOccurrence,
  type Schedule,
} from '../../shared/fhir/schedule.ts'
import type { Acting } from '../../shared/identity/principals.ts'
import { backoffMs, type Loop, startLoop } from '../../shared/jobs/loop.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import type { Services } from '../../shared/request/services.ts'
import type { RunMetrics } from './metrics.ts'

const EVERY_MS = 500
const AT_ONCE = 100
const ATTEMPTS = 3
const FIRST_PAUSE_MS = 1000

type ScheduleMetrics = Pick<RunMetrics, 'occurrence'>

/** Polls for due schedules until `stop`. */
export function startSchedules(
  services: Services,
  metrics: ScheduleMetrics,
  now: () => number,
): Loop {
  return startLoop({ log: services.log, name: 'Schedules', everyMs: EVERY_MS }, () =>
    runDue(services, metrics, new Date(now())),
  )
}

/** Queues occurrences due by `now`; true: there may be more. */
async function runDue(services: Services, metrics: ScheduleMetrics, now: Date): Promise<boolean> {
  const { plans, isCut } = await planDue(services, now)
  for (const plan of plans) await reportSkipped(services, metrics, plan)
  const occurrences = await claimOccurrences(services.database, services.queues.home, now, AT_ONCE)
  for (const occurrence of occurrences) await enqueue(services, metrics, occurrence, now.getTime())
  return isCut || occurrences.length === AT_ONCE
}

/** Ends the occurrence, retries it with exponential backoff, or keeps it as dead. False when the lease was lost. */
export async function settleOccurrence(
  { database }: Services,
  { token }: RunLease,
  { projectId, scheduled }: Pick<ExecuteJob, 'projectId' | 'scheduled'>,
  { runId, status, body }: ExecuteReply,
): Promise<boolean> {
  const attempt = scheduled?.attempt ?? 1
  if (status === 'ok') return await endOccurrence(database, runId, token)
  if (attempt < ATTEMPTS) {
    return await retryOccurrence(database, runId, token, backoffMs(attempt, FIRST_PAUSE_MS))
  }
  const error = outcomeText(body === undefined ? undefined : JSON.parse(body))
  return await buryOccurrence(database, { key: [runId], token }, projectId, error)
}

async function reportSkipped(
  services: Services,
  metrics: ScheduleMetrics,
  { row, overlapped, missed }: Planned,
): Promise<void> {
  const bot = row.bot.id
  if (missed > 0) {
    metrics.occurrence('missed', missed)
    services.log.warn({ bot, missed }, 'Occurrences of a schedule were missed')
  }
  if (overlapped === undefined) return
  metrics.occurrence('overlap', 1)
  const project = await services.principals.project(row.projectId)
  if (project === undefined) return
  await auditSkipped(services, project, {
    bot: row.bot,
    time: overlapped,
    why: 'the run before it has not ended',
  })
}

async function enqueue(
  services: Services,
  metrics: ScheduleMetrics,
  occurrence: Occurrence,
  now: number,
): Promise<void> {
  const { queues, principals, database, log } = services
  const { run, scheduled, attempt, bot, projectId } = occurrence
  if (await queues.has('bots-async', run)) return
  const project = await principals.project(projectId)
  const isOn = ['cron', 'bots'].every((feature) => project?.features.includes(feature))
  if (project === undefined || !isOn) {
    metrics.occurrence('feature', 1)
    return await removeOccurrence(database, run)
  }
  const own = await principals.forProfile(`Bot/${bot.id}`, projectId)
  const principal = own?.principal.project.id === projectId ? own.principal : undefined
  const hasCode = codeLocation(bot, services.config.baseUrl) !== undefined
  if (principal === undefined || !hasCode) {
    const lack = principal === undefined ? 'membership' : 'code'
    metrics.occurrence(lack, 1)
    await auditSkipped(services, project, {
      bot,
      time: scheduled,
      why: `the bot has no ${lack}`,
    })
    return await removeOccurrence(database, run)
  }
  const found = await botAt(services, foundBot(occurrence), occurrence.since)
  const job = toScheduledJob(occurrence, found, toActing(principal), now)
  try {
    await queues.enqueue(job, async () => undefined)
  } catch (error) {
    // Redis is unavailable: the occurrence is retried.
    if (!(error instanceof HttpError)) throw error
    log.debug({ runId: run, reason: error.message }, 'An occurrence waits')
    return
  }
  if (attempt === 1) metrics.occurrence('queued', 1, now - scheduled.getTime())
}

function foundBot({ bot, botVersion, updated, projectId }: Occurrence): FoundBot {
  return { bot: { ...bot, id: bot.id ?? '' }, version: botVersion, updated, projectId }
}

function toScheduledJob(
  { run, scheduled, attempt, replaced }: Occurrence,
  found: FoundBot,
  acting: Acting,
  added: number,
): ExecuteJob {
  const { bot, version, projectId } = found
  const input = JSON.stringify(bot)
  return {
    runId: run,
    projectId,
    botId: bot.id,
    botProjectId: projectId,
    botVersion: version,
    ...runLabel(found, run),
    ...acting,
    requester: undefined,
    contentType: 'application/fhir+json',
    inputKind: 'json',
    input,
    ...readEventPace(found, { headers: {}, inputKind: 'json', input }),
    ...(replaced === 0 ? {} : { replaced }),
    headers: {},
    traceId: run,
    requestId: run,
    depth: 0,
    added,
    deadline: added + maxQueueMs(bot),
    class: 'event',
    asynchronous: true,
    scheduled: { time: scheduled.toISOString(), attempt },
  }
}

async function auditSkipped(
  { repository }: Services,
  project: ProjectContext,
  { bot, time, why }: { readonly bot: Resource; readonly time: Date; readonly why: string },
): Promise<void> {
  const reference = { reference: `Bot/${bot.id}` }
  await repository.create(systemPrincipal(project), {
    resourceType: 'AuditEvent',
    type: { system: EVENT_SYSTEM, code: 'execute' },
    recorded: new Date().toISOString(),
    agent: [{ who: reference, requestor: false }],
    source: { observer: reference },
    entity: [{ what: reference }],
    outcome: '4',
    outcomeDesc: `The occurrence of ${time.toISOString()} was skipped: ${why}`,
  })
}

const MADE_UP_MS = 3_600_000
const PLANNED_AT_ONCE = 200

interface Planned extends Plan {
  readonly row: DueSchedule
  /** The occurrence skipped because the run before it goes on. */
  readonly overlapped: Date | undefined
  readonly missed: number
}

/** Plans schedules due by `now`; true: there may be more. */
async function planDue(
  { database }: Pick<Services, 'database'>,
  now: Date,
): Promise<{ readonly plans: readonly Planned[]; readonly isCut: boolean }> {
  return await database.transaction(async (connection) => {
    const rows = await dueSchedules(connection, now, PLANNED_AT_ONCE)
    const plans = rows.map((row) => planOccurrence(row, now))
    if (plans.length > 0) await savePlans(connection, plans, now)
    return { plans, isCut: rows.length === PLANNED_AT_ONCE }
  })
}

/** Returns the last of several missed occurrences, unless it is too old. */
export function planOccurrence(row: DueSchedule, now: Date): Planned {
  const { project, id, since } = row
  const schedule = readSchedule(row.bot)
  const wait = debounceMs(row.bot) ?? 0
  const nothing = {
    project,
    id,
    row,
    fired: undefined,
    overlapped: undefined,
    missed: 0,
    debounceMs: wait,
  }
  if (schedule === undefined) return { ...nothing, since, due: undefined }
  const next = nextOccurrence(schedule, since)
  if (next === undefined || next > now) return { ...nothing, since, due: next }
  // Backwards, the library leaves out a time that a clock change skips, which runs in the hour after it.
  const found = lastOccurrence(schedule, now)
  const last = found === undefined || found < next ? next : found
  const due = nextOccurrence(schedule, last)
  const missed = countOccurrences(schedule, since, last) - 1
  if (now.getTime() - last.getTime() >= MADE_UP_MS) {
    return { ...nothing, since: last, due, missed: missed + 1 }
  }
  const isBusy = wait > 0 ? row.hasBegun : row.isRunning
  return { ...nothing, since: last, due, missed, ...start(isBusy, schedule, last) }
}

function start(
  isBusy: boolean,
  { overlaps }: Schedule,
  time: Date,
): Pick<Planned, 'fired' | 'overlapped'> {
  const isHeld = isBusy && !overlaps
  return isHeld ? { fired: undefined, overlapped: time } : { fired: time, overlapped: undefined }
}
