/** Writes one AuditEvent per run, in batches, after the caller has its answer. */
import { EVENT_SYSTEM } from '../../shared/access/guarded/audit-events.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import type { RecordedCalls } from '../../shared/bots/run-records.ts'
import { HttpError } from '../../shared/core/errors.ts'
import type { Logger } from '../../shared/core/log.ts'
import { isResource, type Resource, referenceTo } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Services } from '../../shared/request/services.ts'
import { isKilled, type RunFailure, type RunResult } from './run-result.ts'
import type { Hold } from './slots.ts'

export interface RunRecord {
  readonly job: ExecuteJob
  readonly bot: Resource
  readonly session: Session
  readonly input: string | undefined
  readonly startedAt: Date
  readonly endedAt: Date
  readonly failure: RunFailure | undefined
  /** Error message with secrets redacted. */
  readonly error: string | undefined
  /** Secrets redacted. */
  readonly log: string
  /** 1-based. */
  readonly attempt: number
  /** Undefined when the run got its slot at once. */
  readonly hold: Hold | undefined
  readonly result: Pick<RunResult, 'cpuMs' | 'memoryMb'>
  /** Secrets redacted. */
  readonly made: RecordedCalls
  /** Redacts the run's secrets. */
  cleaned(text: string): string
}

export interface Audit {
  /** Resolves when the AuditEvent is stored, lost or not wanted. */
  add(record: RunRecord): Promise<void>
  /** Writes the queue once; the rest is lost. */
  close(): Promise<void>
}

const LOG_TAIL_BYTES = 10 * 1024

export function createAudit({ log, repository }: Services): Audit {
  const batches = createBatches<RunRecord>({
    log,
    what: 'AuditEvents',
    async write(records) {
      const results = await Promise.allSettled(
        records.map((record) => {
          const { project, profile } = record.session.principal
          return repository.create({ ...systemPrincipal(project), profile }, auditEvent(record))
        }),
      )
      return results.map((result) => (result.status === 'rejected' ? result.reason : undefined))
    },
  })
  return {
    async add(record) {
      if (!isWanted(record)) return
      const destinations = destinationsOf(record.bot)
      if (destinations.includes('log')) {
        const { outcomeDesc: _, ...event } = auditEvent(record)
        log.info({ auditEvent: event }, 'Bot run')
      }
      if (destinations.includes('resource')) await batches.add(record)
    },
    close: () => batches.close(),
  }
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
  const { job, session, failure, error, log, startedAt, endedAt, input } = record
  const bot = { reference: `Bot/${job.botId}` }
  // Load errors and limits leave no line in the log.
  const isLogged = error === undefined || log.includes(error)
  const described = isLogged ? log : `${log}${endedAt.toISOString()} ERROR ${error}\n`
  const entities = [bot.reference, inputReference(job, input), job.subscription]
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
    type: { system: EVENT_SYSTEM, code: 'execute' },
    period: { start: startedAt.toISOString(), end: endedAt.toISOString() },
    recorded: endedAt.toISOString(),
    agent: [
      ...(job.requester === undefined
        ? []
        : [{ who: { reference: job.requester }, requestor: true }]),
      { who: { reference: session.principal.profile }, requestor: false },
    ],
    source: { observer: bot },
    entity: entities.flatMap((reference) =>
      reference === undefined ? [] : [{ what: { reference } }],
    ),
    outcome: failure === undefined ? '0' : isKilled(failure) ? '8' : '4',
    ...(described === '' ? {} : { outcomeDesc: logTail(described) }),
  }
}

/** Returns undefined unless the input is a stored resource. */
function inputReference({ inputKind }: ExecuteJob, input: string | undefined): string | undefined {
  if (inputKind !== 'json' || input === undefined) return undefined
  if (!input.includes('"resourceType"') || !input.includes('"id"')) return undefined
  const value: unknown = JSON.parse(input)
  return isResource(value) && typeof value.id === 'string' ? referenceTo(value) : undefined
}

/** Returns the last 10 KiB. */
export function logTail(log: string): string {
  const bytes = Buffer.from(log)
  if (bytes.length <= LOG_TAIL_BYTES) return log
  // A character cut in half at the start becomes a replacement mark, which is dropped.
  return bytes
    .subarray(-LOG_TAIL_BYTES)
    .toString()
    .replace(/^\uFFFD+/, '')
}

// Batched writes after the reply

interface Batches<T> {
  /** Queues the item for a batch, written when full or after 100 ms. Resolves when the item is written or lost. */
  add(item: T): Promise<void>
  /** Writes the queue once; the rest is lost. */
  close(): Promise<void>
}

interface Queued<T> {
  readonly item: T
  written(): void
}

interface BatchOptions<T> {
  readonly log: Logger
  /** Plural name of the items. */
  readonly what: string
  /** Returns an error or undefined for each item. */
  write(items: readonly T[]): Promise<readonly unknown[]>
}

const BATCH = 100
const BATCH_MS = 100
/** Further items are dropped and logged: runs must not wait for their reports. */
const MAX_QUEUED = 10_000
const AGAIN_MS = 1000

export function createBatches<T>({ log, what, write }: BatchOptions<T>): Batches<T> {
  let queued: Queued<T>[] = []
  let writing = Promise.resolve()
  let timer: NodeJS.Timeout | undefined
  let isWaiting = false
  let isClosing = false

  async function writeAll(batch: readonly Queued<T>[]): Promise<void> {
    if (batch.length === 0) return
    const failures = await write(batch.map(({ item }) => item))
    const again = isClosing ? [] : batch.filter((_, i) => isAway(failures[i]))
    for (const one of batch) if (!again.includes(one)) one.written()
    if (again.length > 0) {
      queued = [...again, ...queued]
      isWaiting = true
      timer ??= setTimeout(next, AGAIN_MS)
    }
    const lost = failures.filter((reason) => reason !== undefined && (isClosing || !isAway(reason)))
    if (lost.length > 0) log.error({ count: lost.length, cause: lost[0] }, `${what} were lost`)
  }

  function next(): void {
    clearTimeout(timer)
    timer = undefined
    isWaiting = false
    const batch = queued
    queued = []
    writing = writing.then(() => writeAll(batch))
  }

  return {
    async add(item) {
      if (queued.length >= MAX_QUEUED) {
        log.error(`${what} were dropped: too many are waiting`)
        return
      }
      await new Promise<void>((resolve) => {
        queued.push({ item, written: resolve })
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
