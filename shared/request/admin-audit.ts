/** AuditEvents of administrative writes (changed fields without values) and of refusals. */

import {
  type Principal,
  type ProjectContext,
  servicePrincipal,
  systemPrincipal,
} from '../access/principal.ts'
import { Cache } from '../core/cache.ts'
import { HttpError } from '../core/errors.ts'
import { isSameJson } from '../fhir/json.ts'
import { parseReference, type Resource } from '../fhir/resource.ts'
import type { Repository, Transaction } from '../store/repository.ts'
import { tracingExtension } from './reply.ts'
import type { FhirRequest } from './request.ts'
import type { Services } from './services.ts'

type Interaction = 'create' | 'update' | 'patch' | 'delete' | 'operation' | 'read' | 'search-type'

/** Fields whose changes are audited. */
const WATCHED = ['admin', 'access', 'accessPolicy', 'secret', 'superAdmin', 'features', 'active']

interface RecordedChange {
  readonly project: ProjectContext
  readonly interaction: Interaction
  readonly target: string
  readonly fields?: readonly string[] | undefined
}

/** Written in the transaction of the change. `fields` are the changed paths. */
export async function recordChange(
  repository: Repository,
  caller: Principal,
  { project, interaction, target, fields = [] }: RecordedChange,
): Promise<void> {
  const { profile, profileDisplay } = caller
  const detail = fields.map((path) => ({ type: 'changed', valueString: path }))
  await repository.create(
    servicePrincipal(project, { profile, profileDisplay }),
    restEvent(caller, project, interaction, {
      what: { reference: target },
      ...(detail.length > 0 ? { detail } : {}),
    }),
  )
}

interface AuditedChange<Result> {
  readonly make: (inside: Transaction) => Promise<Result>
  /** Or a function of the result, which returns undefined if nothing has changed. */
  readonly record: RecordedChange | ((result: Result) => RecordedChange | undefined)
}

/** Makes a change and writes its AuditEvent in one transaction. */
export async function changeAudited<Result>(
  repository: Repository,
  caller: Principal,
  { make, record }: AuditedChange<Result>,
): Promise<Result> {
  return await repository.transaction(async (inside) => {
    const result = await make(inside)
    const change = typeof record === 'function' ? record(result) : record
    if (change !== undefined) await recordChange(inside, caller, change)
    return result
  })
}

/** Builds the event of a successful REST interaction. https://hl7.org/fhir/R4/valueset-audit-event-sub-type.html */
export function restEvent(
  caller: Pick<Principal, 'profile' | 'membershipId'>,
  project: ProjectContext,
  interaction: Interaction,
  entity: object,
): Resource {
  return {
    resourceType: 'AuditEvent',
    type: { system: 'http://terminology.hl7.org/CodeSystem/audit-event-type', code: 'rest' },
    subtype: [{ system: 'http://hl7.org/fhir/restful-interaction', code: interaction }],
    recorded: new Date().toISOString(),
    agent: auditAgents(caller),
    source: { observer: { reference: `Project/${project.id}` } },
    entity: [entity],
    outcome: '0',
  }
}

/** The caller, and the membership that granted the rights, possibly another one. */
function auditAgents({ profile, membershipId }: Pick<Principal, 'profile' | 'membershipId'>) {
  const asker = { who: { reference: profile ?? 'system' }, requestor: true }
  if (membershipId === undefined) return [asker]
  return [asker, { who: { reference: `ProjectMembership/${membershipId}` }, requestor: false }]
}

export function changedFields(
  before: Readonly<Record<string, unknown>>,
  after: Readonly<Record<string, unknown>>,
): readonly string[] {
  return WATCHED.filter((name) => {
    const [a, b] = [before[name], after[name]].map((value) => JSON.stringify(value) ?? 'null')
    return a !== b && !isSameJson(a ?? '', b ?? '')
  })
}

export function givenFields(resource: Resource): readonly string[] {
  return changedFields({}, resource)
}

type RefusedRequest = Pick<
  FhirRequest,
  'method' | 'path' | 'requestId' | 'traceId' | 'isRolledBack'
>

/** Repeated refusals of a caller are logged, but not stored. */
const QUIET_MS = 60_000
const KEPT = 10_000
const logged = new Cache<string, true>({ name: 'audited-refusals', max: KEPT, ttlMs: QUIET_MS })

/** Logs the reason of a refusal, never shown to the caller; adds an AuditEvent once a minute per member and reason. */
export function auditRefusal(
  services: Pick<Services, 'log' | 'repository'>,
  principal: Principal,
  asked: RefusedRequest,
  error: unknown,
): void {
  if (!(error instanceof HttpError) || error.status !== 403 || asked.isRolledBack === true) return
  if (typeof error.cause !== 'string') return
  const { log, repository } = services
  const { project, membershipId } = principal
  const who = { project: project.id, membership: membershipId }
  log.info({ requestId: asked.requestId, ...who, refused: error.cause }, 'refused')
  if (membershipId === undefined) return
  const [type = ''] = asked.path.split('/')
  const name = [membershipId, asked.method, type, error.cause].join(' ')
  if (logged.has(name)) return
  logged.set(name, true)
  repository
    .create(systemPrincipal(project), refusalEvent(principal, asked, error.cause))
    .catch((cause: unknown) => log.error({ cause, ...who }, 'An AuditEvent was lost'))
}

/** https://hl7.org/fhir/R4/valueset-audit-event-action.html */
const ACTIONS: Readonly<Record<string, string>> = {
  GET: 'R',
  HEAD: 'R',
  POST: 'C',
  PUT: 'U',
  PATCH: 'U',
  DELETE: 'D',
}

/** Outcome 4 is a minor failure, reported in the reply. The event contains the request without values. */
function refusalEvent(principal: Principal, asked: RefusedRequest, why: string): Resource {
  const { method, path } = asked
  const [type = '', id = ''] = path.split('/')
  const isOperation = path.includes('$') || path === ''
  const target = parseReference(`${type}/${id}`) && { reference: `${type}/${id}` }
  return {
    resourceType: 'AuditEvent',
    extension: [tracingExtension(asked)],
    type: { system: 'http://terminology.hl7.org/CodeSystem/audit-event-type', code: 'rest' },
    action: isOperation ? 'E' : (ACTIONS[method] ?? 'E'),
    recorded: new Date().toISOString(),
    outcome: '4',
    outcomeDesc: `Forbidden: ${why}`,
    agent: auditAgents(principal),
    source: { observer: { reference: `Project/${principal.project.id}` } },
    entity: [target === undefined ? { name: `${method} /${type}` } : { what: target }],
  }
}
