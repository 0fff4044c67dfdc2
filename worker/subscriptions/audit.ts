/** An AuditEvent an attempt, or one for many that succeeded (events.md §5.5). */
import { LRUCache } from 'lru-cache'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { HttpError } from '../../shared/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import type { Repository } from '../../shared/store/repository.ts'
import { parseVersion, toVersion } from '../../shared/store/rows/rows.ts'
import {
  takeUntold,
  type Untold,
  untoldSubscriptions,
} from '../../shared/subscriptions/unreported-successes.ts'

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
    ...auditEvent(subscription, startedAt, [reference], outcome, text),
    ...tracing,
  })
}

/** Errors: 503 while PostgreSQL is away. */
async function auditSuccesses(
  services: Services,
  repository: Pick<Repository, 'create'>,
  subscription: Resource,
  { count, since }: Untold,
): Promise<void> {
  const text = `${count} attempts received a success status`
  await store(services, repository, subscription, auditEvent(subscription, since, [], '0', text))
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

function auditEvent(
  { id, meta }: Resource,
  startedAt: Date,
  references: readonly string[],
  outcome: AttemptRecord['outcome'],
  text: string,
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
// receipts, and one AuditEvent reports those of a minute (events.md §5.5).
const ALONE_A_MINUTE = 60
const MINUTE_MS = 60_000
const KEPT = 20_000

/** Answers whether the next success of a Subscription has an AuditEvent of its own. */
export function createToldAlone(): (subscription: string) => boolean {
  const counts = new LRUCache<string, { readonly minute: number; count: number }>({ max: KEPT })
  return (subscription) => {
    const minute = Math.floor(Date.now() / MINUTE_MS)
    let told = counts.get(subscription)
    if (told?.minute !== minute) {
      told = { minute, count: 0 }
      counts.set(subscription, told)
    }
    told.count += 1
    return told.count <= ALONE_A_MINUTE
  }
}

/** One of several workers writes each AuditEvent. */
export async function tellSuccesses(services: Services): Promise<void> {
  for (const place of await untoldSubscriptions(services.database)) {
    const telling = services.repository.transaction(async (inner) => {
      const untold = await inner.beside((connection) => takeUntold(connection, place))
      if (untold?.version === undefined) return
      const subscription = parseVersion(toVersion(untold.version))
      await auditSuccesses(services, inner, subscription, untold)
    })
    await telling.catch((error: unknown) => {
      // One that cannot be reported, as of a Project that is gone, does not hold up the others.
      if (!(error instanceof HttpError) || error.status >= 500) throw error
    })
  }
}
