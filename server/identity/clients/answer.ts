/** Token responses. */

import type { ClientCertificate } from '../../../shared/access/credentials/certificates.ts'
import { accessTokenSeconds, idTokenAlgorithm } from '../../../shared/access/credentials/clients.ts'
import { type Resource, referenceIn, targetIn } from '../../../shared/fhir/resource.ts'
import type { Session } from '../../../shared/identity/principals.ts'
import { readUser } from '../../../shared/projects/users.ts'
import { absoluteUrl } from '../../../shared/request/reply.ts'
import type { Services } from '../../../shared/request/services.ts'
import { readRegistry } from '../../../shared/store/lookups.ts'
import { readBody } from '../../http/body.ts'
import type { Context } from '../../http/context.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { loginClientId, loginUserId } from '../login-store.ts'

/** RFC 6749 §5.1. */
export type TokenResponse = Readonly<Record<string, unknown>>

export interface Tokens {
  readonly session: Session
  readonly login: Resource
  readonly client: Resource | undefined
  readonly refreshToken?: string | undefined
  /** The access token is bound to it. */
  readonly certificate: ClientCertificate | undefined
}

/** `client` determines the lifetime of the access token. */
export async function createTokenResponse(
  services: Services,
  { session, login, client, refreshToken, certificate }: Tokens,
): Promise<TokenResponse> {
  const { tokens, projectScope } = services
  const { principal, project } = session
  const scope = typeof login.scope === 'string' ? login.scope : ''
  const words = new Set(scope.split(' '))
  const lifetimeSeconds = accessTokenSeconds(client)
  const profile = principal.profile ?? ''
  const subject = {
    loginId: login.id ?? '',
    subject: targetIn(login.user)?.id ?? '',
    clientId: loginClientId(login),
    profile,
    scope,
    email: words.has('email') ? await readLoginEmail(services, login) : undefined,
    lifetimeSeconds,
    projectScope,
  }
  const idToken = words.has('openid') && loginUserId(login) !== undefined
  const [accessToken, idTokenText] = await Promise.all([
    tokens.issue({ ...subject, certificate: certificate?.thumbprint }),
    idToken
      ? tokens.issueIdToken({
          ...subject,
          nonce: typeof login.nonce === 'string' ? login.nonce : undefined,
          authTime: Math.floor(Date.parse(String(login.authTime)) / 1000),
          fhirUser: absoluteUrl(services, profile),
          alg: client && idTokenAlgorithm(client),
        })
      : undefined,
  ])
  const fhirContext = await readFhirContext(services, login)
  const patient = targetIn(login.patient)?.id
  const encounter = targetIn(login.encounter)?.id
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
    ...(fhirContext.length === 0 ? {} : { fhirContext }),
    smart_style_url: absoluteUrl(services, '.well-known/smart-styles.json'),
    need_patient_banner: patient !== undefined,
  }
}

/** Further resources of the EHR launch; none once the launch was deleted. */
async function readFhirContext(
  { repository }: Services,
  login: Resource,
): Promise<readonly { readonly reference: string }[]> {
  const launch = targetIn(login.launch)
  if (launch === undefined) return []
  const found = await readRegistry(repository, 'SmartAppLaunch', launch.id)
  const items: readonly unknown[] = Array.isArray(found?.fhirContext) ? found.fhirContext : []
  return items.map(referenceIn).flatMap((text) => (text === undefined ? [] : [{ reference: text }]))
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

// Form bodies of `/oauth2/**`: RFC 6749 §3.2. Empty equals absent.

const FORM_BYTES = 65_536

/** Errors: `invalid_request` for another content type and for repeated parameters. */
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
