/** An external identity provider: who holds its token, what a code of its is worth. */
import { hash, randomBytes, randomUUID } from 'node:crypto'
import { decodeProtectedHeader, importJWK, type JWK, jwtVerify } from 'jose'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { badRequest, tooManyRequests } from '../../../shared/core/errors.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { fetchOutbound } from '../../../shared/outbound/fetch-outside.ts'
import { proveByProvider } from '../../../shared/projects/ownership.ts'
import { createUser, findUserForSignIn } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { escapeValue } from '../../../shared/search/language/values.ts'
import { find } from '../../../shared/store/lookups.ts'
import type { Context } from '../../http/context.ts'
import type { ClientKeys } from '../clients/clients.ts'
import { audit } from '../login-store.ts'
import { type App, findApp, signInRequest } from './apps.ts'
import type { Fields } from './fields.ts'
import { beginLogin, isTrustedForProject, loginResult } from './login-steps.ts'
import { readProject, requireOpenRegistration } from './register.ts'

const MAX_BYTES = 262_144
const PATIENCE_MS = 10_000
/** A person who needs longer at the provider begins again. */
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
  /** The provider itself says that it has not verified the address. */
  readonly isUnverified: boolean
  readonly subject: string | undefined
}

/** The `identityProvider` of a client or a domain; undefined where there is none. */
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

/** One statement. */
export async function providerOfDomain(
  { repository }: Services,
  domain: string,
): Promise<Provider | undefined> {
  const values = [escapeValue(domain)]
  const condition = { code: 'domain', type: 'token', modifier: undefined, values } as const
  const system = systemPrincipal(SYSTEM_PROJECT)
  const [found] = await find(repository, system, 'DomainConfiguration', {
    conditions: [condition],
    count: 1,
  })
  return parseIdentityProvider(found)
}

/**
 * Where the browser goes; it comes back to `/auth/external` with `state`. The verifier of a provider that
 * wants one stays here: `state` names it. Errors: 400 where its address is none.
 */
export async function buildAuthorizeUrl(
  { config, redis }: Services,
  provider: Provider,
  state: Readonly<Record<string, unknown>>,
): Promise<string> {
  const isWeb = /^https?:/i.test(provider.authorizeUrl) && URL.canParse(provider.authorizeUrl)
  if (!isWeb) throw badRequest('The address of the identity provider is none', 'email')
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

/** Once. Errors: 400. */
export async function takeVerifier({ redis }: Services, pkce: string): Promise<string> {
  const verifier = await redis.getdel(verifierKey(pkce))
  if (verifier === null) throw badRequest('Invalid state', 'state')
  return verifier
}

function verifierKey(pkce: string): string {
  return `botica:provider-verifier:${pkce}`
}

/** Errors: 400 when the provider does not know the token, 429 when it wants us to wait. */
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

/** The access token that a code of the provider becomes. Errors: 400, 429. */
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

/** The caller only learns that the provider refused; its reasons are not passed on. */
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
  try {
    const value: unknown = JSON.parse(answer.body.toString('utf8'))
    if (isObject(value)) return value
  } catch {
    // Falls through: no JSON is no answer.
  }
  throw badRequest('Identity provider gave no usable answer')
}

// Sign-in by Google: an ID token of its button (https://developers.google.com/identity/gsi/web/guides/verify-google-id-token).

const ISSUERS = ['https://accounts.google.com', 'accounts.google.com']
const SKEW_SECONDS = 30
const LONGEST = 16_384
const system = systemPrincipal(SYSTEM_PROJECT)

interface Person {
  readonly email: string
  readonly firstName: string
  readonly lastName: string
}

/** Errors: 400; `createUser` registers whom we do not know, where registration is open. */
export async function logInByGoogle(
  services: Services,
  ctx: Context,
  keys: ClientKeys,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const googleClientId = fields.required('googleClientId', 'Google client')
  const credential = fields.required('googleCredential', 'Google credential', 1, LONGEST)
  const mayCreate = fields.flag('createUser') === true
  const request = signInRequest(fields)
  fields.check()
  const named = await findApp(services, ctx, request)
  const app = { ...named, projectId: await projectFor(services, named, googleClientId) }
  const project =
    app.projectId === undefined ? undefined : await readProject(services, app.projectId)
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
 * Finds the Project that the request names, or else the one whose site has the Google client. Undefined when
 * several have it.
 */
async function projectFor(
  { config, repository }: Services,
  { projectId, isNewProject }: App,
  googleClientId: string,
): Promise<string | undefined> {
  const isNamed = projectId !== undefined || isNewProject
  if (isNamed || googleClientId === config.googleClientId) return projectId
  const values = [escapeValue(googleClientId)]
  const condition = {
    code: 'google-client-id',
    type: 'token',
    modifier: undefined,
    values,
  } as const
  const [only, another] = await find(repository, system, 'Project', {
    conditions: [condition],
    count: 2,
  })
  return another === undefined ? only?.id : undefined
}

/** True for a client of the service, or of a site of the Project that is signed in to. */
function isOurs(
  { config }: Services,
  project: Resource | undefined,
  googleClientId: string,
): boolean {
  const sites = Array.isArray(project?.site) ? project.site.filter(isObject) : []
  return [config.googleClientId, ...sites.map((site) => site.googleClientId)].includes(
    googleClientId,
  )
}

/** Undefined for a token that is not Google's, not meant for this client, or of an unproven address. */
async function verifyGoogleToken(
  { config, log }: Services,
  keys: ClientKeys,
  token: string,
  audience: string,
): Promise<Person | undefined> {
  try {
    const { kid = '' } = decodeProtectedHeader(token)
    const candidates = (await keys.at(config.googleJwksUrl, kid)).filter((key) => key.kid === kid)
    for (const jwk of candidates) {
      const claims = await verified(token, jwk, audience)
      if (claims !== undefined) return personIn(claims)
    }
  } catch (error) {
    const reason = error instanceof Error ? error.message : 'unknown'
    log.info({ reason }, 'A Google credential could not be checked')
  }
  return undefined
}

async function verified(token: string, jwk: JWK, audience: string) {
  // RS256 only: a public key never serves as a shared secret.
  if (jwk.kty !== 'RSA') return undefined
  try {
    const { kty, n = '', e = '' } = jwk
    const { payload } = await jwtVerify(token, await importJWK({ kty, n, e }, 'RS256'), {
      algorithms: ['RS256'],
      issuer: ISSUERS,
      audience,
      clockTolerance: SKEW_SECONDS,
      requiredClaims: ['exp', 'sub', 'email'],
    })
    return payload
  } catch {
    return undefined
  }
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
