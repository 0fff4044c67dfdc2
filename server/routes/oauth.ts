/** `/oauth2/**`: RFC 6749, RFC 7009, RFC 7662, OpenID Connect. */
import {
  CLI_CLIENT,
  isRegisteredRedirect,
  ownsCredentials,
  safeRedirectUris,
} from '../../shared/access/credentials/clients.ts'
import type { Principal } from '../../shared/access/principal.ts'
import { allOk } from '../../shared/core/errors.ts'
import { isObject, parseReference, type Resource, referenceIn } from '../../shared/fhir/resource.ts'
import { findLoginByRefreshToken } from '../../shared/identity/refresh-tokens.ts'
import { userIdOfSession } from '../../shared/projects/signed-in-user.ts'
import { readUser } from '../../shared/projects/users.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import type { Services } from '../../shared/request/services.ts'
import { readJson } from '../http/body.ts'
import { type Context, caller, type Middleware, type Web } from '../http/context.ts'
import { findClient } from '../identity/auth/apps.ts'
import { clearCookie, isNavigation, sessionCookie, sessionCookies } from '../identity/browser.ts'
import { readForm, requiredParameter } from '../identity/clients/answer.ts'
import {
  type ClientKeys,
  createClientKeys,
  hasClientProof,
  invalidClient,
  readClientCredentials,
  requireClientSession,
  verifyClientProof,
} from '../identity/clients/clients.ts'
import {
  audit,
  loginClientId,
  loginIdFromSecret,
  matchesDigest,
  readLogin,
  revokeLogin,
} from '../identity/login-store.ts'
import { authorize } from '../identity/oauth/authorize.ts'
import { grantToken } from '../identity/oauth/token.ts'
import { OAuthError } from '../middleware/failures.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const REGISTRATION_BYTES = 65_536

export function oauthRoutes({ services }: Web, authenticate: Middleware): RouteFamily {
  const routes = createRoutes({ prefix: '/oauth2' })
  const keys = createClientKeys(services)

  routes.get('/authorize', 'public', async (ctx) => {
    await authorize(services, ctx, new URLSearchParams(ctx.querystring))
  })
  routes.post('/authorize', 'public', async (ctx) => {
    await authorize(services, ctx, await readForm(ctx))
  })
  routes.post('/logout', 'signed-in', async (ctx) => {
    await logOut(services, ctx)
    sendOk(ctx)
  })
  routes.get('/logout', 'public', async (ctx) => {
    if (/^bearer /i.test(ctx.get('Authorization'))) {
      await authenticate(ctx, () => logOut(services, ctx))
      sendOk(ctx)
      return
    }
    ctx.redirect(await logOutBrowser(services, ctx))
  })
  routes.post('/register', 'public', async (ctx) => {
    const body = await readJson(ctx, REGISTRATION_BYTES)
    const uris = isObject(body) && Array.isArray(body.redirect_uris) ? body.redirect_uris : []
    const [first] = uris
    const isOurs =
      services.config.cliClientEnabled && isRegisteredRedirect(CLI_CLIENT, String(first))
    if (!isOurs) throw new OAuthError('invalid_redirect_uri', 'Unknown redirect URI')
    ctx.status = 201
    ctx.body = {
      client_id: CLI_CLIENT.id,
      client_id_issued_at: Math.floor(Date.now() / 1000),
      redirect_uris: [first],
    }
  })
  routes.post('/token', 'public', async (ctx) => {
    ctx.body = await grantToken(services, keys, ctx, await readForm(ctx))
  })
  routes.post('/revoke', 'secret', async (ctx) => {
    await revoke(services, keys, ctx, await readForm(ctx))
    ctx.body = null
    ctx.status = 200
    ctx.set('Content-Length', '0')
  })
  routes.post('/introspect', 'secret', async (ctx) => {
    const form = ctx.is('application/json') ? await formOfJson(ctx) : await readForm(ctx)
    ctx.body = await introspect(services, keys, ctx, { form, authenticate })
  })
  routes.on(['GET', 'POST'], '/userinfo', 'signed-in', async (ctx) => {
    ctx.body = await userInfo(services, ctx)
  })
  return routes
}

/** The peer's clients ask in JSON. Members that are no texts are passed over. */
async function formOfJson(ctx: Context): Promise<URLSearchParams> {
  const body = await readJson(ctx, REGISTRATION_BYTES)
  const members = isObject(body) ? Object.entries(body) : []
  const form = new URLSearchParams()
  for (const [name, value] of members) if (typeof value === 'string') form.set(name, value)
  return form
}

function sendOk(ctx: Context): void {
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify(allOk)
}

// https://openid.net/specs/openid-connect-core-1_0.html#UserInfo; unknown values are left out.

async function userInfo(services: Services, ctx: Context): Promise<Record<string, unknown>> {
  const { session, principal } = caller(ctx)
  const { profile } = session
  const words = new Set((ctx.state.claims?.scope ?? '').split(' '))
  const phone = findTelecom(profile, 'phone')
  return known({
    sub: profile.id,
    ...(words.has('profile')
      ? { profile: principal.profile, name: principal.profileDisplay, ...profileClaims(profile) }
      : {}),
    ...(words.has('email') ? await emailClaims(services, ctx) : {}),
    ...(words.has('phone') && phone !== undefined
      ? { phone_number: phone, phone_number_verified: false }
      : {}),
    ...(words.has('address') ? { address: addressClaim(profile) } : {}),
  })
}

function known(claims: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(claims).filter(([, value]) => value !== undefined && value !== ''),
  )
}

function profileClaims(profile: Resource): Record<string, unknown> {
  const name = firstObject(profile.name)
  const given = Array.isArray(name?.given) ? name.given : []
  const communication = firstObject(profile.communication)
  const language = firstObject(
    isObject(communication?.language) ? communication.language.coding : communication?.coding,
  )
  return {
    given_name: given[0],
    family_name: name?.family,
    middle_name: given.length > 1 ? given.slice(1).join(' ') : undefined,
    birthdate: profile.birthDate,
    locale: language?.code,
    updated_at: seconds(profile.meta?.lastUpdated),
  }
}

/** A number: OpenID Connect Core §5.1. */
function seconds(instant: string | undefined): number | undefined {
  return instant === undefined ? undefined : Math.floor(Date.parse(instant) / 1000)
}

async function emailClaims(
  { repository }: Services,
  ctx: Context,
): Promise<Record<string, unknown>> {
  const { session } = caller(ctx)
  const userId = userIdOfSession(session)
  const user = userId === undefined ? undefined : await readUser(repository, userId)
  if (typeof user?.email === 'string') {
    return { email: user.email, email_verified: user.emailVerified === true }
  }
  const email = findTelecom(session.profile, 'email')
  return email === undefined ? {} : { email, email_verified: false }
}

function findTelecom(profile: Resource, system: string): unknown {
  const list = Array.isArray(profile.telecom) ? profile.telecom.filter(isObject) : []
  return list.find((item) => item.system === system && item.value !== undefined)?.value
}

function addressClaim(profile: Resource): { formatted: string } | undefined {
  const address = firstObject(profile.address)
  if (address === undefined) return undefined
  const { text, line, city, state, postalCode, country } = address
  if (typeof text === 'string') return { formatted: text }
  const lines = Array.isArray(line) ? line : []
  const town = [city, state, postalCode].filter((part) => typeof part === 'string').join(', ')
  const all = [...lines, town, country].filter((part) => typeof part === 'string' && part !== '')
  return all.length === 0 ? undefined : { formatted: all.join('\n') }
}

function firstObject(value: unknown): Record<string, unknown> | undefined {
  const first: unknown = Array.isArray(value) ? value[0] : undefined
  return isObject(first) ? first : undefined
}

// The end of a session. https://openid.net/specs/openid-connect-rpinitiated-1_0.html

/** Ends the caller's own Login. */
async function logOut(services: Services, ctx: Context): Promise<void> {
  const { principal } = caller(ctx)
  const { loginId } = principal
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login !== undefined) await end(services, ctx, login)
}

/** A browser that follows a link: answers where it goes next. */
async function logOutBrowser(services: Services, ctx: Context): Promise<string> {
  const hint = text(ctx.query.id_token_hint)
  // OpenID Connect RP-Initiated Logout §4: an expired hint is a hint all the same.
  const hinted = hint === undefined ? undefined : await services.tokens.readIdToken(hint)
  const logins = isNavigation(ctx, services.config) ? await loginsOfCookies(services, ctx) : []
  const byHint = hinted === undefined ? undefined : await readLogin(services, hinted.loginId)
  for (const login of byHint === undefined ? logins : [byHint]) await end(services, ctx, login)
  const [known] = byHint === undefined ? logins : [byHint]
  const clientId = text(ctx.query.client_id) ?? (known && loginClientId(known))
  const client = clientId === undefined ? undefined : await findClient(services, clientId)
  return nextAddress(
    services,
    client,
    text(ctx.query.post_logout_redirect_uri),
    text(ctx.query.state),
  )
}

function nextAddress(
  { config }: Services,
  client: Resource | undefined,
  wanted: string | undefined,
  state: string | undefined,
): string {
  if (wanted === undefined || client === undefined || !URL.canParse(wanted)) {
    return `${config.appUrl}signin`
  }
  const url = new URL(wanted)
  const isHttp = url.protocol === 'https:' || url.protocol === 'http:'
  const origins = safeRedirectUris(client).filter((uri) => URL.canParse(uri))
  const isKnown = origins.some((uri) => new URL(uri).origin === url.origin)
  if (!isHttp || !isKnown) return `${config.appUrl}signin`
  if (state !== undefined) url.searchParams.set('state', state)
  return url.href
}

async function loginsOfCookies(services: Services, ctx: Context): Promise<Resource[]> {
  const found = await Promise.all(
    sessionCookies(ctx, services.config).map(async (cookie) => {
      const id = loginIdFromSecret(cookie)
      const login = id === undefined ? undefined : await readLogin(services, id)
      return login !== undefined && matchesDigest(login.cookie, cookie) ? [login] : []
    }),
  )
  return found.flat()
}

async function end(services: Services, ctx: Context, login: Resource): Promise<void> {
  await revokeLogin(services, login.id ?? '')
  const clientId = loginClientId(login)
  if (clientId !== undefined) clearCookie(ctx, services.config, sessionCookie(clientId))
  audit(services, ctx, {
    kind: 'logout',
    outcome: '0',
    what: 'Logout',
    who: referenceIn(login.user),
    projectId: parseReference(referenceIn(login.project))?.id,
  })
}

function text(value: string | string[] | undefined): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined
}

// Introspection (RFC 7662) and revocation (RFC 7009) of tokens.

interface Introspection {
  readonly form: URLSearchParams
  readonly authenticate: Middleware
}

/** Only tokens of the caller's Project are described. Errors: `invalid_client`, 401. */
async function introspect(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  { form, authenticate }: Introspection,
): Promise<Record<string, unknown>> {
  const asking = await askingPrincipal(services, keys, ctx, { form, authenticate })
  const { tokens, principals, config } = services
  const claims = await tokens.verify(requiredParameter(form, 'token'))
  if (typeof claims !== 'object') return { active: false }
  const session = await principals.forLogin(claims.loginId)
  if (session === undefined) return { active: false }
  const isOurs =
    asking === undefined || asking.isSuperAdmin || asking.project.id === session.project.id
  if (!isOurs) return { active: false }
  const { patient } = session.principal
  const encounter = session.login?.encounter
  return {
    active: true,
    iat: claims.issuedAt,
    exp: claims.expiresAt,
    iss: config.baseUrl,
    aud: config.baseUrl,
    sub: claims.subject,
    username: claims.subject,
    client_id: claims.clientId,
    scope: claims.scope,
    token_type: 'Bearer',
    ...(patient === undefined ? {} : { patient }),
    ...(encounter === undefined ? {} : { encounter: referenceId(encounter) }),
    fhirUser: `${config.baseUrl}fhir/R4/${claims.profile}`,
  }
}

/** Undefined when everybody may ask. */
async function askingPrincipal(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  { form, authenticate }: Introspection,
): Promise<Principal | undefined> {
  const given = readClientCredentials(ctx, form)
  if (hasClientProof(given)) {
    return (await requireClientSession(services, keys, ctx, given)).principal
  }
  if (/^bearer /i.test(ctx.get('Authorization'))) {
    await authenticate(ctx, async () => {})
    return caller(ctx).principal
  }
  if (services.config.introspectionOpen) return undefined
  throw new OAuthError('invalid_client', 'Missing client credentials', 401, {
    'WWW-Authenticate': `Basic realm="${services.config.baseUrl}"`,
  })
}

/** Unknown tokens and those of other clients are no error. Errors: `invalid_client`. */
async function revoke(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<void> {
  const token = requiredParameter(form, 'token')
  const given = readClientCredentials(ctx, form)
  if (given.id === undefined) throw new OAuthError('invalid_request', 'Missing client_id')
  const client = await findClient(services, given.id)
  if (client === undefined) throw invalidClient(services, given, 'Invalid client')
  if (hasClientProof(given) || ownsCredentials(client))
    await verifyClientProof(services, keys, client, given)
  const loginId = await loginOfToken(services, token)
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (loginId === undefined || login === undefined || loginClientId(login) !== client.id) return
  await revokeLogin(services, loginId)
  const who = `ClientApplication/${client.id}`
  const projectId = client.meta?.project
  audit(services, ctx, { kind: 'logout', outcome: '0', what: 'Token revoked', who, projectId })
}

async function loginOfToken(services: Services, token: string): Promise<string | undefined> {
  const claims = await services.tokens.verify(token)
  if (typeof claims === 'object') return claims.loginId
  return await findLoginByRefreshToken(services.database, token)
}

function referenceId(value: unknown): string | undefined {
  const { reference = '' } = value as { reference?: string }
  return reference.split('/')[1]
}
