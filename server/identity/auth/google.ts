/** Sign-in by Google: an ID token of its button (https://developers.google.com/identity/gsi/web/guides/verify-google-id-token). */
import { decodeProtectedHeader, importJWK, type JWK, jwtVerify } from 'jose'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { badRequest } from '../../../shared/errors.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { proveByProvider } from '../../../shared/projects/ownership.ts'
import { createUser, findUserForSignIn } from '../../../shared/projects/users.ts'
import { escapeValue } from '../../../shared/query/values.ts'
import type { Services } from '../../../shared/services.ts'
import { find } from '../../../shared/store/rows/lookups.ts'
import type { Context } from '../../context.ts'
import { audit } from '../logins.ts'
import type { ClientKeys } from '../oauth/clients.ts'
import { type App, findApp, signInRequest } from './apps.ts'
import type { Fields } from './fields.ts'
import { readProject, requireOpenRegistration } from './register.ts'
import { beginLogin, loginResult, speaksForProject } from './sign-in.ts'

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
  const person = await personOf(services, keys, credential, googleClientId)
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
  const isProof = known !== undefined && !speaksForProject(known, projectId, options)
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
async function personOf(
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
