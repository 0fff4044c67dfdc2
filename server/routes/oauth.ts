/** `/oauth2/**`: RFC 6749 §4.4, RFC 7009, RFC 7662 and userinfo. */
import Router from '@koa/router'
import { accessTokenSeconds, isActiveClient, secretMatches } from '../../shared/access/clients.ts'
import { grantedScope } from '../../shared/access/scopes.ts'
import type { Session } from '../../shared/store/principals.ts'
import { type Context, caller, type Middleware, type State, type Web } from '../context.ts'
import { createLogin, revokeLogin } from '../logins.ts'
import { parseBasic } from '../middleware/authenticate.ts'
import { readBody } from '../middleware/body.ts'
import { OAuthError } from '../middleware/failures.ts'

const FORM_BYTES = 65_536
const DEFAULT_SCOPE = 'openid'

export function oauthRoutes(web: Web, authenticate: Middleware): Router<State> {
  const router = new Router<State>()
  const { services } = web
  const { tokens } = services

  router.post('/oauth2/token', async (ctx) => {
    const form = await readForm(ctx)
    const grant = form.get('grant_type')
    if (!grant) throw new OAuthError('invalid_request', 'Missing grant_type')
    if (grant !== 'client_credentials') {
      throw new OAuthError('unsupported_grant_type', 'Unsupported grant_type')
    }
    const session = await authenticateClient(ctx, form, web)
    const scope = grantedScope(form.get('scope') || DEFAULT_SCOPE)
    const loginId = await createLogin(services, session, {
      scope,
      remoteAddress: ctx.ip,
      userAgent: ctx.get('User-Agent'),
    })
    const lifetimeSeconds = accessTokenSeconds(session.profile)
    const clientId = session.profile.id ?? ''
    const profile = `ClientApplication/${clientId}`
    const accessToken = await tokens.issue({
      loginId,
      subject: clientId,
      clientId,
      profile,
      scope,
      lifetimeSeconds,
    })
    ctx.state.principal = session.principal
    ctx.body = {
      token_type: 'Bearer',
      expires_in: lifetimeSeconds,
      scope,
      access_token: accessToken,
      project: reference(`Project/${session.project.id}`, session.principal.project.name),
      profile: reference(profile, session.principal.profileDisplay),
      need_patient_banner: false,
    }
  })

  router.post('/oauth2/revoke', async (ctx) => {
    const form = await readForm(ctx)
    const session = await authenticateClient(ctx, form, web)
    const claims = await tokens.verify(required(form, 'token'))
    if (typeof claims === 'object' && claims.clientId === session.profile.id) {
      await revokeLogin(services, claims.loginId)
    }
    ctx.body = null
    ctx.status = 200
  })

  router.post('/oauth2/introspect', async (ctx) => {
    const form = await readForm(ctx)
    const session = await authenticateClient(ctx, form, web)
    const claims = await tokens.verify(required(form, 'token'))
    const subject =
      typeof claims === 'object' ? await services.principals.forLogin(claims.loginId) : undefined
    const isOurs = subject !== undefined && subject.project.id === session.project.id
    if (typeof claims !== 'object' || !isOurs) {
      ctx.body = { active: false }
      return
    }
    ctx.body = {
      active: true,
      iat: claims.issuedAt,
      exp: claims.expiresAt,
      iss: services.config.baseUrl,
      aud: services.config.baseUrl,
      sub: claims.subject,
      username: claims.subject,
      client_id: claims.clientId,
      scope: claims.scope,
      token_type: 'Bearer',
      fhirUser: `${services.config.baseUrl}fhir/R4/${claims.profile}`,
    }
  })

  router.all('/oauth2/userinfo', authenticate, (ctx) => {
    const { session } = caller(ctx)
    const scopes = new Set((ctx.state.claims?.scope ?? '').split(' '))
    ctx.body = { sub: session.profile.id, ...(scopes.has('profile') ? profileOf(session) : {}) }
  })
  return router
}

/** Errors: the rows of auth.md's table about clients, in its order. */
async function authenticateClient(
  ctx: Context,
  form: URLSearchParams,
  { services }: Web,
): Promise<Session> {
  const header = /^Basic +([^ ]+) *$/i.exec(ctx.get('Authorization'))?.[1]
  const basic = header === undefined ? undefined : decodedBasic(header)
  const id = form.get('client_id') || basic?.id
  const secret = form.get('client_secret') || basic?.secret
  if (!id) throw new OAuthError('invalid_request', 'Missing client_id')
  if (!secret) throw new OAuthError('invalid_request', 'Missing client_secret')
  if (basic !== undefined && (basic.id !== id || basic.secret !== secret)) {
    throw new OAuthError('invalid_request', 'Client credentials differ')
  }
  const session = await services.principals.forProfile(`ClientApplication/${id}`)
  if (session === undefined || !isActiveClient(session.profile)) {
    throw invalidClient('Invalid client', header !== undefined, services.config.baseUrl)
  }
  if (!secretMatches(session.profile, secret)) {
    throw invalidClient('Invalid secret', header !== undefined, services.config.baseUrl)
  }
  return session
}

function invalidClient(description: string, viaBasic: boolean, baseUrl: string): OAuthError {
  const headers: Record<string, string> = viaBasic
    ? { 'WWW-Authenticate': `Basic realm="${baseUrl}"` }
    : {}
  return new OAuthError('invalid_client', description, 401, headers)
}

/** RFC 6749 §2.3.1: both halves are form-encoded inside the header. */
function decodedBasic(header: string): { id: string; secret: string } {
  const basic = parseBasic(header)
  if (basic === undefined) throw new OAuthError('invalid_request', 'Invalid Authorization header')
  return { id: formDecoded(basic.id), secret: formDecoded(basic.secret) }
}

function formDecoded(text: string): string {
  try {
    return decodeURIComponent(text.replace(/\+/g, ' '))
  } catch {
    throw new OAuthError('invalid_request', 'Invalid Authorization header')
  }
}

/** RFC 6749 §3.2: parameters must not be sent more than once. */
async function readForm(ctx: Context): Promise<URLSearchParams> {
  if (!ctx.is('application/x-www-form-urlencoded')) {
    throw new OAuthError('invalid_request', 'Body must be application/x-www-form-urlencoded')
  }
  const body = await readBody(ctx, FORM_BYTES)
  const form = new URLSearchParams(body?.toString('utf8'))
  const names = [...form.keys()]
  if (new Set(names).size < names.length) {
    throw new OAuthError('invalid_request', 'A parameter is repeated')
  }
  return form
}

function required(form: URLSearchParams, name: string): string {
  const value = form.get(name)
  if (!value) throw new OAuthError('invalid_request', `Missing ${name}`)
  return value
}

function reference(to: string, display: string | undefined) {
  return display === undefined ? { reference: to } : { reference: to, display }
}

function profileOf({ principal, profile }: Session) {
  return {
    profile: principal.profile,
    ...(principal.profileDisplay === undefined ? {} : { name: principal.profileDisplay }),
    ...(profile.meta?.lastUpdated === undefined ? {} : { updated_at: profile.meta.lastUpdated }),
  }
}
