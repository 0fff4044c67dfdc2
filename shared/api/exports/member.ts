/** The member that a job belongs to, with the rights it has now, within the scope it was asked for in. */
import { createHash } from 'node:crypto'
import type { Principal } from '../../access/principal.ts'
import { narrowRules, smartScopes } from '../../access/scopes.ts'
import type { Services } from '../../services.ts'

type Caller = Pick<Principal, 'scope' | 'patient' | 'profile' | 'clientId'> & {
  readonly membershipId: string
}

/** Undefined when the membership is no longer active. */
export async function memberOf(
  { principals }: Services,
  { membershipId, scope, patient, profile, clientId }: Caller,
): Promise<Principal | undefined> {
  const session = await principals.forMembership(membershipId)
  if (session === undefined) return undefined
  const inContext = patient ?? session.principal.patient
  return {
    ...session.principal,
    rules: narrowRules(session.principal.rules, scope, inContext),
    scope,
    scopes: smartScopes(scope),
    patient: inContext,
    profile,
    clientId,
  }
}

/** Of all that decides what a member reads: an export is made under one policy, or not at all. */
export function rightsDigest({ rules, isProjectAdmin, isSuperAdmin }: Principal): string {
  const told = [rules?.grants, rules?.scoped].map((grants) =>
    grants
      ?.filter(({ interactions }) => interactions.has('search') || interactions.has('read'))
      .map(({ type, interactions, criteria, hidden }) => {
        return { type, interactions: [...interactions].sort(), criteria, hidden }
      }),
  )
  const text = JSON.stringify({ told, isProjectAdmin, isSuperAdmin })
  return createHash('sha256').update(text).digest('base64')
}
