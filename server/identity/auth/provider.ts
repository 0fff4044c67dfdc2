/** External identity providers: verifies tokens and redeems codes. */

import { hash, randomBytes, randomUUID } from 'node:crypto'
import { decodeProtectedHeader } from 'jose'
import { system } from '../../../shared/access/project-context.ts'
import { attempt, badRequest, tooManyRequests } from '../../../shared/core/errors.ts'
import { isObject, type Resource, toObjects } from '../../../shared/fhir/resource.ts'
import { fetchOutbound } from '../../../shared/outbound/fetch-outside.ts'
import { proveByProvider } from '../../../shared/projects/ownership.ts'
import { createUser, findUserForSignIn } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { escapeValue } from '../../../shared/search/language/values.ts'
import { equals, find, readRegistry } from '../../../shared/store/lookups.ts'
import type { Context } from '../../http/context.ts'
import { type ClientKeys, verifyJwt } from '../clients/assertions.ts'
import { audit } from '../sign-in-audit.ts'
import { type App, findApp, signInRequest } from './apps.ts'
import type { SignInFields } from './fields.ts'
import { beginLogin, isTrustedForProject, type LoginStep, loginResult } from './login-steps.ts'
import { requireOpenRegistration } from './register.ts'

const MAX_BYTES = 262_144
const PATIENCE_MS = 10_000
/** Time for the sign-in at the provider. */
export const VERIFIER_SECONDS = 600

export interface Provider {
  readonly authorizeUrl: string
  readonly tokenUrl: string
  readonly userInfoUrl: string
  readonly clientId: string
  readonly clientSecret: string
  readonly tokenAuthMethod: string
  readonly usePkce: boolean
  readonly useSubject: boolean
}

/** The owner of a token, as the provider describes them. */
export interface Identity {
  readonly email: string | undefined
  /** The provider states that it has not verified the address. */
  readonly isUnverified: boolean
  readonly subject: string | undefined
}

/** Returns the `identityProvider` of a client or a domain; undefined if absent. */
export function parseIdentityProvider(resource: Resource | undefined): Provider | undefined {
  const value = resource?.identityProvider
  if (!isObject(value)) return undefined
  const text = (name: string) => (typeof value[name] === 'string' ? value[name] : '')
  return {
    authorizeUrl: text('authorizeUrl'),
    tokenUrl: text('tokenUrl'),
    userInfoUrl: text('userInfoUrl'),
    clientId: text('clientId'),
    clientSecret: text('clientSecret'),
    tokenAuthMethod: text('tokenAuthMethod') || 'client_secret_basic',
    usePkce: value.usePkce === true,
    useSubject: value.useSubject === true,
  }
}

export async function providerOfDomain(
  { repository }: Services,
  domain: string,
): Promise<Provider | undefined> {
  const condition = equals('domain', 'token', escapeValue(domain))
  const [found] = await find(repository, system, 'DomainConfiguration', {
    conditions: [condition],
    count: 1,
  })
  return parseIdentityProvider(found)
}

/**
 * Returns the provider's address for the browser, which returns to `/auth/external` with `state`. The PKCE verifier,
 * if required, stays here; `state` refers to it. Errors: 400 for an invalid address.
 */
export async function buildAuthorizeUrl(
  { config, redis }: Services,
  provider: Provider,
  state: Readonly<Record<string, unknown>>,
): Promise<string> {
  const isWeb = /^https?:/i.test(provider.authorizeUrl) && URL.canParse(provider.authorizeUrl)
  if (!isWeb) throw badRequest('The identity provider URL is invalid', 'email')
  const url = new URL(provider.authorizeUrl)
  url.searchParams.set('response_type', 'code')
  url.searchParams.set('client_id', provider.clientId)
  url.searchParams.set('redirect_uri', `${config.baseUrl}auth/external`)
  url.searchParams.set('scope', 'openid profile email')
  if (!provider.usePkce) {
    url.searchParams.set('state', JSON.stringify(state))
    return url.href
  }
  const verifier = randomBytes(32).toString('base64url')
  const pkce = randomUUID()
  await redis.set(verifierKey(pkce), verifier, 'EX', VERIFIER_SECONDS)
  url.searchParams.set('state', JSON.stringify({ ...state, pkce }))
  url.searchParams.set('code_challenge', hash('sha256', verifier, 'base64url'))
  url.searchParams.set('code_challenge_method', 'S256')
  return url.href
}

/** Returns the verifier once. Errors: 400. */
export async function takeVerifier({ redis }: Services, pkce: string): Promise<string> {
  const verifier = await redis.getdel(verifierKey(pkce))
  if (verifier === null) throw badRequest('Invalid state', 'state')
  return verifier
}

function verifierKey(pkce: string): string {
  return `botica:provider-verifier:${pkce}`
}

/** Errors: 400 for a token unknown to the provider, 429 when it rate-limits us. */
export async function fetchIdentity(
  services: Services,
  provider: Provider,
  accessToken: string,
): Promise<Identity> {
  const answer = await ask(services, provider.userInfoUrl, {
    headers: { authorization: `Bearer ${accessToken}`, accept: 'application/json' },
  })
  const { email, email_verified: isVerified, sub } = answer
  return {
    email: typeof email === 'string' && email !== '' ? email : undefined,
    isUnverified: isVerified === false || isVerified === 'false',
    subject: typeof sub === 'string' && sub !== '' ? sub : undefined,
  }
}

/** Exchanges a code of the provider for its access token. Errors: 400, 429. */
export async function redeemCode(
  services: Services,
  provider: Provider,
  code: string,
  verifier: string | undefined,
): Promise<string> {
  const { clientId, clientSecret, tokenAuthMethod } = provider
  const isPost = tokenAuthMethod === 'client_secret_post'
  const basic = Buffer.from(`${encodeURIComponent(clientId)}:${encodeURIComponent(clientSecret)}`)
  const form = new URLSearchParams({
    grant_type: 'authorization_code',
    redirect_uri: `${services.config.baseUrl}auth/external`,
    code,
    ...(verifier === undefined ? {} : { code_verifier: verifier }),
    ...(isPost ? { client_id: clientId, client_secret: clientSecret } : {}),
  })
  const answer = await ask(services, provider.tokenUrl, {
    form,
    headers: {
      accept: 'application/json',
      'content-type': 'application/x-www-form-urlencoded',
      ...(isPost ? {} : { authorization: `Basic ${basic.toString('base64')}` }),
    },
  })
  if (typeof answer.access_token !== 'string') throw badRequest('Failed to verify code')
  return answer.access_token
}

interface Question {
  readonly headers: Readonly<Record<string, string>>
  readonly form?: URLSearchParams
}

/** Hides the provider's reasons from the caller. */
async function ask(
  { config, log }: Services,
  url: string,
  { headers, form }: Question,
): Promise<Record<string, unknown>> {
  const outgoing = {
    url,
    method: form === undefined ? 'GET' : 'POST',
    headers,
    body: form?.toString(),
    redirect: 'error',
    maxBytes: MAX_BYTES,
    timeoutMs: PATIENCE_MS,
  }
  const signal = new AbortController().signal
  const answer = await fetchOutbound(outgoing, config.hookTargets, signal).catch((error: Error) => {
    log.warn({ reason: error.message }, 'An identity provider could not be asked')
    throw badRequest('Identity provider is not available')
  })
  if (answer.status === 429) throw tooManyRequests(60)
  if (answer.status !== 200) throw badRequest('Identity provider refused')
  const value = attempt<unknown>(() => JSON.parse(answer.body.toString('utf8')))
  if (isObject(value)) return value
  throw badRequest('Identity provider returned an invalid response')
}

// Sign-in by Google: an ID token of its button (https://developers.google.com/identity/gsi/web/guides/verify-google-id-token).

const ISSUERS = ['https://accounts.google.com', 'accounts.google.com']
const LONGEST = 16_384
interface Person {
  readonly email: string
  readonly firstName: string
  readonly lastName: string
}

/** Errors: 400. `createUser` registers unknown users if registration is open. */
export async function logInByGoogle(
  services: Services,
  ctx: Context,
  keys: ClientKeys,
  fields: SignInFields,
): Promise<LoginStep> {
  const googleClientId = fields.required('googleClientId', 'Google client')
  const credential = fields.required('googleCredential', 'Google credential', 1, LONGEST)
  const mayCreate = fields.flag('createUser') === true
  const request = signInRequest(fields)
  fields.check()
  const named = await findApp(services, ctx, request)
  const app = { ...named, projectId: await projectFor(services, named, googleClientId) }
  const project =
    app.projectId === undefined
      ? undefined
      : await readRegistry(services.repository, 'Project', app.projectId)
  if (!isOurs(services, project, googleClientId)) {
    throw badRequest('Invalid googleClientId', 'googleClientId')
  }
  const person = await verifyGoogleToken(services, keys, credential, googleClientId)
  if (person === undefined) throw refusal(services, ctx, app, 'Invalid googleCredential')
  const known = await findUserForSignIn(services.repository, person.email, app.projectId)
  const isNew = known === undefined && mayCreate
  if (isNew) requireOpenRegistration(services, project)
  const { projectId } = app
  const user = isNew
    ? await createUser(services.repository, system, { ...person, projectId, isProven: true })
    : known
  const isProjectProvider = googleClientId !== services.config.googleClientId
  const options = { isProjectProvider, ...(isNew ? { isRegistration: true as const } : {}) }
  const isProof = known !== undefined && !isTrustedForProject(known, projectId, options)
  if (isProof) await proveByProvider(services, known)
  const login =
    user &&
    (await beginLogin(services, ctx, { signIn: { app, request }, user, method: 'google', options }))
  if (login === undefined) throw refusal(services, ctx, app, 'User not found')
  return await loginResult(services, ctx, login)
}

/**
 * Returns the Project named by the request, otherwise the one whose site has the Google client; undefined if several
 * have it.
 */
async function projectFor(
  { config, repository }: Services,
  { projectId, isNewProject }: App,
  googleClientId: string,
): Promise<string | undefined> {
  const isNamed = projectId !== undefined || isNewProject
  if (isNamed || googleClientId === config.googleClientId) return projectId
  const condition = equals('google-client-id', 'token', escapeValue(googleClientId))
  const [only, another] = await find(repository, system, 'Project', {
    conditions: [condition],
    count: 2,
  })
  return another === undefined ? only?.id : undefined
}

/** True for a client of the service, or of a site of the requested Project. */
function isOurs(
  { config }: Services,
  project: Resource | undefined,
  googleClientId: string,
): boolean {
  const sites = toObjects(project?.site)
  return [config.googleClientId, ...sites.map((site) => site.googleClientId)].includes(
    googleClientId,
  )
}

/** Returns undefined for tokens not issued by Google, for another client, or of an unverified address. */
async function verifyGoogleToken(
  { config, log }: Services,
  keys: ClientKeys,
  token: string,
  audience: string,
): Promise<Person | undefined> {
  try {
    const rules = { issuer: ISSUERS, audience, requiredClaims: ['exp', 'sub', 'email'] }
    const { kid = '' } = decodeProtectedHeader(token)
    const candidates = (await keys.at(config.googleJwksUrl, kid)).filter((key) => key.kid === kid)
    for (const jwk of candidates) {
      const claims = await verifyJwt(token, jwk, 'RS256', rules)
      if (claims !== undefined) return personIn(claims)
    }
  } catch (error) {
    const reason = error instanceof Error ? error.message : 'unknown'
    log.info({ reason }, 'A Google credential could not be checked')
  }
  return undefined
}

function personIn(claims: Readonly<Record<string, unknown>>): Person | undefined {
  const { email, email_verified, given_name, family_name } = claims
  if (typeof email !== 'string' || email_verified !== true) return undefined
  const textOr = (value: unknown, otherwise: string) =>
    typeof value === 'string' && value !== '' ? value : otherwise
  const name = email.split('@')[0] ?? email
  return { email, firstName: textOr(given_name, name), lastName: textOr(family_name, name) }
}

function refusal(services: Services, ctx: Context, { projectId }: App, text: string) {
  audit(services, ctx, { kind: 'login', outcome: '4', what: 'Google sign-in refused', projectId })
  return badRequest(text, text === 'User not found' ? undefined : 'googleCredential')
}
