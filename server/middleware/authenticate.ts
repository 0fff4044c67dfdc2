/**
 * Resolves a bearer token or client credentials to a Principal and Session, or to the member acted for. Errors: 401,
 * 403, 429.
 */

import {
  certificateHeader,
  comesWithCertificate,
} from '../../shared/access/credentials/certificates.ts'
import { isActiveClient, takesSecret } from '../../shared/access/credentials/clients.ts'
import type { TokenClaims } from '../../shared/access/credentials/tokens.ts'
import { forbidden, HttpError, issue, outcome, unauthorized } from '../../shared/core/errors.ts'
import { actOnBehalfOf, ON_BEHALF_OF } from '../../shared/identity/on-behalf-of.ts'
import { narrowSession, type Session } from '../../shared/identity/principals.ts'
import { isInScope } from '../../shared/request/project-scope.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Context, Credentials, Middleware, Web } from '../http/context.ts'
import { audit } from '../identity/sign-in-audit.ts'
import { verifyClientSecret } from './access.ts'
import { rateLimitAddress } from './limits.ts'

export function credentialsIn({ config }: Pick<Services, 'config'>, ctx: Context): Credentials {
  const { headers } = ctx.req
  return {
    authorization: headers.authorization,
    onBehalfOf: ctx.get(ON_BEHALF_OF),
    ip: ctx.ip,
    certificate: certificateHeader(config, headers),
    projectScope: ctx.state.projectScope,
  }
}

export function authenticate({ services }: Web): Middleware {
  const { config, principals } = services
  return async (ctx, next) => {
    const credentials = credentialsIn(services, ctx)
    const { proven } = ctx.state
    const found = proven
      ? { session: proven, claims: undefined }
      : await findCaller(services, credentials)
    if (found === undefined) {
      const wasGiven = SCHEME.test(credentials.authorization ?? '')
      throw challenge(ctx, config.baseUrl, wasGiven)
    }
    requireScope(ctx, found)
    ctx.state.limitTo?.(found.session.principal.project.rateLimits)
    if (found.session.principal.allowsAddress?.(ctx.ip) === false) throw forbidden()
    const { onBehalfOf } = credentials
    const session =
      onBehalfOf === '' ? found.session : await actOnBehalfOf(principals, found.session, onBehalfOf)
    if (session !== found.session) auditActing(services, ctx, found.session, session)
    ctx.state.session = session
    ctx.state.principal = session.principal
    if (found.claims !== undefined) ctx.state.claims = found.claims
    await next()
  }
}

/** Requires the Project in the address to be the caller's; an unknown Project gets the same answer. Errors: 403. */
function requireScope({ state: { projectScope } }: Context, { session }: Found): void {
  if (!isInScope(projectScope, session.project)) throw forbidden()
}

/** Returns the Session of a caller admitted by `authenticate`. Errors: 401, 403. */
export async function sessionFor(services: Services, credentials: Credentials): Promise<Session> {
  const found = await findCaller(services, credentials)
  if (found === undefined) throw unauthorized(services.config.baseUrl, true)
  if (credentials.onBehalfOf === '') return found.session
  return await actOnBehalfOf(services.principals, found.session, credentials.onBehalfOf)
}

function auditActing(services: Services, ctx: Context, caller: Session, acting: Session): void {
  audit(services, ctx, {
    kind: 'login',
    outcome: '0',
    what: `Acting on behalf of ${acting.membership.id}`,
    who: caller.principal.profile,
    projectId: caller.project.id,
  })
}

interface Found {
  readonly session: Session
  readonly claims: TokenClaims | undefined
}

const SCHEME = /^(\w+) +([^ ]+) *$/

/** Returns the member of a token or client credentials; undefined without credentials. Errors: 401, 429. */
async function findCaller(
  services: Services,
  { authorization, ip, certificate, projectScope }: Credentials,
): Promise<Found | undefined> {
  const [, scheme = '', value = ''] = SCHEME.exec(authorization ?? '') ?? []
  if (scheme.toLowerCase() === 'bearer') return await byBearer(services, value, certificate)
  if (scheme.toLowerCase() === 'basic') return await byBasic(services, value, ip, projectScope)
  return undefined
}

async function byBearer(
  { config, principals, tokens }: Services,
  token: string,
  certificate: string | undefined,
): Promise<Found | undefined> {
  const claims = await tokens.verify(token)
  if (claims === 'expired') throw rejected(config.baseUrl, 'expired', 'Token expired')
  // Tokens of web sockets serve only to bind a Subscription.
  if (claims === undefined || claims.subscriptionId !== undefined) return undefined
  const session = await principals.forLogin(claims.loginId)
  if (session === undefined) return undefined
  if (!comesWithCertificate(claims, certificate)) {
    throw rejected(config.baseUrl, 'login', 'Token is bound to a client certificate')
  }
  if (!isInScope(claims.projectScope, session.project)) throw forbidden()
  // A token may be narrower than its Login (RFC 6749 §6).
  const { patient } = session.principal
  const narrow = narrowSession(session, { scope: claims.scope, patient })
  if (claims.certificate === undefined) return { session: narrow, claims }
  const bound = { ...narrow.principal, certificate: claims.certificate }
  return { session: { ...narrow, principal: bound }, claims }
}

async function byBasic(
  services: Services,
  encoded: string,
  ip: string,
  projectScope: string | undefined,
): Promise<Found | undefined> {
  const credentials = parseBasic(encoded)
  if (credentials === undefined) return undefined
  const { id, secret } = credentials
  const { principals } = services
  const profile = `ClientApplication/${id}`
  // Another Project may have a client with the same id.
  const own = projectScope && (await principals.forProfile(profile, projectScope))
  const session = own || (await principals.forProfile(profile))
  if (session === undefined || !isActiveClient(session.profile)) return undefined
  if (!takesSecret(session.profile)) return undefined
  if (!verifyClientSecret(services, session.profile, secret, rateLimitAddress(ip))) return undefined
  const principal = { ...session.principal, clientId: id }
  return { session: { ...session, principal }, claims: undefined }
}

/** Returns the two halves of Basic credentials, undecoded; undefined unless there are two. */
export function parseBasic(encoded: string): { id: string; secret: string } | undefined {
  const text = Buffer.from(encoded, 'base64').toString('utf8')
  const colon = text.indexOf(':')
  if (colon < 1) return undefined
  return { id: text.slice(0, colon), secret: text.slice(colon + 1) }
}

function challenge(ctx: Context, baseUrl: string, wasGiven: boolean): HttpError {
  if (ctx.query['_medplum-prompt-basic-auth'] === undefined) return unauthorized(baseUrl, wasGiven)
  const headers = { 'WWW-Authenticate': `Basic realm="${baseUrl}"` }
  return new HttpError(401, unauthorized(baseUrl).outcome, { headers })
}

/** Names the reason for which a token of this service is invalid. */
function rejected(baseUrl: string, code: 'expired' | 'login', reason: string): HttpError {
  const { headers } = unauthorized(baseUrl, true)
  const body = outcome(
    'unauthorized',
    issue('error', 'login', 'Unauthorized'),
    issue('error', code, reason),
  )
  return new HttpError(401, body, { headers: { ...headers } })
}
