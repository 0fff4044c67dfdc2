/** An AuditEvent an attempt, or one for many that succeeded. */
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import type { Repository } from '../../shared/store/repository.ts'
import type { Unreported } from '../../shared/subscriptions/unreported-successes.ts'

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
export async function auditSuccesses(
  services: Services,
  repository: Pick<Repository, 'create'>,
  subscription: Resource,
  { count, since }: Unreported,
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
