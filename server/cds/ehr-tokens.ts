/**
 * JWTs that an EHR signs itself for its calls of CDS Hooks: https://cds-hooks.hl7.org/2.0/#trusting-cds-clients
 * The EHR is a ClientApplication with keys, whose membership has the issuer of the JWTs as its `externalId`.
 */
import { provesByCertificate } from '../../shared/access/credentials/certificates.ts'
import { isActiveClient } from '../../shared/access/credentials/clients.ts'
import { forbidden, HttpError, issue, outcome } from '../../shared/core/errors.ts'
import type { Session } from '../../shared/identity/principals.ts'
import { isInScope, scopedTo, serviceUrl } from '../../shared/request/project-scope.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Context, Middleware, Web } from '../http/context.ts'
import { findMemberByExternalId } from '../identity/auth/external.ts'
import {
  type Assertion,
  AssertionError,
  type ClientKeys,
  createClientKeys,
  readAssertion,
  requireFirstUse,
  verifyAssertion,
} from '../identity/clients/assertions.ts'
import { credentialsIn } from '../middleware/authenticate.ts'

const BEARER = /^Bearer +([\w-]+\.[\w-]+\.[\w-]+) *$/i

/** Only at the address of a Project, which the JWT does not name. Errors: 401, 403. */
export function acceptEhrTokens({ services }: Web): Middleware {
  const keys = createClientKeys(services)
  return async (ctx, next) => {
    const { projectScope } = ctx.state
    const [, text] = BEARER.exec(ctx.get('Authorization')) ?? []
    const token = text === undefined ? undefined : readForeign(services, text)
    if (projectScope !== undefined && token !== undefined) {
      const found = await findEhr(services, token.iss, projectScope)
      const session = await verify(services, keys, ctx, { token, session: found })
      // An EHR acts for itself; the user is in the context of the hook.
      if (credentialsIn(services, ctx).onBehalfOf !== '') throw forbidden()
      ctx.state.proven = asClient(session)
    }
    await next()
  }
}

/** Returns undefined for tokens of this service and for other texts, which `authenticate` judges. */
function readForeign({ config }: Services, text: string): Assertion | undefined {
  try {
    const token = readAssertion(text)
    return token.iss.startsWith(config.baseUrl) ? undefined : token
  } catch {
    return undefined
  }
}

async function findEhr(
  { repository, principals }: Services,
  issuer: string,
  projectId: string,
): Promise<Session | undefined> {
  const membership = await findMemberByExternalId(repository, issuer, projectId)
  if (membership === undefined) return undefined
  const session = await principals.forMembership(membership.id ?? '')
  const isEhr =
    session?.profile.resourceType === 'ClientApplication' &&
    isActiveClient(session.profile) &&
    !provesByCertificate(session.profile) &&
    session.membership.externalId === issuer &&
    isInScope(projectId, session.project)
  return isEhr ? session : undefined
}

export function asClient(session: Session): Session {
  return { ...session, principal: { ...session.principal, clientId: session.profile.id } }
}

interface Proof {
  readonly token: Assertion
  /** Undefined for an unknown issuer. */
  readonly session: Session | undefined
}

/** The same for known and unknown issuers. */
const NOT_PROVEN =
  'The JWT is not signed by an EHR of this project, or not for this address and time'

/** Returns the session. The audience is the address that is called, or that of all services. Errors: 401. */
async function verify(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  { token, session }: Proof,
): Promise<Session> {
  const base = serviceUrl(scopedTo(services, ctx.state.projectScope))
  const audience = [`${base}${ctx.path.slice(1)}`, `${base}cds-services`]
  try {
    if (session === undefined) throw new AssertionError('has an unknown issuer')
    const { profile: client } = session
    if (token.jku !== undefined && token.jku !== client.jwksUri) {
      throw new AssertionError('names a jku that is not the jwksUri of the client')
    }
    const candidates = await keys.find(client, token.kid)
    const use = await verifyAssertion(token, candidates, { issuer: token.iss, audience })
    await requireFirstUse(services.redis, client, use)
    return session
  } catch (error) {
    if (!(error instanceof AssertionError)) throw error
    const text = error.isSigned ? `The JWT ${error.message}` : NOT_PROVEN
    services.log.info({ reason: error.message }, 'A JWT for CDS Hooks was rejected')
    throw new HttpError(401, outcome('unauthorized', issue('error', 'login', text)), {
      headers: { 'WWW-Authenticate': `Bearer realm="${base}", error="invalid_token"` },
    })
  }
}
