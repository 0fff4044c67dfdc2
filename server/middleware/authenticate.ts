/** Bearer token or client credentials → Principal and Session. Errors: 401. */
import { isActiveClient, secretMatches } from '../../shared/access/clients.ts'
import type { TokenClaims } from '../../shared/access/tokens.ts'
import { HttpError, unauthorized } from '../../shared/errors.ts'
import { issue, outcome } from '../../shared/fhir/outcome.ts'
import type { Session } from '../../shared/store/principals.ts'
import type { Context, Middleware, Web } from '../context.ts'

export function authenticate({ services }: Web): Middleware {
  const { config, principals, tokens } = services

  const byBearer = async (token: string) => {
    const claims = await tokens.verify(token)
    if (claims === 'expired') throw expired(config.baseUrl)
    if (claims === undefined) return undefined
    const session = await principals.forLogin(claims.loginId)
    return session === undefined ? undefined : { session, claims }
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
      /^(\w+) +([^ ]+) *$/.exec(ctx.get('Authorization')) ?? []
    const found = await lookUp(scheme.toLowerCase(), credentials, byBearer, byBasic)
    if (found === undefined) throw challenge(ctx, config.baseUrl, scheme !== '')
    ctx.state.session = found.session
    ctx.state.principal = found.session.principal
    if (found.claims !== undefined) ctx.state.claims = found.claims
    await next()
  }
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

function withClient(session: Session, clientId: string): Session {
  return { ...session, principal: { ...session.principal, clientId } }
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
