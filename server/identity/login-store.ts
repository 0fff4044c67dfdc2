/**
 * Logins: the rows that codes and tokens stand on. A Login is begun by a password or a provider, gets
 * a membership, is granted when its code becomes tokens, and ends revoked. Until it is granted it
 * lives ten minutes.
 */

import { hash, randomBytes, timingSafeEqual } from 'node:crypto'
import { CLI_CLIENT } from '../../shared/access/credentials/clients.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { badRequest } from '../../shared/core/errors.ts'
import { parseReference, type Resource, referenceIn } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { Services } from '../../shared/request/services.ts'
import { parseVersion } from '../../shared/store/rows/rows.ts'
import type { Context } from '../http/context.ts'

const system = systemPrincipal(SYSTEM_PROJECT)
export const UNGRANTED_MS = 600_000
/** The command line tool has neither secret nor challenge. */
const CLI_LOGIN_MS = 60_000
const SECRET_BYTES = 32
const UUID_BYTES = 16

/** One statement; answers the id of the Login. */
export async function createClientLogin(
  { repository }: Services,
  session: Session,
  details: { readonly scope: string; readonly remoteAddress: string; readonly userAgent: string },
): Promise<string> {
  const { principal, membership } = session
  const client = { reference: principal.profile }
  const written = await repository.create(system, {
    resourceType: 'Login',
    authMethod: 'client',
    authTime: new Date().toISOString(),
    user: client,
    client,
    project: { reference: `Project/${principal.project.id}` },
    membership: { reference: `ProjectMembership/${membership.id}` },
    profileType: 'ClientApplication',
    granted: true,
    scope: details.scope,
    ...connection(details.remoteAddress, details.userAgent),
  })
  return written.id
}

/** Where a Login came from, as its elements. */
export function connection(remoteAddress: string, userAgent: string) {
  return { remoteAddress, ...(userAgent === '' ? {} : { userAgent: userAgent.slice(0, 512) }) }
}

/** Undefined when there is none. One statement. */
export async function readLogin(
  { repository }: Services,
  id: string,
): Promise<Resource | undefined> {
  const [found] = await repository.readMany(system, [{ type: 'Login', id }])
  return found?.content === undefined ? undefined : parseVersion(found)
}

/** Changes a Login under its lock; `change` looks at the newest state and may throw. */
export async function patchLogin(
  { repository }: Services,
  id: string,
  change: (login: Resource) => Resource,
): Promise<Resource> {
  const written = await repository.patch(system, { type: 'Login', id }, change)
  return parseVersion(written)
}

/** In force at once, within 5 s where Redis is away. A Login that is gone is revoked. */
export async function revokeLogin(services: Services, id: string): Promise<void> {
  await patchLogin(services, id, (login) => ({ ...login, revoked: true }))
}

/** A Login that may still be signed in to. Errors: 400. */
export function requireOpen(login: Resource): void {
  if (login.revoked === true) throw badRequest('Login revoked', 'login')
  if (login.granted === true) throw badRequest('Login already granted', 'login')
  if (isExpired(login)) throw badRequest('Login expired', 'login')
}

/** When a Login that begins now dies, unless it is granted before. */
export function loginExpiry(clientId: string | undefined): string {
  const lifetimeMs = clientId === CLI_CLIENT.id ? CLI_LOGIN_MS : UNGRANTED_MS
  return new Date(Date.now() + lifetimeMs).toISOString()
}

/** True when it is too old to be granted, and its code with it. */
export function isExpired(login: Resource): boolean {
  return !(Date.parse(String(login.expires)) > Date.now())
}

export function loginClientId(login: Resource): string | undefined {
  return parseReference(referenceIn(login.client))?.id
}

export function loginUserId(login: Resource): string | undefined {
  const user = parseReference(referenceIn(login.user))
  return user?.type === 'User' ? user.id : undefined
}

/**
 * A code, a cookie or a refresh token consists of the id of its Login, by which it is found, and of
 * 256 random bits, of which only the digest is stored.
 */
export function newLoginSecret(loginId: string): string {
  const id = Buffer.from(loginId.replaceAll('-', ''), 'hex')
  return Buffer.concat([id, randomBytes(SECRET_BYTES)]).toString('base64url')
}

/** Id of the Login; undefined for a text that `newLoginSecret` never made. */
export function loginIdFromSecret(secret: string): string | undefined {
  if (!/^[\w-]{64}$/.test(secret)) return undefined
  const hex = Buffer.from(secret, 'base64url').subarray(0, UUID_BYTES).toString('hex')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

export function hashSecret(secret: string): string {
  return hash('sha256', secret)
}

/** `digest` is what `hashSecret` made; anything else equals nothing. */
export function matchesDigest(digest: unknown, secret: string): boolean {
  const wanted = Buffer.from(typeof digest === 'string' ? digest : '')
  const found = Buffer.from(hashSecret(secret))
  return wanted.length === found.length && timingSafeEqual(wanted, found)
}

// One AuditEvent for everything that concerns a sign-in. It names who and from where, never a secret.

const DICOM = 'http://dicom.nema.org/resources/ontology/DCM'
const TRACING = 'https://medplum.com/fhir/StructureDefinition/tracing'
const SUBTYPES = {
  login: { system: DICOM, code: '110122', display: 'Login' },
  logout: { system: DICOM, code: '110123', display: 'Logout' },
} as const

interface SignInEvent {
  readonly kind: keyof typeof SUBTYPES
  /** 0: done; 4: refused; 8: it could not be done. https://hl7.org/fhir/R4/valueset-audit-event-outcome.html */
  readonly outcome: '0' | '4' | '8'
  /** The event in words; it holds no values of the request. */
  readonly what: string
  /** `Type/id` of whom it concerns. */
  readonly who?: string | undefined
  /** Where the event is kept; the platform's own when there is none. */
  readonly projectId?: string | undefined
}

/** Written in the background: no answer waits for it, and none fails with it. */
export function audit(services: Services, ctx: Context, event: SignInEvent): void {
  const { repository, log } = services
  const { requestId, traceId } = ctx.state
  const observer = { display: services.config.baseUrl }
  const written = repository.create(systemPrincipal(SYSTEM_PROJECT), {
    resourceType: 'AuditEvent',
    ...(event.projectId === undefined ? {} : { meta: { project: event.projectId } }),
    extension: [
      {
        url: TRACING,
        extension: [
          { url: 'requestId', valueId: requestId },
          { url: 'traceId', valueId: traceId },
        ],
      },
    ],
    type: { system: DICOM, code: '110114', display: 'User Authentication' },
    subtype: [SUBTYPES[event.kind]],
    recorded: new Date().toISOString(),
    outcome: event.outcome,
    outcomeDesc: event.what,
    agent: [
      {
        ...(event.who === undefined ? {} : { who: { reference: event.who } }),
        requestor: true,
        network: { address: ctx.ip, type: '2' },
      },
    ],
    source: { observer },
  })
  written.catch((cause: unknown) => log.error({ cause, requestId }, 'An AuditEvent was lost'))
}
