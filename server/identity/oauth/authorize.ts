/** `/oauth2/authorize`: RFC 6749 §4.1, OpenID Connect Core §3.1.2, SMART App Launch, RFC 9207. */

import { isPublicClient, isRegisteredRedirect } from '../../../shared/access/credentials/clients.ts'
import { grantedScope, isWithin } from '../../../shared/access/scopes.ts'
import type { Config } from '../../../shared/core/config/config.ts'
import { HttpError } from '../../../shared/core/errors.ts'
import { type Resource, referenceIn } from '../../../shared/fhir/resource.ts'
import { readUser } from '../../../shared/projects/users.ts'
import { serviceUrl } from '../../../shared/request/project-scope.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import {
  codeChallengeError,
  findClient,
  type Launch,
  launchElements,
  projectOfClient,
  readLaunch,
} from '../auth/apps.ts'
import { membershipElements, membershipsFor, withCode } from '../auth/login-steps.ts'
import { neededFactor } from '../auth/mfa.ts'
import { bindLogin, isNavigation, newBinding, readCookie, sessionCookie } from '../browser.ts'
import { loginState } from '../login-states.ts'
import {
  createLogin,
  loginBySecret,
  loginClientId,
  loginExpiry,
  loginUserId,
} from '../login-store.ts'

const DEFAULT_MAX_AGE_SECONDS = 3600

/** An error that the redirect reports to the client. */
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

/** Answers 302, or 400 as text without a trusted redirect address. */
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
        iss: serviceUrl(services),
      }),
    )
  }
}

function refuse(ctx: Context, text: string): void {
  ctx.status = 400
  ctx.type = 'text/plain'
  ctx.body = text
}

/** Returns undefined when absent, empty or repeated: RFC 6749 §3.1. */
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
  if (!isOwnAddress(services.config, get('aud'))) throw invalid('Invalid audience')
  if (!isOwnAddress(services.config, get('resource'))) {
    throw new AuthorizeError('invalid_target', 'The resource is on another server')
  }
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

/** True without an address, and for any of this service: `aud` of SMART, `resource` of RFC 8707. */
export function isOwnAddress({ baseUrl }: Config, address: string | undefined): boolean {
  if (address === undefined) return true
  return URL.canParse(address) && new URL(address).origin === new URL(baseUrl).origin
}

function invalid(description: string): AuthorizeError {
  return new AuthorizeError('invalid_request', description)
}

async function answer(services: Services, ctx: Context, asked: AuthorizeRequest): Promise<string> {
  const { parameters, redirectUri } = asked
  const prompts = (single(parameters, 'prompt') ?? '').split(' ')
  const wantsNoPage = prompts.includes('none')
  const found = prompts.includes('login') ? undefined : await knownLogin(services, ctx, asked)
  const known = found && (await inProject(services, ctx, asked, found))
  if (known === undefined && wantsNoPage) {
    throw new AuthorizeError('login_required', 'There is no session')
  }
  if (known === undefined || !(wantsNoPage || mayRedeem(asked.client, known))) {
    return page(services, parameters)
  }
  if (wantsNoPage && !isWithin(asked.scope, String(known.scope ?? ''))) {
    throw new AuthorizeError('consent_required', 'The scope exceeds the consent given')
  }
  const asksPatient = grantedScope(asked.scope).split(' ').includes('launch/patient')
  if (wantsNoPage && asksPatient && asked.launch === undefined && known.patient === undefined) {
    throw new AuthorizeError('interaction_required', 'A patient must be chosen')
  }
  if (wantsNoPage) await requireNoFactor(services, known)
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
  const { code } = await withCode(services, ctx, login)
  return withParameters(redirectUri, {
    code,
    state: single(parameters, 'state'),
    iss: serviceUrl(services),
  })
}

function page(
  { config, projectScope }: Services,
  parameters: URLSearchParams,
  loginId?: string,
): string {
  const query = new URLSearchParams(parameters)
  query.delete('login')
  query.delete('project_scope')
  if (projectScope !== undefined) {
    query.set('project_id', projectScope)
    query.set('project_scope', projectScope)
  }
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

/** Only the page asks for a second factor that the Project or the account requires. Errors: AuthorizeError. */
async function requireNoFactor(services: Services, login: Resource): Promise<void> {
  const user = await readUser(services.repository, loginUserId(login) ?? '')
  if (user === undefined) throw new AuthorizeError('login_required', 'There is no session')
  if ((await neededFactor(services, login, user)) === 'none') return
  throw new AuthorizeError('interaction_required', 'A second factor is required')
}

/**
 * False for a confidential client whose session began without its secret: it could not redeem the resulting code, so
 * the person must enter the password.
 */
function mayRedeem(client: Resource, known: Resource): boolean {
  return isPublicClient(client) || known.clientProven === true
}

/**
 * Returns the recent session of this browser with this client, found by its cookie alone. A hint only selects among
 * sessions; an invalid one matches none.
 */
async function knownLogin(
  services: Services,
  ctx: Context,
  { client, parameters }: AuthorizeRequest,
): Promise<Resource | undefined> {
  if (!isNavigation(ctx, services.config)) return undefined
  const cookie = readCookie(ctx, services.config, sessionCookie(client.id ?? '')) ?? ''
  const login = await loginBySecret(services, 'cookie', cookie)
  if (login === undefined || loginClientId(login) !== client.id) return undefined
  const hint = single(parameters, 'id_token_hint')
  if (hint !== undefined && !(await isHintAt(services, hint, login))) return undefined
  const asked = Number(single(parameters, 'max_age') ?? DEFAULT_MAX_AGE_SECONDS)
  const maxAge = Number.isFinite(asked) && asked >= 0 ? asked : DEFAULT_MAX_AGE_SECONDS
  const isYoung = Date.parse(String(login.authTime)) + maxAge * 1000 > Date.now()
  if (!isYoung || loginState(login) !== 'granted') return undefined
  const session = await services.principals.forLogin(login.id ?? '')
  return session === undefined ? undefined : login
}

/**
 * Returns the session with a membership in the requested Project. A session counts in all Projects of its person,
 * unless a Project's own provider vouched for it. Returns undefined without a membership, or with several: the page
 * asks for the password. Errors: AuthorizeError.
 */
async function inProject(
  services: Services,
  ctx: Context,
  { client, parameters }: AuthorizeRequest,
  login: Resource,
): Promise<Resource | undefined> {
  const wanted = single(parameters, 'project_id')?.toLowerCase()
  if (wanted === undefined || referenceIn(login.project) === `Project/${wanted}`) return login
  if (projectOfClient(client) !== undefined) throw invalid('Invalid project_id')
  const user = await readUser(services.repository, loginUserId(login) ?? '')
  if (user === undefined || login.vouchedBy !== undefined) return undefined
  const [membership, ...others] = await membershipsFor(services, user, wanted)
  if (membership === undefined || others.length > 0) return undefined
  const { project: _, membership: __, profileType: ___, patient: ____, ...person } = login
  const chosen = await membershipElements(services, ctx, person, membership).catch(
    (error: unknown) => {
      throw error instanceof HttpError ? new AuthorizeError('access_denied', error.message) : error
    },
  )
  // A code mailed for one Project proves nothing in another; an app does.
  const mfaVerified = user.mfaEnrolled === true ? person.mfaVerified : undefined
  return { ...person, ...chosen, mfaVerified }
}

async function isHintAt({ tokens }: Services, hint: string, login: Resource): Promise<boolean> {
  const claims = await tokens.readIdToken(hint)
  if (claims === undefined || claims.isExpired) return false
  return claims.subject === loginUserId(login) && claims.clientId === loginClientId(login)
}

interface Renewal {
  readonly request: AuthorizeRequest
  readonly known: Resource
  readonly browser: string
  /** True when the patient need not be chosen again. */
  readonly keepsPatient: boolean
}

/**
 * Creates a Login of the same person and membership for this request; bound to the browser, and marked as not proven
 * by a password.
 */
async function renewedLogin(
  services: Services,
  ctx: Context,
  { request: { redirectUri, scope, launch, parameters }, known, browser, keepsPatient }: Renewal,
): Promise<Resource> {
  const { user, authMethod, authTime, client, project, membership, profileType } = known
  const { mfaVerified, vouchedBy } = known
  return await createLogin(services, ctx, {
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
    redirectUri,
    scope: grantedScope(scope),
    expires: loginExpiry(loginClientId(known)),
    patient: profileType === 'Patient' || keepsPatient ? known.patient : undefined,
    ...launchElements(launch),
    nonce: single(parameters, 'nonce'),
    codeChallenge: single(parameters, 'code_challenge'),
    codeChallengeMethod: single(parameters, 'code_challenge_method'),
  })
}
