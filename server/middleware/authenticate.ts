/**
 * Bearer token or client credentials → Principal and Session, or those of the member it acts for.
 * Errors: 401, 403, 429.
 */
import { isActiveClient, takesSecret } from '../../shared/access/credentials/clients.ts'
import type { TokenClaims } from '../../shared/access/credentials/tokens.ts'
import { outranks } from '../../shared/access/guarded/rights.ts'
import { isAllowedFrom, profileReference } from '../../shared/access/principal.ts'
import { narrowed } from '../../shared/access/scopes.ts'
import { forbidden, HttpError, issue, outcome, unauthorized } from '../../shared/core/errors.ts'
import { parseReference } from '../../shared/fhir/resource.ts'
import { narrowSession, type Principals, type Session } from '../../shared/identity/principals.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Context, Middleware, Web } from '../http/context.ts'
import { audit } from '../identity/login-store.ts'
import { verifyClientSecret } from './access.ts'
import { rateLimitAddress } from './limits.ts'

const ON_BEHALF_OF = 'X-Medplum-On-Behalf-Of'

export function authenticate({ services }: Web): Middleware {
  const { config, principals, tokens } = services

  const byBearer = async (token: string) => {
    const claims = await tokens.verify(token)
    if (claims === 'expired') throw expired(config.baseUrl)
    // The token of a web socket binds a Subscription and opens nothing else.
    if (claims === undefined || claims.subscriptionId !== undefined) return undefined
    const session = await principals.forLogin(claims.loginId)
    if (session === undefined) return undefined
    // A token may be narrower than its Login (RFC 6749 §6).
    const { patient } = session.principal
    return { session: narrowSession(session, { scope: claims.scope, patient }), claims }
  }

  const byBasic = async (encoded: string, ip: string) => {
    const credentials = parseBasic(encoded)
    if (credentials === undefined) return undefined
    const { id, secret } = credentials
    const session = await principals.forProfile(`ClientApplication/${id}`)
    if (session === undefined || !isActiveClient(session.profile)) return undefined
    if (!takesSecret(session.profile)) return undefined
    if (!verifyClientSecret(services, session.profile, secret, rateLimitAddress(ip)))
      return undefined
    return { session: withClient(session, id), claims: undefined }
  }

  return async (ctx, next) => {
    const [, scheme = '', credentials = ''] =
      /^(\w+) +([^ ]+) *$/.exec(ctx.req.headers.authorization ?? '') ?? []
    const found = await lookUp({
      scheme: scheme.toLowerCase(),
      credentials,
      ip: ctx.ip,
      byBearer,
      byBasic,
    })
    if (found === undefined) throw challenge(ctx, config.baseUrl, scheme !== '')
    ctx.state.limitTo?.(found.session.principal.project.rateLimits)
    if (!isAllowedFrom(found.session.principal.ipRules, ctx.ip)) throw forbidden()
    const target = ctx.get(ON_BEHALF_OF)
    const session =
      target === '' ? found.session : await actingSession(principals, found.session, target)
    if (session !== found.session) auditActing(services, ctx, found.session, session)
    ctx.state.session = session
    ctx.state.principal = session.principal
    if (found.claims !== undefined) ctx.state.claims = found.claims
    await next()
  }
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

type LookUp = (credentials: string, ip: string) => Promise<Found | undefined>

interface Lookup {
  readonly scheme: string
  readonly credentials: string
  readonly ip: string
  readonly byBearer: LookUp
  readonly byBasic: LookUp
}

function lookUp({
  scheme,
  credentials,
  ip,
  byBearer,
  byBasic,
}: Lookup): ReturnType<LookUp> | undefined {
  if (scheme === 'bearer') return byBearer(credentials, ip)
  if (scheme === 'basic') return byBasic(credentials, ip)
  return undefined
}

/** The two halves of Basic credentials, as they stand; undefined when there are not two. */
export function parseBasic(encoded: string): { id: string; secret: string } | undefined {
  const text = Buffer.from(encoded, 'base64').toString('utf8')
  const colon = text.indexOf(':')
  if (colon < 1) return undefined
  return { id: text.slice(0, colon), secret: text.slice(colon + 1) }
}

function withClient(session: Session, clientId: string): Session {
  return { ...session, principal: { ...session.principal, clientId } }
}

/** Rights are the other member's within the caller's scope; `meta` names both. Errors: 403. */
async function actingSession(
  principals: Principals,
  session: Session,
  target: string,
): Promise<Session> {
  const { principal } = session
  const parsed = parseReference(target)
  if (!principal.isProjectAdmin || parsed === undefined) throw forbidden()
  const member =
    parsed.type === 'ProjectMembership'
      ? await principals.forMembership(parsed.id)
      : await principals.forProfile(target, principal.project.id)
  if (member === undefined || member.principal.project.id !== principal.project.id)
    throw forbidden()
  const { loginId, profile, profileDisplay, clientId, scope, patient } = principal
  const acting = narrowed(member.principal, scope, patient)
  // A super admin with a policy has what it lists, for whomever they act.
  if (outranks(acting, principal)) throw forbidden()
  return {
    ...member,
    principal: {
      ...acting,
      // It is not the User who acts.
      user: undefined,
      loginId,
      profile,
      profileDisplay,
      onBehalfOf: profileReference(member.principal),
      clientId,
    },
  }
}

function challenge(ctx: Context, baseUrl: string, wasGiven: boolean): HttpError {
  if (ctx.query['_medplum-prompt-basic-auth'] === undefined) return unauthorized(baseUrl, wasGiven)
  return withHeader(unauthorized(baseUrl), `Basic realm="${baseUrl}"`)
}

function withHeader(error: HttpError, value: string): HttpError {
  return new HttpError(error.status, error.outcome, { headers: { 'WWW-Authenticate': value } })
}

function expired(baseUrl: string): HttpError {
  const { headers } = unauthorized(baseUrl, true)
  const body = outcome(
    'unauthorized',
    issue('error', 'login', 'Unauthorized'),
    issue('error', 'expired', 'Token expired'),
  )
  return new HttpError(401, body, { headers: { ...headers } })
}
