/** `/oauth2/authorize`: RFC 6749 §4.1, OpenID Connect Core §3.1.2, SMART App Launch, RFC 9207. */
import {
  isRegisteredRedirect,
  ownsCredentials,
} from '../../../shared/access/credentials/clients.ts'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { grantedScope, isWithin } from '../../../shared/access/scopes.ts'
import { HttpError } from '../../../shared/core/errors.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import type { Services } from '../../../shared/request/services.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Context } from '../../http/context.ts'
import {
  codeChallengeError,
  findClient,
  type Launch,
  projectOfClient,
  readLaunch,
} from '../auth/apps.ts'
import { issueCode } from '../auth/login-steps.ts'
import { bindLogin, isNavigation, newBinding, readCookie, sessionCookie } from '../browser.ts'
import {
  connection,
  loginClientId,
  loginExpiry,
  loginIdFromSecret,
  loginUserId,
  matchesDigest,
  readLogin,
} from '../login-store.ts'

const DEFAULT_MAX_AGE_SECONDS = 3600
const system = systemPrincipal(SYSTEM_PROJECT)

/** A failure that a redirect reports to the client. */
class AuthorizeError extends Error {
  readonly error: string

  constructor(error: string, description: string) {
    super(description)
    this.error = error
  }
}

interface AuthorizeRequest {
  readonly client: Resource
  readonly redirectUri: string
  readonly scope: string
  readonly launch: Launch | undefined
  readonly parameters: URLSearchParams
}

/** Answers 302, or 400 as text when there is no address that may be trusted with an answer. */
export async function authorize(
  services: Services,
  ctx: Context,
  parameters: URLSearchParams,
): Promise<void> {
  const client = await findClient(services, single(parameters, 'client_id') ?? '')
  if (client === undefined) return refuse(ctx, 'Client not found')
  const redirectUri = single(parameters, 'redirect_uri')
  if (redirectUri === undefined || !isRegisteredRedirect(client, redirectUri)) {
    return refuse(ctx, 'Invalid redirect URI')
  }
  try {
    const asked = await check(services, client, redirectUri, parameters)
    ctx.redirect(await answer(services, ctx, asked))
  } catch (error) {
    if (!(error instanceof AuthorizeError)) throw error
    ctx.redirect(
      withParameters(redirectUri, {
        error: error.error,
        error_description: error.message,
        state: single(parameters, 'state'),
        iss: services.config.baseUrl,
      }),
    )
  }
}

function refuse(ctx: Context, text: string): void {
  ctx.status = 400
  ctx.type = 'text/plain'
  ctx.body = text
}

/** Undefined when it is absent, empty or repeated: RFC 6749 §3.1. */
function single(parameters: URLSearchParams, name: string): string | undefined {
  const values = parameters.getAll(name)
  return values.length === 1 && values[0] !== '' ? values[0] : undefined
}

/** Errors: AuthorizeError. */
async function check(
  services: Services,
  client: Resource,
  redirectUri: string,
  parameters: URLSearchParams,
): Promise<AuthorizeRequest> {
  const names = [...parameters.keys()]
  if (new Set(names).size < names.length) throw invalid('A parameter is repeated')
  const get = (name: string) => single(parameters, name)
  if (parameters.has('request')) {
    throw new AuthorizeError('request_not_supported', 'Request objects are not supported')
  }
  if (get('response_type') !== 'code') {
    throw new AuthorizeError('unsupported_response_type', 'response_type must be code')
  }
  const defaultScope = Array.isArray(client.defaultScope) ? client.defaultScope.join(' ') : ''
  const scope = get('scope') ?? defaultScope
  if (scope === '') throw invalid('Missing scope')
  requireAudience(services, get('aud'))
  const problem = codeChallengeError(get('code_challenge'), get('code_challenge_method'))
  if (problem !== undefined) throw invalid(problem)
  const hasBareChallenge = get('code_challenge') !== undefined && !get('code_challenge_method')
  if (hasBareChallenge) throw invalid('Missing code challenge method')
  const launchId = get('launch')
  const launch =
    launchId === undefined
      ? undefined
      : await readLaunch(services, launchId, projectOfClient(client)).catch((error: unknown) => {
          throw error instanceof HttpError ? invalid('Invalid launch') : error
        })
  return { client, redirectUri, scope, launch, parameters }
}

function requireAudience({ config }: Services, aud: string | undefined): void {
  if (aud === undefined) return
  const isOurs = URL.canParse(aud) && new URL(aud).origin === new URL(config.baseUrl).origin
  if (!isOurs) throw invalid('Invalid audience')
}

function invalid(description: string): AuthorizeError {
  return new AuthorizeError('invalid_request', description)
}

/** The address the browser goes to. */
async function answer(services: Services, ctx: Context, asked: AuthorizeRequest): Promise<string> {
  const { parameters, redirectUri } = asked
  const prompts = (single(parameters, 'prompt') ?? '').split(' ')
  const wantsNoPage = prompts.includes('none')
  const known = prompts.includes('login') ? undefined : await knownLogin(services, ctx, asked)
  if (known === undefined && wantsNoPage) {
    throw new AuthorizeError('login_required', 'There is no session')
  }
  if (known === undefined || !(wantsNoPage || mayRedeem(asked.client, known))) {
    return page(services, parameters)
  }
  if (wantsNoPage && !isWithin(asked.scope, String(known.scope ?? ''))) {
    throw new AuthorizeError('consent_required', 'The scope is wider than what was consented to')
  }
  const asksPatient = grantedScope(asked.scope).split(' ').includes('launch/patient')
  if (wantsNoPage && asksPatient && asked.launch === undefined && known.patient === undefined) {
    throw new AuthorizeError('interaction_required', 'A patient has to be chosen')
  }
  const binding = newBinding()
  const login = await renewedLogin(services, ctx, {
    request: asked,
    known,
    keepsPatient: wantsNoPage && asksPatient,
    browser: binding.digest,
  })
  if (!wantsNoPage) {
    bindLogin(ctx, services.config, login.id ?? '', binding.secret)
    return page(services, parameters, login.id)
  }
  const { code } = await issueCode(services, ctx, login)
  return withParameters(redirectUri, {
    code,
    state: single(parameters, 'state'),
    iss: services.config.baseUrl,
  })
}

function page({ config }: Services, parameters: URLSearchParams, loginId?: string): string {
  const query = new URLSearchParams(parameters)
  query.delete('login')
  if (loginId !== undefined) query.set('login', loginId)
  return `${config.appUrl}oauth?${query}`
}

function withParameters(
  address: string,
  parameters: Readonly<Record<string, string | undefined>>,
): string {
  const url = new URL(address)
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined) url.searchParams.set(name, value)
  }
  return url.href
}

/**
 * False for a client that has a secret and did without it when the session began: it could not redeem what came of
 * the session, so the person is asked for the password.
 */
function mayRedeem(client: Resource, known: Resource): boolean {
  const isPublic = client.tokenEndpointAuthMethod === 'none' || !ownsCredentials(client)
  return isPublic || known.clientProven === true
}

/**
 * The session of this browser with this client, young enough, by its cookie alone. A hint only says whose session is
 * meant; one that cannot be believed stands for a person who is not there.
 */
async function knownLogin(
  services: Services,
  ctx: Context,
  { client, parameters }: AuthorizeRequest,
): Promise<Resource | undefined> {
  if (!isNavigation(ctx, services.config)) return undefined
  const login = await loginByCookie(services, ctx, client)
  if (login === undefined || loginClientId(login) !== client.id) return undefined
  const hint = single(parameters, 'id_token_hint')
  if (hint !== undefined && !(await isHintAt(services, hint, login))) return undefined
  const asked = Number(single(parameters, 'max_age') ?? DEFAULT_MAX_AGE_SECONDS)
  const maxAge = Number.isFinite(asked) && asked >= 0 ? asked : DEFAULT_MAX_AGE_SECONDS
  const isYoung = Date.parse(String(login.authTime)) + maxAge * 1000 > Date.now()
  if (!isYoung || login.granted !== true || login.revoked === true) return undefined
  const session = await services.principals.forLogin(login.id ?? '')
  return session === undefined ? undefined : login
}

async function isHintAt({ tokens }: Services, hint: string, login: Resource): Promise<boolean> {
  const claims = await tokens.readIdToken(hint)
  if (claims === undefined || claims.isExpired) return false
  return claims.subject === loginUserId(login) && claims.clientId === loginClientId(login)
}

/** The Login whose cookie for this client the browser sends. */
async function loginByCookie(
  services: Services,
  ctx: Context,
  client: Resource,
): Promise<Resource | undefined> {
  const cookie = readCookie(ctx, services.config, sessionCookie(client.id ?? '')) ?? ''
  const id = loginIdFromSecret(cookie)
  const login = id === undefined ? undefined : await readLogin(services, id)
  return login !== undefined && matchesDigest(login.cookie, cookie) ? login : undefined
}

interface Renewal {
  readonly request: AuthorizeRequest
  readonly known: Resource
  readonly browser: string
  /** Nobody is asked again which patient is meant. */
  readonly keepsPatient: boolean
}

/** The same person in the same place, with what this request asks for; bound, and marked as proven by no password. */
async function renewedLogin(
  { repository }: Services,
  ctx: Context,
  { request: { redirectUri, scope, launch, parameters }, known, browser, keepsPatient }: Renewal,
): Promise<Resource> {
  const { user, authMethod, authTime, client, project, membership, profileType, mfaVerified } =
    known
  const { vouchedBy } = known
  const given = (name: string, parameter: string) => {
    const value = single(parameters, parameter)
    return value === undefined ? {} : { [name]: value }
  }
  const patient = launch?.patient
  const own = profileType === 'Patient' || keepsPatient ? { patient: known.patient } : {}
  const login = Object.entries({
    resourceType: 'Login',
    user,
    authMethod,
    authTime,
    client,
    project,
    membership,
    profileType,
    mfaVerified,
    vouchedBy,
    bySession: true,
    browser,
    scope: grantedScope(scope),
    redirectUri,
    expires: loginExpiry(loginClientId(known)),
    ...own,
    ...(launch === undefined ? {} : { launch: { reference: `SmartAppLaunch/${launch.id}` } }),
    ...(patient === undefined ? {} : { patient: { reference: `Patient/${patient}` } }),
    ...(launch?.encounter === undefined
      ? {}
      : { encounter: { reference: `Encounter/${launch.encounter}` } }),
    ...given('nonce', 'nonce'),
    ...given('codeChallenge', 'code_challenge'),
    ...given('codeChallengeMethod', 'code_challenge_method'),
    ...connection(ctx.ip, ctx.get('User-Agent')),
  }).filter(([, value]) => value !== undefined)
  // Safe: `resourceType` is the first of them.
  return parseVersion(await repository.create(system, Object.fromEntries(login) as Resource))
}
