/** An AuditEvent an attempt, or one for many that succeeded. */
import { LRUCache } from 'lru-cache'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { HttpError } from '../../shared/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import type { Repository } from '../../shared/store/repository.ts'
import { parseVersion, toVersion } from '../../shared/store/rows/rows.ts'
import {
  takeUnreported,
  type Unreported,
  unreportedSubscriptions,
} from '../../shared/subscriptions/state.ts'

export interface AttemptRecord {
  readonly subscription: Resource
  /** `Type/id`. */
  readonly reference: string
  readonly outcome: '0' | '4' | '8'
  readonly text: string
  readonly startedAt: Date
  readonly cause: { readonly traceId?: string; readonly requestId?: string }
}

/** Errors: 503 while PostgreSQL is away. */
export async function auditAttempt(services: Services, record: AttemptRecord): Promise<void> {
  const { subscription, reference, outcome, text, startedAt, cause } = record
  const ids = [
    { url: 'requestId', valueId: cause.requestId },
    { url: 'traceId', valueId: cause.traceId },
  ].filter(({ valueId }) => valueId !== undefined)
  const tracing =
    ids.length === 0
      ? {}
      : {
          extension: [
            { url: 'https://medplum.com/fhir/StructureDefinition/tracing', extension: ids },
          ],
        }
  await store(services, services.repository, subscription, {
    ...auditEvent(subscription, { startedAt, references: [reference], outcome, text }),
    ...tracing,
  })
}

/** Errors: 503 while PostgreSQL is away. */
async function auditSuccesses(
  services: Services,
  repository: Pick<Repository, 'create'>,
  subscription: Resource,
  { count, since }: Unreported,
): Promise<void> {
  const text = `${count} attempts received a success status`
  await store(
    services,
    repository,
    subscription,
    auditEvent(subscription, { startedAt: since, references: [], outcome: '0', text }),
  )
}

async function store(
  { principals }: Services,
  repository: Pick<Repository, 'create'>,
  { meta }: Resource,
  event: Resource,
): Promise<void> {
  const project = (await principals.project(meta?.project ?? '')) ?? SYSTEM_PROJECT
  await repository.create(systemPrincipal(project), event)
}

interface AuditedDelivery {
  readonly startedAt: Date
  readonly references: readonly string[]
  readonly outcome: AttemptRecord['outcome']
  readonly text: string
}

function auditEvent(
  { id, meta }: Resource,
  { startedAt, references, outcome, text }: AuditedDelivery,
): Resource {
  const now = new Date().toISOString()
  const observer = { reference: `Subscription/${id}` }
  const { account, accounts } = meta ?? {}
  return {
    resourceType: 'AuditEvent',
    ...(account || accounts
      ? { meta: { ...(account && { account }), ...(accounts && { accounts }) } }
      : {}),
    type: { system: 'https://medplum.com/CodeSystem/audit-event', code: 'transmit' },
    period: { start: startedAt.toISOString(), end: now },
    recorded: now,
    agent: [{ who: meta?.author ?? { display: 'Botica' }, requestor: false }],
    source: { observer },
    entity: [...references.map((reference) => ({ what: { reference } })), { what: observer }],
    outcome,
    outcomeDesc: text,
  }
}

// Successes of a Subscription have an AuditEvent each while they are few; beyond that PostgreSQL counts them with the
// receipts, and one AuditEvent reports those of a minute.
const ALONE_A_MINUTE = 60
const MINUTE_MS = 60_000
const KEPT = 20_000

/** Answers whether the next success of a Subscription has an AuditEvent of its own. */
export function createReportedAlone(): (subscription: string) => boolean {
  const counts = new LRUCache<string, { readonly minute: number; count: number }>({ max: KEPT })
  return (subscription) => {
    const minute = Math.floor(Date.now() / MINUTE_MS)
    let counted = counts.get(subscription)
    if (counted?.minute !== minute) {
      counted = { minute, count: 0 }
      counts.set(subscription, counted)
    }
    counted.count += 1
    return counted.count <= ALONE_A_MINUTE
  }
}

/** One of several workers writes each AuditEvent. */
export async function reportSuccesses(services: Services): Promise<void> {
  for (const place of await unreportedSubscriptions(services.database)) {
    const reporting = services.repository.transaction(async (inner) => {
      const unreported = await inner.beside((connection) => takeUnreported(connection, place))
      if (unreported?.version === undefined) return
      const subscription = parseVersion(toVersion(unreported.version))
      await auditSuccesses(services, inner, subscription, unreported)
    })
    await reporting.catch((error: unknown) => {
      // One that cannot be reported, as of a Project that is gone, does not hold up the others.
      if (!(error instanceof HttpError) || error.status >= 500) throw error
    })
  }
}
