/** The User of a member, who is no admin: read as a whole, changed in its names. */
import type { Grant, Interaction } from './grant.ts'
import type { Principal } from './principal.ts'

const ALLOWED: readonly Interaction[] = ['read', 'update']
const KEPT = [
  ...['identifier', 'externalId', 'email', 'emailVerified', 'admin', 'project'],
  ...['passwordHash', 'mfaSecret', 'mfaRequired', 'mfaEnrolled', 'provenEmail', 'extension'],
]

/** What lets it through, and no other; undefined for admins, for members without one, for other types. */
export function ownUserGrants(
  principal: Principal,
  type: string,
  interaction: Interaction,
): readonly Grant[] | undefined {
  const { user, isProjectAdmin } = principal
  if (type !== 'User' || isProjectAdmin || user === undefined) return undefined
  if (!ALLOWED.includes(interaction)) return []
  const known = made.get(principal)
  if (known !== undefined) return known
  const grants: readonly Grant[] = [
    {
      source: 'own User',
      type,
      interactions: new Set(ALLOWED),
      criteria: [{ code: '_id', type: 'token', modifier: undefined, values: [user] }],
      said: [`User?_id=${user}`],
      hidden: [],
      readonly: KEPT,
      constraints: [],
      account: undefined,
      isNamed: false,
    },
  ]
  made.set(principal, grants)
  return grants
}

const made = new WeakMap<Principal, readonly Grant[]>()
