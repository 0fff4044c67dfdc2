/** Writes one AuditEvent per run, in batches, after the caller has its answer. */
import { EVENT_SYSTEM } from '../../shared/access/guarded/audit-events.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import type { RecordedCalls } from '../../shared/bots/run-records.ts'
import { batchDelayed } from '../../shared/core/batching.ts'
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

interface Audit {
  /** Resolves when the AuditEvent is stored, or lost, or not wanted. */
  add(record: RunRecord): Promise<void>
  /** Writes the queue once; the rest is lost. */
  close(): Promise<void>
}

const LOG_TAIL_BYTES = 10 * 1024

export function createAudit({ log, repository }: Services): Audit {
  const batches = batchDelayed<RunRecord>({
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
