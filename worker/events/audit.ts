/** An AuditEvent an attempt (events.md §5.5). */
import { systemPrincipal } from '../../shared/access/principal.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import { SYSTEM_PROJECT } from '../../shared/store/projects.ts'

export interface AttemptRecord {
  readonly projectId: string
  /** Undefined when it is gone. */
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
  const project = (await services.principals.project(record.projectId)) ?? SYSTEM_PROJECT
  await services.repository.create(systemPrincipal(project), auditEvent(record))
}

function auditEvent(record: AttemptRecord): Resource {
  const { subscription, reference, outcome, text, startedAt, cause } = record
  const now = new Date().toISOString()
  const observer = { reference: `Subscription/${subscription.id}` }
  const { account, accounts } = subscription.meta ?? {}
  const ids = [
    { url: 'requestId', valueId: cause.requestId },
    { url: 'traceId', valueId: cause.traceId },
  ].filter(({ valueId }) => valueId !== undefined)
  return {
    resourceType: 'AuditEvent',
    ...(account || accounts
      ? { meta: { ...(account && { account }), ...(accounts && { accounts }) } }
      : {}),
    ...(ids.length === 0
      ? {}
      : {
          extension: [
            { url: 'https://medplum.com/fhir/StructureDefinition/tracing', extension: ids },
          ],
        }),
    type: { system: 'https://medplum.com/CodeSystem/audit-event', code: 'transmit' },
    period: { start: startedAt.toISOString(), end: now },
    recorded: now,
    agent: [{ who: subscription.meta?.author ?? { display: 'Botica' }, requestor: false }],
    source: { observer },
    entity: [{ what: { reference } }, { what: observer }],
    outcome,
    outcomeDesc: text,
  }
}
