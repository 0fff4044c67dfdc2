/** Sign-in by an external identity provider: users of its domain, and token exchange. */

import { isRegisteredRedirect } from '../../../shared/access/credentials/clients.ts'
import { system } from '../../../shared/access/project-context.ts'
import { attempt, badRequest, type HttpError } from '../../../shared/core/errors.ts'
import {
  isObject,
  nonEmptyText,
  type Resource,
  referenceIn,
  targetIn,
} from '../../../shared/fhir/resource.ts'
import { proveByProvider } from '../../../shared/projects/ownership.ts'
import { findUserForSignIn, normalEmail, readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { equals, exactly, find } from '../../../shared/store/lookups.ts'
import type { Context } from '../../http/context.ts'
import { classifySender, clearCookie, newBinding, readCookie, setCookie } from '../browser.ts'
import { hashSecret, matchesDigest } from '../login-store.ts'
import { audit } from '../sign-in-audit.ts'
import { type App, findApp, projectOfClient, type SignInRequest, signInRequest } from './apps.ts'
import type { SignInFields } from './fields.ts'
import { beginLogin, isTrustedForProject, type LoginOptions, loginResult } from './login-steps.ts'
import {
  buildAuthorizeUrl,
  fetchIdentity,
  type Identity,
  type Provider,
  parseIdentityProvider,
  providerOfDomain,
  redeemCode,
  takeVerifier,
  VERIFIER_SECONDS,
} from './provider.ts'

const BROWSER_COOKIE = 'botica-provider'

/**
 * POST `/auth/method`: returns the provider for the domain of an e-mail address, or nothing for a password sign-in. A
 * sign-in begun on our page returns to the same browser with the page's parameters (RFC 9700 §4.7.1).
 */
export async function findMethod(services: Services, ctx: Context, fields: SignInFields) {
  const email = fields.email('email')
  const request = signInRequest(fields)
  fields.check()
  const domain = emailDomain(email)
  const provider = await providerOfDomain(services, domain)
  if (provider === undefined) return {}
  const { projectId, clientId } = request
  if (classifySender(ctx, services.config) !== 'page') {
    const state = { domain, projectId, clientId }
    return { domain, authorizeUrl: await buildAuthorizeUrl(services, provider, state) }
  }
  const { secret } = newBinding()
  setCookie(ctx, services.config, {
    name: BROWSER_COOKIE,
    value: secret,
    seconds: VERIFIER_SECONDS,
  })
  const state = { ...request, domain }
  const browser = hashSecret(boundText(secret, state))
  return {
    domain,
    authorizeUrl: await buildAuthorizeUrl(services, provider, { ...state, browser }),
  }
}

/** The digest binds the browser to all values of the state, so neither can be exchanged. */
function boundText(secret: string, state: Readonly<Record<string, unknown>>): string {
  return secret + JSON.stringify(state)
}

function emailDomain(email: string): string {
  return normalEmail(email).split('@').at(-1) ?? ''
}

/** GET `/auth/external`: returns the next address for the browser. Errors: 400. */
export async function finishExternal(services: Services, ctx: Context): Promise<string> {
  const code = nonEmptyText(ctx.query.code)
  const state = readState(nonEmptyText(ctx.query.state))
  if (code === undefined) throw badRequest('Missing code', 'code')
  const isFromPage = isFromThisBrowser(services, ctx, state)
  const request = parseSignInState(state)
  const app = await findApp(services, ctx, request)
  const domain = nonEmptyText(state.domain)
  // A state with a domain comes from /auth/method, so its code is valid only for the provider of that domain.
  const ofDomain = domain === undefined ? undefined : await providerOfDomain(services, domain)
  const provider = ofDomain ?? parseIdentityProvider(app.client)
  if (provider === undefined) throw badRequest('Identity provider not found')
  const verifier = await resolveCodeVerifier(services, provider, state, request)
  const token = await redeemCode(services, provider, code, verifier)
  const identity = await fetchIdentity(services, provider, token)
  const vouching = ofDomain === undefined ? { isProjectProvider: true } : { domain }
  const options = { ...vouching, isFromPage }
  const login = await createExternalLogin(services, ctx, {
    app,
    request,
    identity,
    useSubject: provider.useSubject,
    options,
  })
  // The page asks for consent before it redirects.
  if (isFromPage) return `${services.config.appUrl}signin?login=${login.id}`
  const result = await loginResult(services, ctx, login)
  return destination(services, app, request, result)
}

/** False for client libraries, which have no cookie here and check their own verifier. Errors: 400. */
function isFromThisBrowser(
  { config }: Services,
  ctx: Context,
  state: Record<string, unknown>,
): boolean {
  const { browser, pkce: _, ...rest } = state
  if (browser === undefined) return false
  const secret = readCookie(ctx, config, BROWSER_COOKIE)
  const isSame = secret !== undefined && matchesDigest(browser, boundText(secret, rest))
  if (!isSame) throw badRequest('Invalid state', 'state')
  clearCookie(ctx, config, BROWSER_COOKIE)
  return true
}

/**
 * An address made by the SDK carries its challenge, whose verifier stays in the browser: with `plain` the two are
 * equal; with any other method the code cannot be redeemed here. Errors: 400.
 */
async function resolveCodeVerifier(
  services: Services,
  provider: Provider,
  state: Record<string, unknown>,
  { codeChallenge, codeChallengeMethod }: SignInRequest,
): Promise<string | undefined> {
  if (!provider.usePkce) return undefined
  const pkce = nonEmptyText(state.pkce)
  if (pkce !== undefined) return await takeVerifier(services, pkce)
  if (codeChallenge !== undefined && codeChallengeMethod === 'plain') return codeChallenge
  throw badRequest('Missing code verifier: begin at /auth/method', 'state')
}

function destination(
  { config }: Services,
  { client }: App,
  { redirectUri }: SignInRequest,
  result: Readonly<Record<string, unknown>>,
): string {
  const isKnown =
    redirectUri !== undefined && client !== undefined && isRegisteredRedirect(client, redirectUri)
  const isDone = typeof result.code === 'string'
  const url = new URL(isKnown && isDone ? redirectUri : `${config.appUrl}signin`)
  url.searchParams.set('login', String(result.login))
  if (isDone) url.searchParams.set('code', String(result.code))
  return url.href
}

interface TokenExchange {
  readonly token: string
  readonly scope: string
  readonly membershipId?: string | undefined
}

/** Creates a Login for the owner of a token of the client's provider. Errors: 400, 429. */
export async function exchangeToken(
  services: Services,
  ctx: Context,
  client: Resource,
  { token, scope, membershipId }: TokenExchange,
): Promise<Resource> {
  const provider = parseIdentityProvider(client)
  if (provider === undefined) throw badRequest('Identity provider not found')
  const identity = await fetchIdentity(services, provider, token)
  const request = { ...parseSignInState({}), clientId: client.id, scope }
  const projectId = projectOfClient(client)
  const app = { client, projectId, isNewProject: false, launch: undefined }
  const options = { choose: { membershipId }, isProjectProvider: true }
  return await createExternalLogin(services, ctx, {
    app,
    request,
    identity,
    useSubject: provider.useSubject,
    options,
  })
}

interface ExternalLogin {
  readonly app: App
  readonly request: SignInRequest
  readonly identity: Identity
  readonly useSubject: boolean
  readonly options: LoginOptions & { readonly domain?: string | undefined }
}

async function createExternalLogin(
  services: Services,
  ctx: Context,
  { app, request, identity, useSubject, options: { domain, ...options } }: ExternalLogin,
): Promise<Resource> {
  const user = useSubject
    ? await userBySubject(services, identity.subject, app.projectId)
    : await userByEmail(services, identity.email, app.projectId)
  // A domain's provider may vouch only for addresses of that domain, even for a known subject.
  const isForeign =
    domain !== undefined && !(isInDomain(domain, identity.email) && isInDomain(domain, user?.email))
  // A subject needs no address.
  const isUnverified = identity.isUnverified && !(useSubject && domain === undefined)
  if (user === undefined || isForeign || isUnverified) throw refusal(services, ctx, app)
  const isProof = !useSubject && !isTrustedForProject(user, app.projectId, options)
  if (isProof) await proveByProvider(services, user)
  const method = options.choose === undefined ? 'external' : 'exchange'
  const login = await beginLogin(services, ctx, { signIn: { app, request }, user, method, options })
  if (login === undefined) throw refusal(services, ctx, app)
  return login
}

function isInDomain(domain: string, email: unknown): boolean {
  return typeof email === 'string' && emailDomain(email) === domain
}

function refusal(services: Services, ctx: Context, { projectId }: App): HttpError {
  audit(services, ctx, { kind: 'login', outcome: '4', what: 'External sign-in refused', projectId })
  return badRequest('User not found')
}

async function userByEmail(
  { repository }: Services,
  email: string | undefined,
  projectId: string | undefined,
): Promise<Resource | undefined> {
  return email === undefined ? undefined : await findUserForSignIn(repository, email, projectId)
}

async function userBySubject(
  { repository }: Services,
  subject: string | undefined,
  projectId: string | undefined,
): Promise<Resource | undefined> {
  if (subject === undefined || projectId === undefined) return undefined
  const membership = await findMemberByExternalId(repository, subject, projectId)
  const user = targetIn(membership?.user)
  return user?.type === 'User' ? await readUser(repository, user.id) : undefined
}

/** Returns the active membership with this `externalId`, which is unique in a Project. */
export async function findMemberByExternalId(
  repository: Services['repository'],
  wanted: string,
  projectId: string,
): Promise<Resource | undefined> {
  const project = equals('project', 'reference', `Project/${projectId}`)
  const found = await find(repository, system, 'ProjectMembership', {
    conditions: [project, exactly('external-id', wanted)],
    count: 1000,
  })
  return found.find(
    ({ externalId, project, active }) =>
      externalId === wanted && active !== false && referenceIn(project) === `Project/${projectId}`,
  )
}

function readState(text: string | undefined): Record<string, unknown> {
  const value = attempt<unknown>(() => JSON.parse(text ?? ''))
  if (isObject(value)) return value
  throw badRequest('Invalid state', 'state')
}

function parseSignInState(state: Record<string, unknown>): SignInRequest {
  return {
    clientId: nonEmptyText(state.clientId),
    projectId: nonEmptyText(state.projectId),
    resourceType: undefined,
    scope: nonEmptyText(state.scope) ?? 'openid',
    nonce: nonEmptyText(state.nonce),
    launch: nonEmptyText(state.launch),
    codeChallenge: nonEmptyText(state.codeChallenge),
    codeChallengeMethod: nonEmptyText(state.codeChallengeMethod),
    redirectUri: nonEmptyText(state.redirectUri),
  }
}
