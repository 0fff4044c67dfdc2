/** AuditEvents of exports and imports: who has done what with which; never what is in them. */
import { type Principal, systemPrincipal } from '../../access/principal.ts'
import { agentsOf } from '../../request/admin-audit.ts'
import type { Services } from '../../services.ts'

export type BulkCaller = Pick<Principal, 'profile' | 'profileDisplay' | 'membershipId' | 'project'>

export type BulkStep = 'kick-off' | 'completed' | 'download' | 'cancel'

/** `reference` is that of the job. */
export async function recordBulk(
  { repository }: Pick<Services, 'repository'>,
  { project, profile, profileDisplay, membershipId }: BulkCaller,
  reference: string,
  step: BulkStep,
  details: Readonly<Record<string, string | number>>,
): Promise<void> {
  const detail = Object.entries(details).map(([type, value]) => ({
    type,
    valueString: String(value),
  }))
  await repository.create(
    { ...systemPrincipal(project), profile, profileDisplay },
    {
      resourceType: 'AuditEvent',
      type: { system: 'http://terminology.hl7.org/CodeSystem/audit-event-type', code: 'rest' },
      subtype: [
        { system: 'http://hl7.org/fhir/restful-interaction', code: 'operation' },
        { system: 'http://hl7.org/fhir/uv/bulkdata', code: step },
      ],
      action: step === 'download' ? 'R' : 'E',
      recorded: new Date().toISOString(),
      agent: agentsOf({ profile, membershipId }),
      source: { observer: { reference: `Project/${project.id}` } },
      entity: [{ what: { reference }, detail }],
      outcome: '0',
    },
  )
}
