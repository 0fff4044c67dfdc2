/** One AuditEvent a run (bots.md §8), written in batches after the caller has its answer. */
import { systemPrincipal } from '../../shared/access/principal.ts'
import { HttpError } from '../../shared/errors.ts'
import { isResource, type Resource, referenceTo } from '../../shared/fhir/resource.ts'
import type { ExecuteJob } from '../../shared/queue-jobs.ts'
import type { Services } from '../../shared/services.ts'
import type { Session } from '../../shared/store/principals.ts'
import type { RunFailure } from './run-result.ts'

export interface RunRecord {
  readonly job: ExecuteJob
  readonly bot: Resource
  readonly session: Session
  readonly input: string | undefined
  readonly startedAt: Date
  readonly endedAt: Date
  readonly failure: RunFailure | undefined
  readonly log: string
}

interface Queued extends RunRecord {
  written(): void
}

export interface Audit {
  /** Queues the record; a full batch or 100 ms later it is written. Resolves when it is, or is lost. */
  add(record: RunRecord): Promise<void>
  /** Writes what is queued, if it can be written now. */
  close(): Promise<void>
}

const BATCH = 100
const BATCH_MS = 100
/** Beyond it records are dropped, with a line in the log: runs must not wait for their audit. */
const MAX_QUEUED = 10_000
const AGAIN_MS = 1000
const LOG_TAIL_BYTES = 10 * 1024
const KILLED: ReadonlySet<RunFailure> = new Set(['timeout', 'memory', 'cpu', 'crash'])

export function createAudit(services: Services): Audit {
  const { log, repository } = services
  let queued: Queued[] = []
  let writing = Promise.resolve()
  let timer: NodeJS.Timeout | undefined
  let isWaiting = false
  let isClosing = false

  /** Concurrent creates become one statement in the store. What PostgreSQL is away for comes back. */
  async function write(records: readonly Queued[]): Promise<void> {
    const results = await Promise.allSettled(
      records.map((record) => {
        const { project, profile } = record.session.principal
        return repository.create({ ...systemPrincipal(project), profile }, auditEvent(record))
      }),
    )
    const failures = results.map((result) => (result.status === 'rejected' ? result.reason : ''))
    const again = isClosing ? [] : records.filter((_, i) => isAway(failures[i]))
    for (const record of records) if (!again.includes(record)) record.written()
    if (again.length > 0) {
      queued = [...again, ...queued]
      isWaiting = true
      timer ??= setTimeout(next, AGAIN_MS)
    }
    const lost = failures.filter((reason) => reason !== '' && (isClosing || !isAway(reason)))
    if (lost.length > 0) {
      log.error({ count: lost.length, cause: lost[0] }, 'AuditEvents were lost')
    }
  }

  function next(): void {
    clearTimeout(timer)
    timer = undefined
    isWaiting = false
    const records = queued
    queued = []
    writing = writing.then(() => write(records))
  }

  return {
    async add(record) {
      if (!isWanted(record)) return
      const destinations = destinationsOf(record.bot)
      if (destinations.includes('log')) {
        const { outcomeDesc: _, ...event } = auditEvent(record)
        log.info({ auditEvent: event }, 'Bot run')
      }
      if (!destinations.includes('resource')) return
      if (queued.length >= MAX_QUEUED) {
        log.error({ runId: record.job.runId }, 'An AuditEvent was dropped: too many are waiting')
        return
      }
      await new Promise<void>((resolve) => {
        queued.push({ ...record, written: resolve })
        if (queued.length >= BATCH && !isWaiting) next()
        else timer ??= setTimeout(next, BATCH_MS)
      })
    },
    async close() {
      isClosing = true
      next()
      await writing
    },
  }
}

function isAway(error: unknown): boolean {
  return error instanceof HttpError && error.status === 503
}

function isWanted({ bot, failure, log }: RunRecord): boolean {
  switch (bot.auditEventTrigger) {
    case 'never':
      return false
    case 'on-error':
      return failure !== undefined
    case 'on-output':
      return log !== ''
    default:
      return true
  }
}

function destinationsOf({ auditEventDestination }: Resource): readonly unknown[] {
  return Array.isArray(auditEventDestination) ? auditEventDestination : ['resource']
}

function auditEvent(record: RunRecord): Resource {
  const { job, session, failure, log, startedAt, endedAt, input } = record
  const bot = { reference: `Bot/${job.botId}` }
  const subject = inputReference(job, input)
  return {
    resourceType: 'AuditEvent',
    extension: [
      {
        url: 'https://medplum.com/fhir/StructureDefinition/tracing',
        extension: [
          { url: 'requestId', valueId: job.requestId },
          { url: 'traceId', valueId: job.traceId },
        ],
      },
    ],
    type: { system: 'https://medplum.com/CodeSystem/audit-event', code: 'execute' },
    period: { start: startedAt.toISOString(), end: endedAt.toISOString() },
    recorded: endedAt.toISOString(),
    agent: [
      ...(job.requester === undefined
        ? []
        : [{ who: { reference: job.requester }, requestor: true }]),
      { who: { reference: session.principal.profile }, requestor: false },
    ],
    source: { observer: bot },
    entity: [bot, ...(subject === undefined ? [] : [{ reference: subject }])].map((what) => ({
      what,
    })),
    outcome: failure === undefined ? '0' : KILLED.has(failure) ? '8' : '4',
    ...(log === '' ? {} : { outcomeDesc: tail(log) }),
  }
}

/** Undefined unless the input is a stored resource. */
function inputReference({ inputKind }: ExecuteJob, input: string | undefined): string | undefined {
  if (inputKind !== 'json' || input === undefined) return undefined
  if (!input.includes('"resourceType"') || !input.includes('"id"')) return undefined
  const value: unknown = JSON.parse(input)
  return isResource(value) && typeof value.id === 'string' ? referenceTo(value) : undefined
}

function tail(log: string): string {
  const bytes = Buffer.from(log)
  if (bytes.length <= LOG_TAIL_BYTES) return log
  // A character cut in half at the start becomes a replacement mark, which is dropped.
  return bytes
    .subarray(-LOG_TAIL_BYTES)
    .toString()
    .replace(/^\uFFFD+/, '')
}
