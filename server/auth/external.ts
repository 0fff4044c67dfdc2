/** Sign-in by an external identity provider: its domain's people, and tokens given in exchange. */
import { isRegisteredRedirect } from '../../shared/access/clients.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { findUserForSignIn, readUser } from '../../shared/api/users.ts'
import { badRequest, type HttpError } from '../../shared/errors.ts'
import { isObject, parseReference, type Resource } from '../../shared/fhir/resource.ts'
import { escapeValue } from '../../shared/fhir/search-values.ts'
import type { Services } from '../../shared/services.ts'
import { find } from '../../shared/store/lookups.ts'
import { referenceIn } from '../../shared/store/memberships.ts'
import { SYSTEM_PROJECT } from '../../shared/store/projects.ts'
import type { Context } from '../context.ts'
import { type App, findApp, projectOfClient, type SignInRequest } from './apps.ts'
import { audit } from './audit.ts'
import {
  type Identity,
  identityOf,
  type Provider,
  providerOf,
  providerOfDomain,
  redeemCode,
  takeVerifier,
} from './provider.ts'
import { beginLogin, type LoginOptions, loginResult } from './sign-in.ts'

/** GET `/auth/external`: the address that the browser goes to next. Errors: 400. */
export async function finishExternal(services: Services, ctx: Context): Promise<string> {
  const code = textOf(ctx.query.code)
  const state = readState(textOf(ctx.query.state))
  if (code === undefined) throw badRequest('Missing code', 'code')
  const request = requestOf(state)
  const app = await findApp(services, ctx, request)
  const domain = textOf(state.domain)
  const provider =
    providerOf(app.client) ??
    (domain === undefined ? undefined : await providerOfDomain(services, domain))
  if (provider === undefined) throw badRequest('Identity provider not found')
  const verifier = await verifierOf(services, provider, state, request)
  const token = await redeemCode(services, provider, code, verifier)
  const identity = await identityOf(services, provider, token)
  // A domain's provider speaks for the addresses of that domain only.
  const isForeign = domain !== undefined && !identity.email?.toLowerCase().endsWith(`@${domain}`)
  if (providerOf(app.client) === undefined && isForeign) throw refusal(services, ctx, app)
  const login = await loginOf(services, ctx, app, request, identity, provider.useSubject)
  const result = await loginResult(services, ctx, login)
  return destination(services, app, request, result)
}

/**
 * An address that the SDK has made carries its challenge, whose verifier stays in the browser: with `plain`
 * the two are one, with any other method the code is worth nothing here. Errors: 400.
 */
async function verifierOf(
  services: Services,
  provider: Provider,
  state: Record<string, unknown>,
  { codeChallenge, codeChallengeMethod }: SignInRequest,
): Promise<string | undefined> {
  if (!provider.usePkce) return undefined
  const pkce = textOf(state.pkce)
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

/** A Login for whom a token of the client's provider belongs to. Errors: 400, 429. */
export async function exchangeToken(
  services: Services,
  ctx: Context,
  client: Resource,
  token: string,
  scope: string,
  membershipId?: string,
): Promise<Resource> {
  const provider = providerOf(client)
  if (provider === undefined) throw badRequest('Identity provider not found')
  const identity = await identityOf(services, provider, token)
  const request = { ...requestOf({}), clientId: client.id, scope }
  const projectId = projectOfClient(client)
  const app = { client, projectId, isNewProject: false, launch: undefined }
  const options = { choose: { membershipId } }
  return await loginOf(services, ctx, app, request, identity, provider.useSubject, options)
}

async function loginOf(
  services: Services,
  ctx: Context,
  app: App,
  request: SignInRequest,
  identity: Identity,
  useSubject: boolean,
  options: LoginOptions = {},
): Promise<Resource> {
  const user = useSubject
    ? await userBySubject(services, identity.subject, app.projectId)
    : await userByEmail(services, identity.email, app.projectId)
  const method = options.choose === undefined ? 'external' : 'exchange'
  const login = user && (await beginLogin(services, ctx, { app, request }, user, method, options))
  if (login === undefined) throw refusal(services, ctx, app)
  return login
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

/** `ProjectMembership.externalId` is unique in a Project. */
async function userBySubject(
  { repository }: Services,
  subject: string | undefined,
  projectId: string | undefined,
): Promise<Resource | undefined> {
  if (subject === undefined || projectId === undefined) return undefined
  const values = [escapeValue(subject)]
  const condition = { code: 'external-id', type: 'string', modifier: 'exact', values } as const
  const system = systemPrincipal(SYSTEM_PROJECT)
  const found = await find(repository, system, 'ProjectMembership', [condition], 1000)
  const membership = found.find(
    ({ externalId, project, active }) =>
      externalId === subject && active !== false && referenceIn(project) === `Project/${projectId}`,
  )
  const user = parseReference(referenceIn(membership?.user))
  return user?.type === 'User' ? await readUser(repository, user.id) : undefined
}

function readState(text: string | undefined): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text ?? '')
    if (isObject(value)) return value
  } catch {
    // Falls through to the one complaint.
  }
  throw badRequest('Invalid state', 'state')
}

function requestOf(state: Record<string, unknown>): SignInRequest {
  return {
    clientId: textOf(state.clientId),
    projectId: textOf(state.projectId),
    resourceType: undefined,
    scope: textOf(state.scope) ?? 'openid',
    nonce: textOf(state.nonce),
    launch: textOf(state.launch),
    codeChallenge: textOf(state.codeChallenge),
    codeChallengeMethod: textOf(state.codeChallengeMethod),
    redirectUri: textOf(state.redirectUri),
  }
}

function textOf(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined
}
