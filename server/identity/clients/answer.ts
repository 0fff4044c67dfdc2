/** The answer to a token request. */

import { accessTokenSeconds, idTokenAlgorithm } from '../../../shared/access/credentials/clients.ts'
import { parseReference, type Resource, referenceIn } from '../../../shared/fhir/resource.ts'
import type { Session } from '../../../shared/identity/principals.ts'
import { readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { readBody } from '../../http/body.ts'
import type { Context } from '../../http/context.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { loginClientId, loginUserId } from '../login-store.ts'

interface Tokens {
  readonly session: Session
  readonly login: Resource
  readonly client: Resource | undefined
  readonly refreshToken?: string | undefined
}

/** `client` decides how long the access token lives. */
export async function createTokenResponse(
  services: Services,
  { session, login, client, refreshToken }: Tokens,
): Promise<Record<string, unknown>> {
  const { tokens, config } = services
  const { principal, project } = session
  const scope = typeof login.scope === 'string' ? login.scope : ''
  const words = new Set(scope.split(' '))
  const lifetimeSeconds = accessTokenSeconds(client)
  const profile = principal.profile ?? ''
  const subject = {
    loginId: login.id ?? '',
    subject: parseReference(referenceIn(login.user))?.id ?? '',
    clientId: loginClientId(login),
    profile,
    scope,
    email: words.has('email') ? await readLoginEmail(services, login) : undefined,
    lifetimeSeconds,
  }
  const idToken = words.has('openid') && loginUserId(login) !== undefined
  const [accessToken, idTokenText] = await Promise.all([
    tokens.issue(subject),
    idToken
      ? tokens.issueIdToken({
          ...subject,
          nonce: typeof login.nonce === 'string' ? login.nonce : undefined,
          authTime: Math.floor(Date.parse(String(login.authTime)) / 1000),
          fhirUser: `${config.baseUrl}fhir/R4/${profile}`,
          alg: client && idTokenAlgorithm(client),
        })
      : undefined,
  ])
  const patient = parseReference(referenceIn(login.patient))?.id
  const encounter = parseReference(referenceIn(login.encounter))?.id
  return {
    token_type: 'Bearer',
    expires_in: lifetimeSeconds,
    scope,
    access_token: accessToken,
    ...(idTokenText === undefined ? {} : { id_token: idTokenText }),
    ...(refreshToken === undefined ? {} : { refresh_token: refreshToken }),
    project: reference(`Project/${project.id}`, principal.project.name),
    profile: reference(profile, principal.profileDisplay),
    ...(patient === undefined ? {} : { patient }),
    ...(encounter === undefined ? {} : { encounter }),
    smart_style_url: `${config.baseUrl}fhir/R4/.well-known/smart-styles.json`,
    need_patient_banner: patient !== undefined,
  }
}

async function readLoginEmail(
  { repository }: Services,
  login: Resource,
): Promise<string | undefined> {
  const id = loginUserId(login)
  const user = id === undefined ? undefined : await readUser(repository, id)
  return typeof user?.email === 'string' ? user.email : undefined
}

function reference(to: string, display: string | undefined) {
  return display === undefined ? { reference: to } : { reference: to, display }
}

// Form bodies of `/oauth2/**`: RFC 6749 §3.2. An empty value equals an absent one.

const FORM_BYTES = 65_536

/** Errors: `invalid_request` for another type and for parameters that are sent more than once. */
export async function readForm(ctx: Context): Promise<URLSearchParams> {
  if (!ctx.is('application/x-www-form-urlencoded')) {
    throw new OAuthError('invalid_request', 'Body must be application/x-www-form-urlencoded')
  }
  const body = await readBody(ctx, FORM_BYTES)
  const form = new URLSearchParams(body?.toString('utf8'))
  const names = [...form.keys()]
  if (new Set(names).size < names.length) {
    throw new OAuthError('invalid_request', 'A parameter is repeated')
  }
  return form
}

export function optionalParameter(form: URLSearchParams, name: string): string | undefined {
  return form.get(name) || undefined
}

/** Errors: `invalid_request`. */
export function requiredParameter(form: URLSearchParams, name: string, label = name): string {
  const value = form.get(name)
  if (!value) throw new OAuthError('invalid_request', `Missing ${label}`)
  return value
}
