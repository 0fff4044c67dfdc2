/** The member that an export belongs to, with the rights it has now, within the scope it was asked for in. */
import type { Principal } from '../../access/principal.ts'
import { narrowRules, smartScopes } from '../../access/scopes.ts'
import type { Services } from '../../services.ts'
import type { ExportInput } from '../../store/exports/jobs.ts'

/** Undefined when the membership is no longer active. */
export async function memberOf(
  { principals }: Services,
  { membershipId, scope, patient, profile, clientId }: ExportInput,
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
