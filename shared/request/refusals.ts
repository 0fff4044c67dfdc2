/** The reason of a refusal goes to the log and to an AuditEvent, never to the caller. */
import { LRUCache } from 'lru-cache'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { HttpError } from '../errors.ts'
import { parseReference, type Resource } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { agentsOf } from './admin-audit.ts'
import { tracingOf } from './reply.ts'
import type { FhirRequest } from './request.ts'

type RefusedRequest = Pick<FhirRequest, 'method' | 'path' | 'requestId' | 'traceId'>

/** Repeated refusals of one caller fill the log, and no table. */
const QUIET_MS = 60_000
const KEPT = 10_000
const logged = new LRUCache<string, true>({ max: KEPT, ttl: QUIET_MS })

/**
 * One line for a 403 that knows what decided it: a layer, an entry of a policy. Its AuditEvent is written
 * in the background, once a minute for the same member, type and reason.
 */
export function auditRefusal(
  services: Pick<Services, 'log' | 'repository'>,
  principal: Principal,
  asked: RefusedRequest,
  error: unknown,
): void {
  if (!(error instanceof HttpError) || error.status !== 403) return
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

/** Outcome 4 is a minor failure, which the reply reported. The event names what was asked for, and no value. */
function refusalEvent(principal: Principal, asked: RefusedRequest, why: string): Resource {
  const { method, path } = asked
  const [type = '', id = ''] = path.split('/')
  const isOperation = path.includes('$') || path === ''
  const target = parseReference(`${type}/${id}`) && { reference: `${type}/${id}` }
  return {
    resourceType: 'AuditEvent',
    extension: [tracingOf(asked)],
    type: { system: 'http://terminology.hl7.org/CodeSystem/audit-event-type', code: 'rest' },
    action: isOperation ? 'E' : (ACTIONS[method] ?? 'E'),
    recorded: new Date().toISOString(),
    outcome: '4',
    outcomeDesc: `Forbidden: ${why}`,
    agent: agentsOf(principal),
    source: { observer: { reference: `Project/${principal.project.id}` } },
    entity: [target === undefined ? { name: `${method} /${type}` } : { what: target }],
  }
}
