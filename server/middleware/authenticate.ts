/**
 * Bearer token or client credentials → Principal and Session, or those of the member it acts for.
 * Errors: 401, 403, 429.
 */
import { isActiveClient, secretMatches } from '../../shared/access/clients.ts'
import { isAllowedFrom } from '../../shared/access/ip-rules.ts'
import { profileReference } from '../../shared/access/principal.ts'
import { narrowRules, smartScopes } from '../../shared/access/scopes.ts'
import type { TokenClaims } from '../../shared/access/tokens.ts'
import { forbidden, HttpError, unauthorized } from '../../shared/errors.ts'
import { issue, outcome } from '../../shared/fhir/outcome.ts'
import { parseReference } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import type { Principals, Session } from '../../shared/store/principals.ts'
import { audit } from '../auth/audit.ts'
import type { Context, Middleware, Web } from '../context.ts'

const ON_BEHALF_OF = 'X-Medplum-On-Behalf-Of'

export function authenticate({ services }: Web): Middleware {
  const { config, principals, tokens } = services

  const byBearer = async (token: string) => {
    const claims = await tokens.verify(token)
    if (claims === 'expired') throw expired(config.baseUrl)
    if (claims === undefined) return undefined
    const session = await principals.forLogin(claims.loginId)
    return session === undefined ? undefined : { session: within(session, claims.scope), claims }
  }

  const byBasic = async (encoded: string) => {
    const credentials = parseBasic(encoded)
    if (credentials === undefined) return undefined
    const { id, secret } = credentials
    const session = await principals.forProfile(`ClientApplication/${id}`)
    if (session === undefined || !isActiveClient(session.profile)) return undefined
    if (!secretMatches(session.profile, secret)) return undefined
    return { session: withClient(session, id), claims: undefined }
  }

  return async (ctx, next) => {
    const [, scheme = '', credentials = ''] =
      /^(\w+) +([^ ]+) *$/.exec(ctx.req.headers.authorization ?? '') ?? []
    const found = await lookUp(scheme.toLowerCase(), credentials, byBearer, byBasic)
    if (found === undefined) throw challenge(ctx, config.baseUrl, scheme !== '')
    ctx.state.limitTo?.(found.session.principal.project.rateLimits)
    if (!isAllowedFrom(found.session.principal.ipRules, ctx.ip)) throw forbidden()
    const session = await actingSession(principals, found.session, ctx.get(ON_BEHALF_OF))
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

type LookUp = (credentials: string) => Promise<Found | undefined>

async function lookUp(scheme: string, credentials: string, byBearer: LookUp, byBasic: LookUp) {
  if (scheme === 'bearer') return await byBearer(credentials)
  if (scheme === 'basic') return await byBasic(credentials)
  return undefined
}

/** The two halves of Basic credentials, as they stand; undefined when there are not two. */
export function parseBasic(encoded: string): { id: string; secret: string } | undefined {
  const text = Buffer.from(encoded, 'base64').toString('utf8')
  const colon = text.indexOf(':')
  if (colon < 1) return undefined
  return { id: text.slice(0, colon), secret: text.slice(colon + 1) }
}

/** A token may be narrower than its Login (RFC 6749 §6). */
export function within(session: Session, scope: string): Session {
  const { principal } = session
  if (scope === principal.scope) return session
  const rules = narrowRules(principal.rules, scope, principal.patient)
  return { ...session, principal: { ...principal, scope, scopes: smartScopes(scope), rules } }
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
  if (target === '') return session
  const { principal } = session
  const parsed = parseReference(target)
  if (!principal.isProjectAdmin || parsed === undefined) throw forbidden()
  const member =
    parsed.type === 'ProjectMembership'
      ? await principals.forMembership(parsed.id)
      : await principals.forProfile(target)
  if (member === undefined || member.principal.project.id !== principal.project.id)
    throw forbidden()
  const { loginId, profile, profileDisplay, clientId, scope, scopes, patient } = principal
  const rules = narrowRules(member.principal.rules, scope, patient)
  return {
    ...member,
    principal: {
      ...member.principal,
      // It is not the User who acts.
      user: undefined,
      rules,
      loginId,
      profile,
      profileDisplay,
      onBehalfOf: profileReference(member.principal),
      clientId,
      scope,
      scopes,
      patient,
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
