/** The token that binds a web socket to a Subscription. */
import type { Principal } from '../access/principal.ts'
import { actingAs } from '../bots/execute-bot.ts'
import { badRequest, HttpError, unauthorized } from '../errors.ts'
import { parseReference } from '../fhir/resource.ts'
import { actingSession } from '../identity/principals.ts'
import { createMemberLogin } from '../projects/signed-in-user.ts'
import { depthOf } from '../request/quota.ts'
import { jsonReply } from '../request/reply.ts'
import type { Operation } from '../request/request.ts'
import type { Services } from '../services.ts'
import { readSocketSubscription } from './socket-subscriptions.ts'

const LIFETIME_SECONDS = 3600
export const FEATURE = 'websocket-subscriptions'
export const FEATURE_OFF = 'WebSocket subscriptions not enabled for current project'

export const wsBindingToken: Operation = {
  name: 'get-ws-binding-token',
  on: [{ type: 'Subscription', level: 'instance' }],
  methods: ['GET', 'POST'],
  async run({ services, principal, request, id = '' }) {
    // A run has no socket, and its token would outlive it.
    if (depthOf(request) > 0) throw badRequest('A bot cannot bind a web socket')
    const { isSuperAdmin, project } = principal
    if (!isSuperAdmin && !project.features.includes(FEATURE)) throw badRequest(FEATURE_OFF)
    await requireSubscription(services, principal, id)
    const loginId = principal.loginId ?? (await newLogin(services, principal))
    const token = await services.tokens.issue({
      loginId,
      subject: principal.user ?? parseReference(principal.profile)?.id ?? loginId,
      clientId: principal.clientId,
      profile: principal.profile ?? '',
      scope: principal.scope,
      lifetimeSeconds: LIFETIME_SECONDS,
      subscriptionId: id,
    })
    const expires = new Date(Date.now() + LIFETIME_SECONDS * 1000).toISOString()
    const body = {
      resourceType: 'Parameters',
      parameter: [
        { name: 'token', valueString: token },
        { name: 'expiration', valueDateTime: expires },
        { name: 'subscription', valueString: id },
        { name: 'websocket-url', valueUrl: webSocketUrl(services.config.baseUrl) },
      ],
    }
    return jsonReply(200, body)
  },
}

/** Errors: 400 for what is not there, not visible, or of another channel. */
async function requireSubscription(
  services: Services,
  principal: Principal,
  id: string,
): Promise<void> {
  const found = await readSocketSubscription(services, principal, id)
  if (found !== undefined) return
  const reason = await services.repository.read(principal, 'Subscription', id).then(
    () => 'Its channel is not a web socket',
    (error: unknown) => {
      if (error instanceof HttpError && error.status < 500) return error.message
      throw error
    },
  )
  throw badRequest(`Error reading subscription: ${reason}`)
}

/** Makes a Login for credentials that come with each request: the token needs one that can be revoked. */
async function newLogin(services: Services, principal: Principal): Promise<string> {
  const session = await actingSession(services.principals, actingAs(principal))
  if (session === undefined) throw unauthorized(services.config.baseUrl)
  return createMemberLogin(services, session, 'client')
}

export const SOCKET_PATH = 'ws/subscriptions-r4'

/** Where web sockets connect to. */
export function webSocketUrl(baseUrl: string): string {
  return baseUrl.replace(/^http/, 'ws') + SOCKET_PATH
}
