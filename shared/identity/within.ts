/**
 * A Session as far as the scope of a request reaches. Whatever is carried out later for a member carries that
 * scope with it and comes through here: bot runs, accepted bundles, exports, imports, long jobs.
 */
import type { Principal } from '../access/principal.ts'
import { narrowed, smartScopes } from '../access/scopes.ts'
import type { Principals, Session } from './principals.ts'

export type Scope = Pick<Principal, 'scope' | 'patient'>

/** As whom and how far a job acts; no token is among it. */
export interface Acting extends Scope {
  readonly membershipId: string
}

/** A Session lives for seconds, and so does what is made of it: its rules stay compiled meanwhile. */
const made = new WeakMap<Session, Map<string, Session>>()

/** Never wider than the Session. */
export function within(session: Session, { scope, patient }: Scope): Session {
  const { principal } = session
  if (scope === principal.scope && patient === principal.patient) return session
  const known = made.get(session) ?? new Map<string, Session>()
  const key = `${patient} ${scope}`
  const found = known.get(key) ?? { ...session, principal: narrowed(principal, scope, patient) }
  made.set(session, known.set(key, found))
  return found
}

/** The member with the rights it has now, within the scope of the request; undefined when it is not active. */
export async function actingSession(
  principals: Pick<Principals, 'forMembership'>,
  acting: Acting,
): Promise<Session | undefined> {
  const session = await principals.forMembership(acting.membershipId)
  return session && within(session, acting)
}

/**
 * True when what one request has led to is not more than this Principal may see: it is not narrowed, or its
 * own scope is as wide.
 */
export function covers(principal: Principal, { scope, patient }: Scope): boolean {
  if (principal.rules?.scoped === undefined) return true
  const own = new Set(principal.scope.split(' '))
  const asked = scope.split(' ').filter((word) => smartScopes(word).length > 0)
  return asked.length > 0 && asked.every((word) => own.has(word)) && patient === principal.patient
}
