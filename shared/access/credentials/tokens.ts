/** Signs and verifies access tokens (RFC 9068) and ID tokens. Knows keys, no storage. */
import { hash, randomUUID } from 'node:crypto'
import {
  type CryptoKey,
  decodeJwt,
  decodeProtectedHeader,
  errors,
  type JWK,
  type JWTPayload,
  jwtVerify,
  SignJWT,
} from 'jose'
import { Cache } from '../../core/cache.ts'
import { attempt } from '../../core/errors.ts'
import { isObject } from '../../fhir/resource.ts'

export interface SigningKey {
  readonly kid: string
  readonly alg: string
  readonly privateKey: CryptoKey
  readonly publicKey: CryptoKey
  readonly publicJwk: JWK
  /** Derived from the private key; signs URLs (signed-urls.ts). */
  readonly urlSecret: Buffer
  /** Derived from the private key; signs device cookies (devices.ts). */
  readonly deviceSecret: Buffer
}

export interface KeySet {
  readonly keys: readonly SigningKey[]
  /** Reloads keys that another process may have added; at most every 10 s. */
  reload(): Promise<void>
  /** Creates a key, which signs after ten minutes. Errors: 400 when keys are configured externally. */
  rotate(): Promise<void>
  close(): void
}

interface TokenSubject {
  readonly loginId: string
  readonly subject: string
  readonly clientId: string | undefined
  readonly profile: string
  readonly scope: string
  /** Only with scope `email`. */
  readonly email?: string | undefined
  /** The Subscription of a web socket token. */
  readonly subscriptionId?: string
  /** The Login of the caller that acts for the subject; the token is void without it. */
  readonly actorLoginId?: string | undefined
  readonly lifetimeSeconds: number
  /** Thumbprint of the client certificate without which the token is invalid: RFC 8705 §3. */
  readonly certificate?: string | undefined
  /** Id of the Project at whose address the token is issued, which its issuer names. */
  readonly projectScope?: string | undefined
}

/** https://openid.net/specs/openid-connect-core-1_0.html#IDToken */
interface IdTokenSubject extends TokenSubject {
  readonly nonce: string | undefined
  readonly authTime: number
  readonly fhirUser: string
  /** Preferred algorithm; the default applies when there is no key for it. */
  readonly alg?: string | undefined
}

export interface TokenClaims {
  readonly loginId: string
  readonly subject: string
  readonly clientId: string | undefined
  readonly profile: string
  readonly scope: string
  readonly issuedAt: number
  readonly expiresAt: number
  readonly id: string
  readonly subscriptionId: string | undefined
  readonly actorLoginId: string | undefined
  /** Thumbprint of the client certificate without which the token is invalid. */
  readonly certificate: string | undefined
  readonly issuer: string
  /** Id of the Project that the issuer names; undefined for the issuer of all Projects. */
  readonly projectScope: string | undefined
}

/** A hint at the person, never a proof: ID tokens pass through many hands. */
interface IdTokenClaims extends Pick<TokenClaims, 'loginId' | 'subject' | 'clientId'> {
  readonly isExpired: boolean
}

export interface Tokens {
  readonly keys: KeySet
  issue(subject: TokenSubject): Promise<string>
  /** Valid for an hour. */
  issueIdToken(subject: IdTokenSubject): Promise<string>
  /** Returns the claims of one of our ID tokens, even an expired one; otherwise undefined. */
  readIdToken(token: string): Promise<IdTokenClaims | undefined>
  verify(token: string): Promise<TokenClaims | 'expired' | undefined>
}

const THUMBPRINT = 'x5t#S256'
const SKEW_SECONDS = 30
const CACHED_TOKENS = 20_000
const LONGEST_TOKEN = 8192
const ID_TOKEN_SECONDS = 3600

/** Returns the address of the service, or that of a Project below it: an issuer. */
export function issuerUrl(baseUrl: string, projectScope?: string): string {
  return projectScope === undefined ? baseUrl : `${baseUrl}projects/${projectScope}/`
}

const PROJECT_PATH = /^projects\/([\da-f-]{36})\/$/

/** Reads the issuer of an unverified token; undefined unless it is this service. */
function readIssuer(
  token: string,
  baseUrl: string,
): Pick<TokenClaims, 'issuer' | 'projectScope'> | undefined {
  const issuer = attempt(() => decodeJwt(token))?.iss
  if (issuer === baseUrl) return { issuer, projectScope: undefined }
  if (issuer?.startsWith(baseUrl) !== true) return undefined
  const [, projectScope] = PROJECT_PATH.exec(issuer.slice(baseUrl.length)) ?? []
  return projectScope === undefined ? undefined : { issuer, projectScope }
}

/**
 * Issuer and audience are `baseUrl`, or the address of the Project where the token is issued. Verified tokens are
 * cached by digest.
 */
export function createTokens(baseUrl: string, keys: KeySet): Tokens {
  const verified = new Cache<string, TokenClaims>({ name: 'verified-tokens', max: CACHED_TOKENS })

  return {
    keys,

    async issue(subject) {
      const claims = {
        login_id: subject.loginId,
        username: subject.subject,
        scope: subject.scope,
        profile: subject.profile,
        jti: randomUUID(),
        ...clientAndEmail(subject),
        ...(subject.subscriptionId === undefined
          ? {}
          : { subscription_id: subject.subscriptionId }),
        // https://www.rfc-editor.org/rfc/rfc8693#section-4.1
        ...(subject.actorLoginId === undefined ? {} : { act: { login_id: subject.actorLoginId } }),
        ...confirmation(subject),
      }
      const { subject: sub, lifetimeSeconds } = subject
      const issuer = issuerUrl(baseUrl, subject.projectScope)
      return await sign(keys, claims, { typ: 'at+jwt', issuer, sub, aud: issuer, lifetimeSeconds })
    },

    async issueIdToken(subject) {
      const claims = {
        login_id: subject.loginId,
        auth_time: subject.authTime,
        fhirUser: subject.fhirUser,
        ...(subject.nonce === undefined ? {} : { nonce: subject.nonce }),
        ...clientAndEmail(subject),
      }
      const issuer = issuerUrl(baseUrl, subject.projectScope)
      const { subject: sub, clientId: aud = issuer } = subject
      const lifetimeSeconds = ID_TOKEN_SECONDS
      const { alg } = subject
      return await sign(keys, claims, { typ: 'JWT', issuer, sub, aud, lifetimeSeconds, alg })
    },

    async readIdToken(token) {
      if (token.length > LONGEST_TOKEN) return undefined
      const key = await findKey(token, keys)
      const by = readIssuer(token, baseUrl)
      const payload = key && by && (await verifyIdTokenHint(token, key, by.issuer))
      return payload && idTokenClaims(payload)
    },

    async verify(token) {
      if (token.length > LONGEST_TOKEN) return undefined
      const digest = hash('sha256', token, 'base64')
      const known = verified.get(digest)
      if (known !== undefined) return isLive(known) ? known : 'expired'
      const claims = await check(token, baseUrl, keys)
      if (typeof claims === 'object') verified.set(digest, claims)
      return claims
    },
  }
}

function idTokenClaims(payload: JWTPayload): IdTokenClaims | undefined {
  const { login_id: loginId, sub: subject = '', client_id: clientId, exp } = payload
  if (typeof loginId !== 'string' || exp === undefined) return undefined
  return {
    loginId,
    subject,
    clientId: typeof clientId === 'string' ? clientId : undefined,
    isExpired: exp + SKEW_SECONDS <= Date.now() / 1000,
  }
}

interface Envelope {
  readonly typ: string
  readonly issuer: string
  readonly sub: string
  readonly aud: string
  readonly lifetimeSeconds: number
  readonly alg?: string | undefined
}

async function sign(keys: KeySet, claims: JWTPayload, envelope: Envelope): Promise<string> {
  const all = keys.keys
  const key = all.find(({ alg }) => alg === envelope.alg) ?? all[0]
  if (key === undefined) throw new Error('There is no key to sign tokens with')
  const now = Math.floor(Date.now() / 1000)
  return await new SignJWT(claims)
    .setProtectedHeader({ alg: key.alg, kid: key.kid, typ: envelope.typ })
    .setIssuer(envelope.issuer)
    .setAudience(envelope.aud)
    .setSubject(envelope.sub)
    .setIssuedAt(now)
    .setNotBefore(now)
    .setExpirationTime(now + envelope.lifetimeSeconds)
    .sign(key.privateKey)
}

function clientAndEmail({ clientId, email }: TokenSubject) {
  return {
    ...(clientId === undefined ? {} : { client_id: clientId }),
    ...(email === undefined ? {} : { email }),
  }
}

/** https://www.rfc-editor.org/rfc/rfc8705#section-3.1 */
export function confirmation({ certificate }: Pick<TokenSubject, 'certificate'>) {
  return certificate === undefined ? {} : { cnf: { [THUMBPRINT]: certificate } }
}

function isLive(claims: TokenClaims): boolean {
  return claims.expiresAt + SKEW_SECONDS > Date.now() / 1000
}

async function check(
  token: string,
  baseUrl: string,
  keys: KeySet,
): Promise<TokenClaims | 'expired' | undefined> {
  const key = await findKey(token, keys)
  if (key === undefined) return undefined
  const by = readIssuer(token, baseUrl)
  if (by === undefined) return undefined
  const payload = await verifyAccessToken(token, key, by.issuer)
  if (payload === undefined || payload === 'expired') return payload
  const { login_id: loginId, profile, scope, client_id: clientId, sub, iat, exp, jti } = payload
  const { subscription_id: subscriptionId, act, cnf } = payload
  const actorLoginId = isObject(act) ? act.login_id : undefined
  const certificate = isObject(cnf) ? cnf[THUMBPRINT] : undefined
  if (typeof loginId !== 'string' || typeof profile !== 'string') return undefined
  if (sub === undefined || exp === undefined || iat === undefined || jti === undefined) {
    return undefined
  }
  return {
    loginId,
    subject: sub,
    clientId: typeof clientId === 'string' ? clientId : undefined,
    profile,
    scope: typeof scope === 'string' ? scope : '',
    issuedAt: iat,
    expiresAt: exp,
    id: jti,
    subscriptionId: typeof subscriptionId === 'string' ? subscriptionId : undefined,
    actorLoginId: typeof actorLoginId === 'string' ? actorLoginId : undefined,
    certificate: typeof certificate === 'string' ? certificate : undefined,
    ...by,
  }
}

async function findKey(token: string, keys: KeySet): Promise<SigningKey | undefined> {
  const kid = attempt(() => decodeProtectedHeader(token))?.kid
  if (kid === undefined) return undefined
  const known = keys.keys.find((key) => key.kid === kid)
  if (known !== undefined) return known
  await keys.reload()
  return keys.keys.find((key) => key.kid === kid)
}

async function verifyAccessToken(token: string, key: SigningKey, issuer: string) {
  try {
    const { payload } = await jwtVerify(token, key.publicKey, {
      algorithms: [key.alg],
      issuer,
      audience: issuer,
      typ: 'at+jwt',
      clockTolerance: SKEW_SECONDS,
      requiredClaims: ['exp', 'iat', 'nbf', 'jti', 'login_id'],
    })
    return payload
  } catch (error) {
    return error instanceof errors.JWTExpired ? 'expired' : undefined
  }
}

/** Expired hints count: OpenID Connect RP-Initiated Logout §4. */
async function verifyIdTokenHint(
  token: string,
  key: SigningKey,
  issuer: string,
): Promise<JWTPayload | undefined> {
  try {
    const { payload } = await jwtVerify(token, key.publicKey, {
      algorithms: [key.alg],
      issuer,
      typ: 'JWT',
      clockTolerance: Number.MAX_SAFE_INTEGER / 2,
    })
    return payload
  } catch {
    return undefined
  }
}
