/**
 * A Login as a state machine. Each transition is a function of the stored Login, which `changeLogin` runs under its lock;
 * it returns the next Login or the problem that forbids it.
 *
 *                  chooseMembership          issueCode                redeemCode
 *   authenticated ─────────────────▶ member ──────────▶ code issued ─────────────▶ granted
 *         │                             │                    │                        │
 *         └───── after `expires` ───────┴────────────────────┴──▶ expired             │ redeemCode
 *                                                                                     ▼
 *   any state ──────────────────────────────── revoke ───────────────────────────▶ revoked
 *
 * `verifyFactor`, `registerOnce`, `consent`, `withPatient` and another `issueCode` keep the state. A second factor is due
 * before the code, whether the membership is chosen or not. A Login for a provider's token has its membership from the
 * start and no code (`grantExchanged`); that of a client begins as granted.
 */
import type { ClientCertificate } from '../../shared/access/credentials/certificates.ts'
import type { Resource } from '../../shared/fhir/resource.ts'

type LoginState = 'authenticated' | 'member' | 'code issued' | 'granted' | 'expired' | 'revoked'

export function loginState(login: Resource): LoginState {
  if (login.revoked === true) return 'revoked'
  if (login.granted === true) return 'granted'
  if (!(Date.parse(String(login.expires)) > Date.now())) return 'expired'
  if (login.code !== undefined) return 'code issued'
  return login.membership === undefined ? 'authenticated' : 'member'
}

/** With both, the Login is stored and the caller gets the problem. */
export type Transition =
  | { readonly login: Resource; readonly problem?: string }
  | { readonly login?: undefined; readonly problem: string }

/** Returns the reason why a sign-in cannot continue; undefined while it is open. */
export function signInProblem(login: Resource): string | undefined {
  const state = loginState(login)
  if (state === 'granted') return 'Login already granted'
  return state === 'revoked' || state === 'expired' ? `Login ${state}` : undefined
}

function whileOpen(login: Resource, changes: Readonly<Record<string, unknown>>): Transition {
  const problem = signInProblem(login)
  return problem === undefined ? { login: { ...login, ...changes } } : { problem }
}

export function verifyFactor(login: Resource): Transition {
  return whileOpen(login, { mfaVerified: true })
}

/** `chosen` has the elements of the membership. */
export function chooseMembership(
  login: Resource,
  chosen: Readonly<Record<string, unknown>>,
): Transition {
  if (login.membership !== undefined && signInProblem(login) === undefined) {
    return { problem: 'Login profile already set' }
  }
  return whileOpen(login, chosen)
}

/** A Login registers a Project or a patient once; the membership follows in another transaction. */
export function registerOnce(login: Resource): Transition {
  const isUsed = login.registered === true || login.membership !== undefined
  if (isUsed && signInProblem(login) === undefined) {
    return { problem: 'Login already has a membership' }
  }
  return whileOpen(login, { registered: true })
}

export function consent(login: Resource, scope: string): Transition {
  return whileOpen(login, { scope, consented: true })
}

export function withPatient(login: Resource, reference: string): Transition {
  return whileOpen(login, { patient: { reference } })
}

/** Stores digests of the code and of the session cookie, if any. The previous code becomes invalid. */
export function issueCode(login: Resource, code: string, cookie: string | undefined): Transition {
  return whileOpen(login, { code, ...(cookie === undefined ? {} : { cookie }) })
}

interface RedeemProof {
  /** The client has authenticated. */
  readonly isProven: boolean
  readonly certificate: ClientCertificate | undefined
}

/** Binds the refresh tokens of the Login: RFC 8705 §7.1. */
function boundTo(certificate: ClientCertificate | undefined) {
  return certificate === undefined ? {} : { certificateThumbprint: certificate.thumbprint }
}

/** A code works once: a second use revokes the Login and all its tokens. */
export function redeemCode(login: Resource, isSameCode: boolean, proof: RedeemProof): Transition {
  const state = loginState(login)
  if (state === 'granted') {
    return { ...revoke(login), problem: 'Token already granted' }
  }
  if (state === 'revoked') return { problem: 'Token revoked' }
  if (!isSameCode || state === 'expired') return { problem: 'Invalid code' }
  const proven = proof.isProven ? { clientProven: true } : {}
  return { login: { ...login, granted: true, ...proven, ...boundTo(proof.certificate) } }
}

/** Grants tokens without a code to the holder of a provider's token. */
export function grantExchanged(
  login: Resource,
  certificate: ClientCertificate | undefined,
): Transition {
  if (login.membership === undefined) return { problem: 'User not found' }
  return { login: { ...login, granted: true, ...boundTo(certificate) } }
}

/** Valid in any state. */
export function revoke(login: Resource): { readonly login: Resource } {
  return { login: { ...login, revoked: true } }
}
