/** An AuditEvent for each administrative write: who changed what, and which fields; never a value. */
import { type Principal, type ProjectContext, systemPrincipal } from '../access/principal.ts'
import { isSameJson } from '../fhir/json.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Repository } from '../store/repository.ts'

type Interaction = 'create' | 'update' | 'patch' | 'delete' | 'operation' | 'read' | 'search-type'

/** Fields that an AuditEvent names when they change. */
const WATCHED = ['admin', 'access', 'accessPolicy', 'secret', 'superAdmin', 'features', 'active']

interface RecordedChange {
  readonly project: ProjectContext
  readonly interaction: Interaction
  readonly target: string
  readonly fields?: readonly string[] | undefined
}

/** Written with the change, in its transaction. `fields` are the paths that have changed. */
export async function recordChange(
  repository: Repository,
  caller: Principal,
  { project, interaction, target, fields = [] }: RecordedChange,
): Promise<void> {
  const { profile, profileDisplay } = caller
  const detail = fields.map((path) => ({ type: 'changed', valueString: path }))
  await repository.create(
    { ...systemPrincipal(project), profile, profileDisplay },
    restEvent(caller, project, interaction, {
      what: { reference: target },
      ...(detail.length > 0 ? { detail } : {}),
    }),
  )
}

/** An interaction of REST that went well. https://hl7.org/fhir/R4/valueset-audit-event-sub-type.html */
export function restEvent(
  caller: Principal,
  project: ProjectContext,
  interaction: Interaction,
  entity: object,
): Resource {
  return {
    resourceType: 'AuditEvent',
    type: { system: 'http://terminology.hl7.org/CodeSystem/audit-event-type', code: 'rest' },
    subtype: [{ system: 'http://hl7.org/fhir/restful-interaction', code: interaction }],
    recorded: new Date().toISOString(),
    agent: agentsOf(caller),
    source: { observer: { reference: `Project/${project.id}` } },
    entity: [entity],
    outcome: '0',
  }
}

/** The caller, and the membership that gave the rights, which may be another's. */
export function agentsOf({ profile, membershipId }: Pick<Principal, 'profile' | 'membershipId'>) {
  const asker = { who: { reference: profile ?? 'system' }, requestor: true }
  if (membershipId === undefined) return [asker]
  return [asker, { who: { reference: `ProjectMembership/${membershipId}` }, requestor: false }]
}

/** Which of the watched fields differ. */
export function changedFields(
  before: Readonly<Record<string, unknown>>,
  after: Readonly<Record<string, unknown>>,
): readonly string[] {
  return WATCHED.filter((name) => {
    const [a, b] = [before[name], after[name]].map((value) => JSON.stringify(value) ?? 'null')
    return a !== b && !isSameJson(a ?? '', b ?? '')
  })
}

/** Paths of the watched fields that a new resource has. */
export function givenFields(resource: Resource): readonly string[] {
  return changedFields({}, resource)
}
