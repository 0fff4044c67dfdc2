/** The rights that a ClientApplication or Bot has by its memberships, as they are stored now. */
import { hasAllRights, outranks, type Rights } from '../access/guarded/elements.ts'
import type { Principal } from '../access/principal.ts'
import { projectContext } from '../access/project-context.ts'
import { refused } from '../errors.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Database } from '../platform/postgres/database.ts'
import type { Connection } from '../platform/postgres/statement.ts'
import type { OwnParametersReader } from '../store/index/custom-parameters.ts'
import { Keys } from '../store/index/keys.ts'
import { readSalt } from '../store/rows/tenants.ts'
import { type MembershipRows, readContext, readMembershipsOf } from './memberships.ts'
import { rulesOf } from './principals.ts'

/** The rights of each membership with this profile, `Type/id`; undefined where they cannot be known. */
export type ProgramRights = (
  connection: Connection,
  profile: string,
) => Promise<readonly (Rights | undefined)[]>

/**
 * Checks that a program, whose code or keys are about to be written, has no more rights than the writer. Answers
 * how many memberships it has. Errors: 403.
 */
export async function requireRightsOver(
  programRights: ProgramRights,
  connection: Connection,
  principal: Principal,
  program: string,
): Promise<number> {
  if (hasAllRights(principal)) return 0
  const rights = await programRights(connection, program)
  if (rights.some((found) => found === undefined || outranks(found, principal))) {
    throw refused(`The membership of ${program} has more rights than yours`)
  }
  return rights.length
}

/** One statement, for the salt of row ids. */
export async function openProgramRights(
  database: Database,
  own: OwnParametersReader,
  options: { readonly openPatientAccess?: boolean } = {},
): Promise<ProgramRights> {
  const keys = new Keys(await readSalt(database))
  return async (connection, profile) => {
    const place = { database: connection, keys }
    const memberships = await readMembershipsOf(place, profile)
    return Promise.all(memberships.map((membership) => rightsBy(place, membership)))
  }

  async function rightsBy(
    place: MembershipRows,
    membership: Resource,
  ): Promise<Rights | undefined> {
    // One that is not active may be made so without another look at the program.
    const context = await readContext(place, membership)
    if (context === undefined) return undefined
    const { project, number } = context
    const parameters = await own.compiled(place.database, number, context.own)
    const { id, superAdmin } = projectContext(project, number)
    return {
      project: { id },
      isSuperAdmin: superAdmin,
      isProjectAdmin: superAdmin || membership.admin === true,
      rules: rulesOf(membership, context, parameters, options).rules,
    }
  }
}
