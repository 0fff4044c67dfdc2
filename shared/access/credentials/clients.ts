/** Checks the credentials of a ClientApplication. */
import { hash, timingSafeEqual } from 'node:crypto'
import { type Issue, invalid, issue } from '../../core/errors.ts'
import { asArray, isObject, type Resource } from '../../fhir/resource.ts'
import { BY_CA, BY_THUMBPRINT, certificateIssues, provesByCertificate } from './certificates.ts'

const LONGEST_ACCESS_SECONDS = 86_400
const LONGEST_REFRESH_SECONDS = 90 * 86_400
const DEFAULT_REFRESH_SECONDS = 14 * 86_400
const DEFAULT_ACCESS_SECONDS = 3600
const UNIT_SECONDS: Readonly<Record<string, number>> = {
  s: 1,
  m: 60,
  h: 3600,
  d: 86_400,
  w: 604_800,
  y: 31_536_000,
}
export const LIFETIME = /^(\d+)([smhdwy])$/
/** https://datatracker.ietf.org/doc/html/rfc7591#section-2; absent: PKCE is enough for a password login. */
const AUTH_METHODS: readonly unknown[] = [
  undefined,
  'none',
  'client_secret_basic',
  'client_secret_post',
  'private_key_jwt',
  BY_CA,
  BY_THUMBPRINT,
]

/** Errors: 400 for unreadable lifetimes, unknown methods, unsafe or unusable addresses and certificates without a use. */
export function checkClient(client: Resource): void {
  const lifetimes = ['accessTokenLifetime', 'refreshTokenLifetime'].flatMap((name) => {
    const value = client[name]
    if (value === undefined || (typeof value === 'string' && LIFETIME.test(value))) return []
    const text = `${name} must be a lifetime such as "1h"`
    return [issue('error', 'invalid', text, { expression: `ClientApplication.${name}` })]
  })
  const { redirectUri, redirectUris } = client
  const listed: readonly unknown[] = Array.isArray(redirectUris) ? redirectUris : [redirectUris]
  const addresses = [
    ...listed.map((uri, i) => [uri, `redirectUris[${i}]`] as const),
    [redirectUri, 'redirectUri'] as const,
  ].flatMap(([uri, name]) => {
    if (uri === undefined || (typeof uri === 'string' && isSafeRedirect(uri))) return []
    const text = `${name} must be https, http on a loopback address, or a private scheme with a dot`
    return [issue('error', 'invalid', text, { expression: `ClientApplication.${name}` })]
  })
  const issues = [
    ...lifetimes,
    ...addresses,
    ...webAddressIssues(client),
    ...certificateIssues(client),
  ]
  const field = 'ClientApplication.tokenEndpointAuthMethod'
  const text = `tokenEndpointAuthMethod must be one of ${AUTH_METHODS.slice(1).join(', ')}`
  const isKnown = AUTH_METHODS.includes(client.tokenEndpointAuthMethod)
  if (!isKnown) issues.push(issue('error', 'invalid', text, { expression: field }))
  const alg = client.idTokenSignedResponseAlg
  if (alg !== undefined && !ID_TOKEN_ALGORITHMS.includes(String(alg))) {
    const expression = 'ClientApplication.idTokenSignedResponseAlg'
    const all = ID_TOKEN_ALGORITHMS.join(' or ')
    issues.push(
      issue('error', 'invalid', `idTokenSignedResponseAlg must be ${all}`, { expression }),
    )
  }
  if (issues.length > 0) throw invalid(issues)
}

const WEB_URL = 'must be an absolute http or https URL'
const ORIGIN =
  'must be an origin as browsers send it, such as https://app.example.org, without a path or slash'

/** Addresses that the service or a browser opens, and origins that are compared with those of requests. */
function webAddressIssues({ jwksUri, launchUri, allowedOrigin }: Resource): readonly Issue[] {
  const origins = asArray(allowedOrigin).map((value, i) => {
    return { name: `allowedOrigin[${i}]`, isUsable: isOrigin(value), rule: ORIGIN }
  })
  const urls = Object.entries({ jwksUri, launchUri }).map(([name, value]) => {
    return { name, isUsable: value === undefined || isWebUrl(value), rule: WEB_URL }
  })
  return [...urls, ...origins].flatMap(({ name, isUsable, rule }) => {
    if (isUsable) return []
    const expression = `ClientApplication.${name}`
    return [issue('error', 'invalid', `${name} ${rule}`, { expression })]
  })
}

function isWebUrl(value: unknown): value is string {
  if (typeof value !== 'string' || !PRINTABLE.test(value)) return false
  return /^https?:\/\//i.test(value) && URL.canParse(value)
}

/** Origins of apps have other schemes: https://www.rfc-editor.org/rfc/rfc6454#section-4 */
function isOrigin(value: unknown): boolean {
  if (isWebUrl(value)) return new URL(value).origin === value && !value.includes('*')
  return typeof value === 'string' && /^(?!https?:)[a-z][a-z0-9+.-]*:\/\/[\w.:-]+$/.test(value)
}

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/
/** Excludes blanks and control characters, which browsers drop before they read the scheme. */
const PRINTABLE = /^[!-~\u00a1-\uffff]+$/

/** True for https, http on loopback, and app schemes with a domain: https://www.rfc-editor.org/rfc/rfc8252#section-7 */
export function isSafeRedirect(uri: string): boolean {
  if (!PRINTABLE.test(uri) || !URL.canParse(uri)) return false
  const { protocol, hostname } = new URL(uri)
  if (protocol === 'https:') return true
  if (protocol === 'http:') return LOOPBACK.test(hostname)
  return /^[a-z][a-z0-9+-]*(\.[a-z0-9+-]+)+:$/.test(protocol)
}

/** True when the client always authenticates with its secret, key or certificate. */
export function alwaysProves({ tokenEndpointAuthMethod: method }: Resource): boolean {
  return method !== undefined && method !== 'none'
}

/** False for a client that authenticates with its key or certificate only. */
export function takesSecret(client: Resource): boolean {
  return client.tokenEndpointAuthMethod !== 'private_key_jwt' && !provesByCertificate(client)
}

export const ID_TOKEN_ALGORITHMS = ['ES256', 'RS256']

/** Algorithm of the client's ID tokens; ES256 by default. */
export function idTokenAlgorithm({ idTokenSignedResponseAlg: alg }: Resource): string | undefined {
  return typeof alg === 'string' ? alg : undefined
}

export function isActiveClient(client: Resource): boolean {
  return client.status === undefined || client.status === 'active'
}

/** Compares with `secret` and `retiringSecret` in constant time. */
export function secretMatches(client: Resource, given: string): boolean {
  const wanted = [client.secret, client.retiringSecret].filter((item) => typeof item === 'string')
  return wanted.map((secret) => isSameSecret(secret, given)).includes(true)
}

export function isSameSecret(a: string, b: string): boolean {
  // Hashing gives both sides one length, so that the length of the secret does not leak.
  return timingSafeEqual(hash('sha256', a, 'buffer'), hash('sha256', b, 'buffer'))
}

/** Returns the lifetime of access tokens in seconds, at most 24 h. */
export function accessTokenSeconds(client: Resource | undefined): number {
  return seconds(client?.accessTokenLifetime, DEFAULT_ACCESS_SECONDS, LONGEST_ACCESS_SECONDS)
}

/** Returns the lifetime of refresh tokens in seconds, at most 90 days. */
export function refreshTokenSeconds(client: Resource | undefined): number {
  return seconds(client?.refreshTokenLifetime, DEFAULT_REFRESH_SECONDS, LONGEST_REFRESH_SECONDS)
}

function seconds(lifetime: unknown, otherwise: number, longest: number): number {
  const match = LIFETIME.exec(String(lifetime ?? ''))
  if (!match) return otherwise
  const wanted = Number(match[1]) * (UNIT_SECONDS[match[2] ?? ''] ?? 0)
  return Math.max(1, Math.min(wanted, longest))
}

/** Built-in client of the command line tool: no row, no secret, no PKCE. */
export const CLI_CLIENT: Resource = {
  resourceType: 'ClientApplication',
  id: 'medplum-cli',
  name: 'Command line',
  redirectUris: ['http://localhost:9615'],
  pkceOptional: true,
}

export const CONSOLE_CLIENT_ID = 'botica-console'

/** Built-in client of the console: no row, no secret, always PKCE. */
export function consoleClient({ baseUrl, productName }: ConsoleSettings): Resource {
  return {
    resourceType: 'ClientApplication',
    id: CONSOLE_CLIENT_ID,
    name: `${productName} console`,
    redirectUris: [`${baseUrl}console`],
    tokenEndpointAuthMethod: 'none',
  }
}

interface ConsoleSettings {
  readonly baseUrl: string
  readonly productName: string
}

export function ownsCredentials(client: Resource): boolean {
  const { secret, retiringSecret, jwks, jwksUri } = client
  const isKnown = [secret, retiringSecret, jwks, jwksUri].some((item) => item !== undefined)
  return isKnown || provesByCertificate(client)
}

/** True for a client that never has to prove itself: https://www.rfc-editor.org/rfc/rfc6749#section-2.1 */
export function isPublicClient(client: Resource): boolean {
  return client.tokenEndpointAuthMethod === 'none' || !ownsCredentials(client)
}

/** Leaves out unsafe addresses from before the check existed. */
export function safeRedirectUris(client: Resource): readonly string[] {
  const list = asArray(client.redirectUris)
  return [...list, client.redirectUri].filter(
    (uri): uri is string => typeof uri === 'string' && isSafeRedirect(uri),
  )
}

/** Only the port of a loopback address may differ: https://datatracker.ietf.org/doc/html/rfc8252#section-7.3 */
export function isRegisteredRedirect(client: Resource, uri: string): boolean {
  const plain = withoutLoopbackPort(uri)
  return safeRedirectUris(client).some(
    (known) => known === uri || (plain !== undefined && plain === withoutLoopbackPort(known)),
  )
}

function withoutLoopbackPort(uri: string): string | undefined {
  const match = /^(http:\/\/(?:127\.0\.0\.1|\[::1\]))(?::\d{1,5})?((?:[/?].*)?)$/.exec(uri)
  return match ? `${match[1]}${match[2]}` : undefined
}

export function readSignInForm(client: Resource): Readonly<Record<string, unknown>> {
  const { welcomeString, logo } = isObject(client.signInForm) ? client.signInForm : {}
  return { welcomeString, logo }
}
