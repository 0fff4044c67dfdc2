/** The member that a job belongs to, with the rights it has now, within the scope it was asked for in. */
import { createHash } from 'node:crypto'
import type { Principal } from '../../access/principal.ts'
import { type Acting, actingSession } from '../../identity/within.ts'
import type { Services } from '../../services.ts'

type Caller = Pick<Principal, 'profile' | 'clientId'> & Acting

/** Undefined when the membership is no longer active. */
export async function memberOf(
  { principals }: Services,
  caller: Caller,
): Promise<Principal | undefined> {
  const session = await actingSession(principals, caller)
  if (session === undefined) return undefined
  const { profile, clientId } = caller
  return { ...session.principal, profile, clientId }
}

/** A digest of all that decides what a member reads: an export is made under one policy, or not at all. */
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
