/** A sign-in's client, its Project and the launch, if any. */

import {
  CLI_CLIENT,
  CONSOLE_CLIENT_ID,
  consoleClient,
  isActiveClient,
  isRegisteredRedirect,
} from '../../../shared/access/credentials/clients.ts'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { system } from '../../../shared/access/project-context.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { type Resource, targetIn } from '../../../shared/fhir/resource.ts'
import type { Services } from '../../../shared/request/services.ts'
import { readRegistry } from '../../../shared/store/lookups.ts'
import type { Context } from '../../http/context.ts'
import type { SignInFields } from './fields.ts'

const DEFAULT_SCOPE = 'openid'
const LAUNCH_MS = 600_000

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

export function launchElements(launch: Launch | undefined) {
  if (launch === undefined) return {}
  const { id, patient, encounter } = launch
  return {
    launch: { reference: `SmartAppLaunch/${id}` },
    ...(patient === undefined ? {} : { patient: { reference: `Patient/${patient}` } }),
    ...(encounter === undefined ? {} : { encounter: { reference: `Encounter/${encounter}` } }),
  }
}

export function signInRequest(fields: SignInFields): SignInRequest {
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

/** Errors: 400 for unknown or inconsistent values; 429 above the Project's limit. */
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

/** Returns an active client of the called address; otherwise undefined. One statement, none for built-in clients. */
export async function findClient(
  { repository, principals, config, projectScope }: Services,
  id: string,
): Promise<Resource | undefined> {
  if (id === CLI_CLIENT.id) return config.cliClientEnabled ? CLI_CLIENT : undefined
  if (id === CONSOLE_CLIENT_ID) return config.consoleEnabled ? consoleClient(config) : undefined
  const project = projectScope === undefined ? undefined : await principals.project(projectScope)
  // Another Project may have a client with the same id.
  const reader = project === undefined ? system : systemPrincipal(project, 'project')
  const client = await readRegistry(repository, 'ClientApplication', id, reader)
  if (client === undefined || !isActiveClient(client)) return undefined
  return projectScope === undefined || projectOfClient(client) === projectScope ? client : undefined
}

/** Returns undefined for the command line tool and the console, which serve every Project. */
export function projectOfClient(client: Resource): string | undefined {
  return client.meta?.project
}

/** Reads a launch, which lives ten minutes, for clients of its Project. Errors: 400. */
export async function readLaunch(
  { repository }: Services,
  id: string,
  projectId: string | undefined,
): Promise<Launch> {
  const launch = await readRegistry(repository, 'SmartAppLaunch', id)
  const isLive = Date.parse(String(launch?.meta?.lastUpdated)) + LAUNCH_MS > Date.now()
  if (launch === undefined || !isLive || launch.meta?.project !== projectId) {
    throw badRequest('Invalid launch', 'launch')
  }
  return {
    id: launch.id ?? id,
    patient: targetIn(launch.patient)?.id,
    encounter: targetIn(launch.encounter)?.id,
  }
}

/** Errors: 400 by RFC 7636. */
function requireChallenge({ codeChallenge, codeChallengeMethod }: SignInRequest): void {
  const problem = codeChallengeError(codeChallenge, codeChallengeMethod)
  if (problem !== undefined) throw badRequest(problem, 'codeChallengeMethod')
}

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
