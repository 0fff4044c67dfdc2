/** `/oauth2/**`: RFC 6749, RFC 7009, RFC 7662, OpenID Connect. */

import {
  CLI_CLIENT,
  isPublicClient,
  isRegisteredRedirect,
  safeRedirectUris,
} from '../../shared/access/credentials/clients.ts'
import { confirmation } from '../../shared/access/credentials/tokens.ts'
import type { Principal } from '../../shared/access/principal.ts'
import {
  isObject,
  nonEmptyText,
  type Resource,
  referenceIn,
  targetIn,
} from '../../shared/fhir/resource.ts'
import { findLoginByRefreshToken } from '../../shared/identity/refresh-tokens.ts'
import { isInScope, scopedTo, serviceUrl } from '../../shared/request/project-scope.ts'
import { absoluteUrl } from '../../shared/request/reply.ts'
import type { FieldTexts } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { readJson } from '../http/body.ts'
import { type Context, caller, type Middleware, type Web } from '../http/context.ts'
import { sendOk } from '../http/send.ts'
import { findClient } from '../identity/auth/apps.ts'
import { clearCookie, isNavigation, sessionCookie, sessionCookies } from '../identity/browser.ts'
import { readForm, requiredParameter } from '../identity/clients/answer.ts'
import { type ClientKeys, createClientKeys } from '../identity/clients/assertions.ts'
import {
  hasClientProof,
  invalidClient,
  readClientCredentials,
  requireClientSession,
  verifyClientProof,
} from '../identity/clients/clients.ts'
import { loginBySecret, loginClientId, readLogin, revokeLogin } from '../identity/login-store.ts'
import { authorize } from '../identity/oauth/authorize.ts'
import { grantToken } from '../identity/oauth/token.ts'
import { audit } from '../identity/sign-in-audit.ts'
import { OAuthError } from '../middleware/failures.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'
import { userInfo } from './user-info.ts'

const FORM_TOKEN: FieldTexts = {
  token: 'text!: The token',
  token_type_hint: 'text: access_token or refresh_token',
}
const TEXTS: RouteTexts = {
  'POST /token': {
    summary: 'Get tokens',
    description:
      'RFC 6749. A client without a form of its secret proves itself by `client_assertion` (RFC 7523) or by its certificate (RFC 8705). Tokens issued over mutual TLS are bound to the certificate.',
    body: {
      grant_type: 'text!: client_credentials, authorization_code, refresh_token or token-exchange',
      client_id: 'text: The client, or by Basic authentication',
      client_secret: 'text: Its secret',
      client_assertion_type: 'text: urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
      client_assertion: 'text: A JWT signed by a key of the client',
      code: 'text: For authorization_code',
      code_verifier: 'text: For PKCE',
      redirect_uri: 'text: As in the authorization request',
      refresh_token: 'text: For refresh_token; usable once',
      scope: 'text: Requested scope',
      resource: 'text: An address of this service (RFC 8707)',
      subject_token: 'text: For an exchange',
      subject_token_type: 'text: urn:ietf:params:oauth:token-type:access_token',
    },
    example: { grant_type: 'client_credentials', client_id: 'an id', client_secret: 'a secret' },
    answer: 'Token',
  },
  'GET /authorize': {
    summary: 'Begin a sign-in',
    description: 'Redirects to the page of the sign-in, or back to the app.',
    query: {
      response_type: 'text!: code',
      client_id: 'text!: The app',
      redirect_uri: 'text!: A registered address',
      scope: 'text!: openid, offline and SMART scopes',
      state: 'text: Comes back',
      nonce: 'text: Returned in the ID token',
      code_challenge: 'text: PKCE',
      code_challenge_method: 'text: S256',
      aud: 'text: The FHIR base of this service',
      resource: 'text: An address of this service (RFC 8707)',
      launch: 'text: Of an EHR launch',
      prompt: 'text: none, login',
    },
    status: 302,
  },
  'POST /authorize': {
    summary: 'Begin a sign-in by POST',
    description: 'Same as GET.',
    body: {
      response_type: 'text!: code',
      client_id: 'text!: The app',
      redirect_uri: 'text!: A registered address',
      scope: 'text!: Requested scope',
    },
    status: 302,
  },
  'GET /userinfo': { summary: 'Read the claims about the person', answer: 'object' },
  'POST /userinfo': {
    summary: 'Read the claims about the person, as GET does',
    answer: 'object',
  },
  'POST /introspect': {
    summary: 'Introspect a token',
    description: 'RFC 7662.',
    body: FORM_TOKEN,
    answer: {
      active: 'flag!: False for an invalid token',
      scope: 'text: Granted scope',
      client_id: 'text: Its client',
      exp: 'whole: When it ends',
      cnf: 'object: Thumbprint of the client certificate that it needs (RFC 8705)',
    },
  },
  'POST /revoke': { summary: 'Revoke a token', description: 'RFC 7009.', body: FORM_TOKEN },
  'GET /logout': {
    summary: 'Sign out a browser',
    query: {
      id_token_hint: 'text: The ID token',
      post_logout_redirect_uri: 'text: A registered address',
      state: 'text: Comes back',
    },
    status: 302,
  },
  'POST /logout': { summary: 'End the session of the token', answer: 'OperationOutcome' },
  'POST /register': {
    summary: 'Register a public client',
    description: 'RFC 7591, for tools with their own redirect address.',
    body: { redirect_uris: 'list!: Redirect addresses', client_name: 'text: Display name' },
    answer: 'object',
    status: 201,
  },
}

const REGISTRATION_BYTES = 65_536

export function oauthRoutes({ services }: Web, authenticate: Middleware): RouteFamily {
  const routes = createRoutes({ prefix: '/oauth2', texts: TEXTS })
  const keys = createClientKeys(services)
  const scoped = ({ state }: Context) => scopedTo(services, state.projectScope)

  routes.get('/authorize', 'public', async (ctx) => {
    await authorize(scoped(ctx), ctx, new URLSearchParams(ctx.querystring))
  })
  routes.post('/authorize', 'public', async (ctx) => {
    await authorize(scoped(ctx), ctx, await readForm(ctx))
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
    ctx.redirect(await logOutBrowser(scoped(ctx), ctx))
  })
  routes.post('/register', 'public', async (ctx) => {
    const body = await readJson(ctx, REGISTRATION_BYTES)
    const uris = isObject(body) && Array.isArray(body.redirect_uris) ? body.redirect_uris : []
    const [first] = uris
    const isOurs =
      services.config.cliClientEnabled &&
      isRegisteredRedirect(CLI_CLIENT, nonEmptyText(first) ?? '')
    if (!isOurs) throw new OAuthError('invalid_redirect_uri', 'Unknown redirect URI')
    ctx.status = 201
    ctx.body = {
      client_id: CLI_CLIENT.id,
      client_id_issued_at: Math.floor(Date.now() / 1000),
      redirect_uris: [first],
    }
  })
  routes.post('/token', 'public', async (ctx) => {
    ctx.body = await grantToken({ services: scoped(ctx), keys, ctx, form: await readForm(ctx) })
  })
  routes.post('/revoke', 'secret', async (ctx) => {
    await revoke(scoped(ctx), keys, ctx, await readForm(ctx))
    ctx.body = null
    ctx.status = 200
    ctx.set('Content-Length', '0')
  })
  routes.post('/introspect', 'secret', async (ctx) => {
    const form = ctx.is('application/json') ? await formOfJson(ctx) : await readForm(ctx)
    ctx.body = await introspect(scoped(ctx), keys, ctx, { form, authenticate })
  })
  routes.on(['GET', 'POST'], '/userinfo', 'signed-in', async (ctx) => {
    ctx.body = await userInfo(scoped(ctx), ctx)
  })
  return routes
}

/** Medplum's clients send JSON. Members other than strings are ignored. */
async function formOfJson(ctx: Context): Promise<URLSearchParams> {
  const body = await readJson(ctx, REGISTRATION_BYTES)
  const members = isObject(body) ? Object.entries(body) : []
  const form = new URLSearchParams()
  for (const [name, value] of members) if (typeof value === 'string') form.set(name, value)
  return form
}

// End of a session. https://openid.net/specs/openid-connect-rpinitiated-1_0.html

async function logOut(services: Services, ctx: Context): Promise<void> {
  const { principal } = caller(ctx)
  const { loginId } = principal
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login !== undefined) await end(services, ctx, login)
}

/** Ends the session of a browser and returns its next address. */
async function logOutBrowser(services: Services, ctx: Context): Promise<string> {
  const hint = text(ctx.query.id_token_hint)
  // OpenID Connect RP-Initiated Logout §4: an expired hint remains valid.
  const hinted = hint === undefined ? undefined : await services.tokens.readIdToken(hint)
  const logins = isNavigation(ctx, services.config) ? await loginsOfCookies(services, ctx) : []
  const found = hinted === undefined ? undefined : await readLogin(services, hinted.loginId)
  const byHint = found !== undefined && isLoginInScope(services, found) ? found : undefined
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
      const login = await loginBySecret(services, 'cookie', cookie)
      return login !== undefined && isLoginInScope(services, login) ? [login] : []
    }),
  )
  return found.flat()
}

function isLoginInScope({ projectScope }: Services, login: Resource): boolean {
  return isInScope(projectScope, { id: targetIn(login.project)?.id ?? '' })
}

async function end(services: Services, ctx: Context, login: Resource): Promise<void> {
  await revokeLogin(services, login)
  const clientId = loginClientId(login)
  if (clientId !== undefined) clearCookie(ctx, services.config, sessionCookie(clientId))
  audit(services, ctx, {
    kind: 'logout',
    outcome: '0',
    what: 'Logout',
    who: referenceIn(login.user),
    projectId: targetIn(login.project)?.id,
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

/** Describes only tokens of the caller's Project. Errors: `invalid_client`, 401. */
async function introspect(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  { form, authenticate }: Introspection,
): Promise<Record<string, unknown>> {
  const asking = await askingPrincipal(services, keys, ctx, { form, authenticate })
  const { tokens, principals } = services
  const claims = await tokens.verify(requiredParameter(form, 'token'))
  // Tokens of web sockets serve only to bind a Subscription: no server of resources may take them.
  if (typeof claims !== 'object' || claims.subscriptionId !== undefined) return { active: false }
  const session = await principals.forLogin(claims.loginId)
  if (session === undefined) return { active: false }
  const isOurs =
    asking === undefined || asking.isSuperAdmin || asking.project.id === session.project.id
  if (!isOurs || !isInScope(services.projectScope, session.project)) return { active: false }
  const { patient } = session.principal
  const encounter = session.login?.encounter
  return {
    active: true,
    iat: claims.issuedAt,
    exp: claims.expiresAt,
    iss: claims.issuer,
    aud: claims.issuer,
    sub: claims.subject,
    username: claims.subject,
    client_id: claims.clientId,
    scope: claims.scope,
    token_type: 'Bearer',
    ...confirmation(claims),
    ...(patient === undefined ? {} : { patient }),
    ...(encounter === undefined ? {} : { encounter: targetIn(encounter)?.id }),
    fhirUser: absoluteUrl(services, claims.profile),
  }
}

/** Returns undefined if introspection is open to all. */
async function askingPrincipal(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  { form, authenticate }: Introspection,
): Promise<Principal | undefined> {
  const given = readClientCredentials(services, ctx, form)
  if (hasClientProof(given)) {
    return (await requireClientSession(services, keys, ctx, given)).principal
  }
  if (/^bearer /i.test(ctx.get('Authorization'))) {
    await authenticate(ctx, async () => {})
    return caller(ctx).principal
  }
  if (services.config.introspectionOpen) return undefined
  if (given.id !== undefined && given.certificate !== undefined) {
    return (await requireClientSession(services, keys, ctx, given)).principal
  }
  throw new OAuthError('invalid_client', 'Missing client credentials', 401, {
    'WWW-Authenticate': `Basic realm="${serviceUrl(services)}"`,
  })
}

/** Ignores unknown tokens and those of other clients. Errors: `invalid_client`. */
async function revoke(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<void> {
  const token = requiredParameter(form, 'token')
  const given = readClientCredentials(services, ctx, form)
  if (given.id === undefined) throw new OAuthError('invalid_request', 'Missing client_id')
  const client = await findClient(services, given.id)
  if (client === undefined) throw invalidClient(services, given, 'Invalid client')
  if (hasClientProof(given, client) || !isPublicClient(client))
    await verifyClientProof(services, keys, client, given)
  const loginId = await loginOfToken(services, token)
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login === undefined || loginClientId(login) !== client.id) return
  if (!isLoginInScope(services, login)) return
  await revokeLogin(services, login)
  const who = `ClientApplication/${client.id}`
  const projectId = client.meta?.project
  audit(services, ctx, { kind: 'logout', outcome: '0', what: 'Token revoked', who, projectId })
}

async function loginOfToken(services: Services, token: string): Promise<string | undefined> {
  const claims = await services.tokens.verify(token)
  if (typeof claims === 'object') return claims.loginId
  return await findLoginByRefreshToken(services.database, token)
}
