/** The app that a person signs in to: a client, its Project, the launch that brought them. */
import {
  CLI_CLIENT,
  CONSOLE_CLIENT_ID,
  consoleClient,
  isActiveClient,
  isRegisteredRedirect,
} from '../../../shared/access/credentials/clients.ts'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { grantedScope } from '../../../shared/access/scopes.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { parseReference, type Resource, referenceIn } from '../../../shared/fhir/resource.ts'
import type { Services } from '../../../shared/request/services.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Context } from '../../http/context.ts'
import type { Fields } from './fields.ts'

const DEFAULT_SCOPE = 'openid'
const LAUNCH_MS = 600_000
const system = systemPrincipal(SYSTEM_PROJECT)

/** The fields that all requests share which begin a Login. */
export interface SignInRequest {
  readonly clientId: string | undefined
  readonly projectId: string | undefined
  readonly resourceType: string | undefined
  readonly scope: string
  readonly nonce: string | undefined
  readonly launch: string | undefined
  readonly codeChallenge: string | undefined
  readonly codeChallengeMethod: string | undefined
  readonly redirectUri: string | undefined
}

/** A known client, if one was named, and the Project it leads to. */
export interface App {
  readonly client: Resource | undefined
  readonly projectId: string | undefined
  readonly isNewProject: boolean
  readonly launch: Launch | undefined
}

export interface Launch {
  readonly id: string
  readonly patient: string | undefined
  readonly encounter: string | undefined
}

export function signInRequest(fields: Fields): SignInRequest {
  const scope = fields.optional('scope') ?? DEFAULT_SCOPE
  return {
    clientId: fields.optional('clientId'),
    projectId: fields.optional('projectId'),
    resourceType: fields.optional('resourceType'),
    scope: fields.flag('remember') ? `${scope} offline` : scope,
    nonce: fields.optional('nonce'),
    launch: fields.optional('launch'),
    codeChallenge: fields.optional('codeChallenge'),
    codeChallengeMethod: fields.optional('codeChallengeMethod'),
    redirectUri: fields.optional('redirectUri'),
  }
}

/** Errors: 400 for what does not exist or does not fit together; 429 beyond what its Project allows. */
export async function findApp(
  services: Services,
  ctx: Context,
  request: SignInRequest,
): Promise<App> {
  requireChallenge(request)
  const { clientId, redirectUri } = request
  const client = clientId === undefined ? undefined : await findClient(services, clientId)
  if (clientId !== undefined && client === undefined) {
    throw badRequest('Client not found', 'clientId')
  }
  if (client !== undefined) requireOrigin(client, ctx.get('Origin'))
  if (client && redirectUri !== undefined && !isRegisteredRedirect(client, redirectUri)) {
    throw badRequest('Invalid redirect URI', 'redirectUri')
  }
  const isNewProject = request.projectId === 'new'
  const named = isNewProject ? undefined : request.projectId?.toLowerCase()
  const ofClient = client && projectOfClient(client)
  const conflicting = ofClient !== undefined && named !== undefined && named !== ofClient
  if (conflicting || (isNewProject && ofClient !== undefined)) {
    throw badRequest('Invalid projectId', 'projectId')
  }
  const projectId = ofClient ?? named
  if (projectId !== undefined) {
    const project = await services.principals.project(projectId)
    if (project === undefined) throw badRequest('Invalid projectId', 'projectId')
    ctx.state.limitTo?.(project.rateLimits)
  }
  const launch =
    request.launch === undefined ? undefined : await readLaunch(services, request.launch, ofClient)
  return { client, projectId, isNewProject, launch }
}

/** Undefined for clients that are unknown or not active. One statement, none for the clients that have no row. */
export async function findClient(
  { repository, config }: Services,
  id: string,
): Promise<Resource | undefined> {
  if (id === CLI_CLIENT.id) return config.cliClientEnabled ? CLI_CLIENT : undefined
  if (id === CONSOLE_CLIENT_ID) return config.consoleEnabled ? consoleClient(config) : undefined
  if (!/^[A-Za-z0-9\-.]{1,64}$/.test(id)) return undefined
  const [found] = await repository.readMany(system, [{ type: 'ClientApplication', id }])
  if (found?.content === undefined) return undefined
  const client = parseVersion(found)
  return isActiveClient(client) ? client : undefined
}

/** Undefined for the command line tool and the console, which serve every Project. */
export function projectOfClient(client: Resource): string | undefined {
  return client.meta?.project
}

/** Ids live ten minutes, for clients of the Project that made them. Errors: 400. */
export async function readLaunch(
  { repository }: Services,
  id: string,
  projectId: string | undefined,
): Promise<Launch> {
  const isId = /^[0-9a-f-]{36}$/i.test(id)
  const [found] = isId ? await repository.readMany(system, [{ type: 'SmartAppLaunch', id }]) : []
  const launch = found?.content === undefined ? undefined : parseVersion(found)
  const isLive = found !== undefined && found.lastUpdated.getTime() + LAUNCH_MS > Date.now()
  if (launch === undefined || !isLive || launch.meta?.project !== projectId) {
    throw badRequest('Invalid launch', 'launch')
  }
  return {
    id: found.id,
    patient: parseReference(referenceIn(launch.patient))?.id,
    encounter: parseReference(referenceIn(launch.encounter))?.id,
  }
}

/** Errors: 400 as RFC 7636 has it. */
function requireChallenge({ codeChallenge, codeChallengeMethod }: SignInRequest): void {
  const problem = codeChallengeError(codeChallenge, codeChallengeMethod)
  if (problem !== undefined) throw badRequest(problem, 'codeChallengeMethod')
}

/** Why a challenge cannot be used; undefined when it can or when there is none. */
export function codeChallengeError(
  challenge: string | undefined,
  method: string | undefined,
): string | undefined {
  if (challenge === undefined) {
    return method === undefined ? undefined : 'Missing code challenge'
  }
  if (method !== 'S256' && method !== 'plain') return 'Invalid code challenge method'
  return challenge.length > 256 ? 'Invalid code challenge' : undefined
}

function requireOrigin(client: Resource, origin: string): void {
  const allowed = Array.isArray(client.allowedOrigin) ? client.allowedOrigin : []
  if (allowed.length > 0 && origin !== '' && !allowed.includes(origin)) {
    throw badRequest('Invalid origin')
  }
}

/** The words of a request's scope that we know. */
export function requestedScope(request: SignInRequest): string {
  return grantedScope(request.scope)
}
