/**
 * Grants in effective order: the first that fits the interaction, the type and the resource decides on its fields and
 * write constraints.
 */

import { hash } from 'node:crypto'
import { memoFor } from '../core/cache.ts'
import {
  type Grant,
  INTERACTIONS,
  type Interaction,
  plainGrant,
  READONLY,
  type Rules,
} from './grant.ts'
import type { Principal } from './principal.ts'

/** Types stored in the system project instead of the Project of the resource. */
export const REGISTRY_TYPES: ReadonlySet<string> = new Set([
  'Project',
  'ProjectMembership',
  'User',
  'Login',
  'JsonWebKey',
  'DomainConfiguration',
  'UserSecurityRequest',
])

export const SUPER_ADMIN_ONLY: ReadonlySet<string> = new Set([
  'Login',
  'JsonWebKey',
  'DomainConfiguration',
])

const PROJECT_ADMIN: ReadonlyMap<string, ReadonlySet<Interaction>> = new Map([
  ['Project', new Set<Interaction>([...READONLY, 'update'])],
  ['ProjectMembership', new Set<Interaction>(INTERACTIONS)],
  ['User', new Set<Interaction>([...READONLY, 'update'])],
  ['UserSecurityRequest', new Set<Interaction>(READONLY)],
])

const WRITES: ReadonlySet<Interaction> = new Set(['create', 'update', 'delete'])

export const NAMED_WRITE_TYPES: ReadonlySet<string> = new Set([
  'AccessPolicy',
  'SearchParameter',
  'SmartAppLaunch',
])

/** Checks the table of admin and protected types, then the policy regardless of its criteria. */
export function may(principal: Principal, type: string, interaction: Interaction): boolean {
  const { rules, isSuperAdmin, isProjectAdmin } = principal
  if (isSuperAdmin && rules === undefined) return true
  if (REGISTRY_TYPES.has(type)) {
    if (SUPER_ADMIN_ONLY.has(type) && !isSuperAdmin) return false
    const isScoped =
      rules?.scoped === undefined || fitting(rules.scoped, type, interaction).length > 0
    if (!isProjectAdmin) {
      return isScoped && (ownUserGrants(principal, type, interaction)?.length ?? 0) > 0
    }
    if (isSuperAdmin) return grantsFor(principal, type, interaction)?.length !== 0
    if (!PROJECT_ADMIN.get(type)?.has(interaction)) return false
    return isScoped
  }
  if (rules === undefined && needsName(principal, type, interaction)) return false
  return grantsFor(principal, type, interaction)?.length !== 0
}

export function mayReadAny(principal: Principal): boolean {
  const { rules } = principal
  if (rules === undefined || rules.grants.some(({ interactions }) => interactions.has('read'))) {
    return true
  }
  return [...REGISTRY_TYPES].some((type) => may(principal, type, 'read'))
}

function needsName({ isProjectAdmin }: Principal, type: string, interaction: Interaction): boolean {
  return !isProjectAdmin && NAMED_WRITE_TYPES.has(type) && WRITES.has(interaction)
}

/** In the order to try them. Undefined: no policy applies. `may` decides on the type. */
export function grantsFor(
  principal: Principal,
  type: string,
  interaction: Interaction,
): readonly Grant[] | undefined {
  const { rules, isSuperAdmin } = principal
  if (type === 'User') {
    const own = ownUserGrants(principal, type, interaction)
    if (own !== undefined) return own
  }
  const isAllowed = rules === undefined || fitting(rules.grants, type, interaction).length > 0
  const ownJobs = isAllowed ? ownJobGrants(principal, type, interaction) : undefined
  if (ownJobs !== undefined) return ownJobs
  // A policy does not limit administrators in the registry, a scope does.
  const isOfAdmins = REGISTRY_TYPES.has(type) && !isSuperAdmin
  const grants = isOfAdmins ? rules?.scoped : rules?.grants
  if (rules === undefined || grants === undefined) return undefined
  const isNamedOnly = needsName(principal, type, interaction)
  const key = [type, interaction, isNamedOnly ? 'named' : '', isOfAdmins ? 'scoped' : ''].join(' ')
  return tried(rules, key, () => {
    const fits = fitting(grants, type, interaction)
    return untilPlain(isNamedOnly ? fits.filter(({ isNamed }) => isNamed) : fits)
  })
}

const tried = memoFor<Rules, readonly Grant[]>()

/** An entry for the type precedes `*`, which never covers the registry. */
function fitting(grants: readonly Grant[], type: string, interaction: Interaction) {
  const fits = grants.filter(({ interactions }) => interactions.has(interaction))
  const own = fits.filter((grant) => grant.type === type)
  const others = REGISTRY_TYPES.has(type) ? [] : fits.filter((grant) => grant.type === '*')
  const all = [...own, ...others]
  // A Binary has no search parameters.
  return type === 'Binary' ? all.map((grant) => ({ ...grant, criteria: [] })) : all
}

function untilPlain(grants: readonly Grant[]): readonly Grant[] {
  const plain = grants.findIndex(({ criteria }) => criteria.length === 0)
  return plain === -1 ? grants : grants.slice(0, plain + 1)
}

// A member's own User: non-admin members read all of it and change its names.

const ALLOWED: readonly Interaction[] = ['read', 'update']
const KEPT = [
  'identifier',
  'externalId',
  'email',
  'emailVerified',
  'admin',
  'project',
  'passwordHash',
  'mfaSecret',
  'mfaRequired',
  'mfaEnrolled',
  'provenEmail',
  'extension',
]

/** Returns undefined when the policy decides, as for admins and other types. */
function ownUserGrants(
  principal: Principal,
  type: string,
  interaction: Interaction,
): readonly Grant[] | undefined {
  const { user, isProjectAdmin } = principal
  if (type !== 'User' || isProjectAdmin || user === undefined) return undefined
  if (!ALLOWED.includes(interaction)) return []
  return ownGrants(principal, type, () => [
    {
      ...plainGrant(type, ALLOWED, 'own User'),
      criteria: [{ code: '_id', type: 'token', modifier: undefined, values: [user] }],
      criteriaTexts: [`User?_id=${user}`],
      readonly: KEPT,
    },
  ])
}

const ownGrants = memoFor<Principal, readonly Grant[]>()

/** Returns AccessPolicy entries: expanded, after scopes and admin rights. */
export function effectiveEntries(principal: Principal): readonly object[] {
  const registry = [...REGISTRY_TYPES].flatMap((resourceType) => {
    const allowed = INTERACTIONS.filter((item) => may(principal, resourceType, item))
    return allowed.length === 0 ? [] : [{ resourceType, ...interactionElement(allowed) }]
  })
  const grants = principal.rules?.grants.filter(({ type }) => !REGISTRY_TYPES.has(type))
  return [...(grants?.map(toPolicyEntry) ?? [{ resourceType: '*' }]), ...registry]
}

export function toPolicyEntry({
  type,
  interactions,
  criteriaTexts,
  hidden,
  readonly,
}: Grant): object {
  const criteria = criteriaTexts.filter((text) => text.startsWith(`${type}?`))
  return {
    resourceType: type,
    ...(criteria.length === 0 ? {} : { criteria: criteria.join('&') }),
    ...interactionElement(INTERACTIONS.filter((item) => interactions.has(item))),
    ...(hidden.length === 0 ? {} : { hiddenFields: hidden }),
    ...(readonly.length === 0 ? {} : { readonlyFields: readonly }),
  }
}

function interactionElement(interaction: readonly Interaction[]) {
  return interaction.length === INTERACTIONS.length ? {} : { interaction }
}

/** Job records: the requester and project admins read them; only the service writes them. */
const JOBS: ReadonlySet<string> = new Set(['AsyncJob', 'BulkDataExport'])

function ownJobGrants(
  principal: Principal,
  type: string,
  interaction: Interaction,
): readonly Grant[] | undefined {
  const { profile, isProjectAdmin, isSuperAdmin } = principal
  if (!JOBS.has(type) || isSuperAdmin) return undefined
  if (!READONLY.includes(interaction)) return []
  if (isProjectAdmin) return undefined
  if (profile === undefined) return []
  return ownGrants(principal, type, () => [
    {
      ...plainGrant(type, READONLY, 'own jobs'),
      criteria: [{ code: '_author', type: 'reference', modifier: undefined, values: [profile] }],
      criteriaTexts: [`${type}?_author=${profile}`],
    },
  ])
}

/** Base64. Equal digests mean equal visibility. */
export function rightsDigest({ rules, isProjectAdmin, isSuperAdmin, project }: Principal): string {
  const told = [rules?.grants, rules?.scoped].map((grants) =>
    grants
      ?.filter(({ interactions }) => interactions.has('search') || interactions.has('read'))
      .map(({ type, interactions, criteria, hidden }) => {
        return { type, interactions: [...interactions].sort(), criteria, hidden }
      }),
  )
  const linked = project.linked?.map(({ id, exports }) => [id, exports])
  const links = linked === undefined || linked.length === 0 ? {} : { linked }
  const text = JSON.stringify({ told, isProjectAdmin, isSuperAdmin, ...links })
  return hash('sha256', text, 'base64')
}
