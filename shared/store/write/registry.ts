/**
 * The rules for users, memberships, policies and bots, whatever path a write takes: REST, a bundle, a bot or
 * an administration route. The service's own work (no membership) is trusted.
 */
import type { Principal } from '../../access/principal.ts'
import { badRequest } from '../../errors.ts'
import { isObject, parseReference, type Resource, referenceIn } from '../../fhir/resource.ts'
import { checkBot } from '../../fhir/schedule.ts'
import type { Condition } from '../../query/search-request.ts'
import type { Keys } from '../index/keys.ts'
import { readMany } from '../read/read-judged.ts'
import type { Repository } from '../repository.ts'
import type { Store } from '../rows/context.ts'
import { searchFor } from '../rows/lookups.ts'
import { readRow } from '../rows/read.ts'
import { parseVersion, toVersion } from '../rows/rows.ts'
import { BOT } from '../rows/schedules.ts'
import { REGISTRY_PROJECT } from '../rows/tenants.ts'
import { search } from '../search/page.ts'

type UniqueValue = { readonly scope: string; readonly value: string }

/** One User an address and scope, one membership an external id and Project; the database enforces it. */
export function uniqueValues(resource: Resource): readonly UniqueValue[] | undefined {
  const projectId = parseReference(referenceIn(resource.project))?.id
  if (resource.resourceType === 'User') {
    const { email } = resource
    return typeof email === 'string' ? [{ scope: projectId ?? 'server', value: email }] : []
  }
  if (resource.resourceType === 'ProjectMembership') {
    const { externalId } = resource
    return typeof externalId === 'string'
      ? [{ scope: `externalId ${projectId}`, value: externalId }]
      : []
  }
  return undefined
}

/** Registry rows are filed under the Project they name; addresses are compared in lower case. */
export function filed(resource: Resource): Resource {
  const { resourceType: type } = resource
  if (type !== 'User' && type !== 'ProjectMembership') return resource
  const project = parseReference(referenceIn(resource.project))?.id
  const { email } = resource
  return {
    ...resource,
    ...(project === undefined ? {} : { meta: { ...resource.meta, project } }),
    ...(typeof email === 'string' ? { email: email.trim().toLowerCase() } : {}),
  }
}

const PROFILES = new Set(['Patient', 'Practitioner', 'RelatedPerson', 'Bot', 'ClientApplication'])

/** Key that the ProjectMemberships of this profile hold; undefined for what is no profile. */
export function profileKey(keys: Keys, type: string, id: string): bigint | undefined {
  if (!PROFILES.has(type)) return undefined
  const p = keys.param(REGISTRY_PROJECT, 'ProjectMembership', 'profile')
  return keys.reference(p, keys.target(REGISTRY_PROJECT, `${type}/${id}`))
}

/** Errors: 400 for what a membership must not be or become, and for a Bot that cannot run as it says. */
export async function checkChange(
  store: Store,
  principal: Principal,
  before: Resource | undefined,
  after: Resource,
): Promise<void> {
  if (principal.membershipId === undefined) return
  if (after.resourceType === BOT) checkBot(after)
  if (after.resourceType !== 'ProjectMembership') return
  if (before === undefined) await checkNewMember(store, principal, after)
  else if (!principal.isSuperAdmin && referenceIn(before.profile) !== referenceIn(after.profile)) {
    throw badRequest('Cannot change profile', 'profile')
  }
  const projectId = parseReference(referenceIn(after.project))?.id ?? ''
  const { project } = principal
  const home = projectId === project.id ? project : { id: projectId }
  const read = (references: readonly { type: string; id: string }[]) =>
    readMany(store, serviceOf(principal), references)
  await requirePolicies(read, home, after, principal.isSuperAdmin)
}

/** Errors: 400 for the owner's membership, and for a policy in use. */
export async function checkDeletion(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  if (principal.membershipId === undefined) return
  if (type === 'ProjectMembership') await requireNoOwner(store, principal, id)
  if (type === 'AccessPolicy') await requireUnused(store, principal, id)
}

async function checkNewMember(
  store: Store,
  principal: Principal,
  membership: Resource,
): Promise<void> {
  const [projectId, profile, user] = [membership.project, membership.profile, membership.user].map(
    (value) => parseReference(referenceIn(value)),
  )
  if (projectId?.type !== 'Project') throw badRequest('Project is required', 'project')
  if (!principal.isSuperAdmin && projectId.id !== principal.project.id) {
    throw badRequest('Project must be your own', 'project')
  }
  const service = serviceOf(principal)
  const [profileFound, userFound] = await readMany(
    store,
    service,
    [profile, user].map((found) => found ?? { type: 'User', id: '-' }),
  )
  const profileOf = profileFound?.content === undefined ? undefined : parseVersion(profileFound)
  if (profileOf?.meta?.project !== projectId.id) {
    throw badRequest('Profile does not belong to project', 'profile')
  }
  const userOf = userFound?.content === undefined ? undefined : parseVersion(userFound)
  if (userOf === undefined) throw badRequest('User not found', 'user')
  if (principal.isSuperAdmin) return
  const isOwn = userOf.meta?.project === projectId.id
  if (isOwn && (userOf.resourceType !== 'User' || userOf.project !== undefined)) return
  const condition = referenceCondition('user', `User/${userOf.id}`)
  const own = { ...service, isSuperAdmin: false, rules: undefined }
  const { versions } = await search(store, own, searchFor('ProjectMembership', [condition], 1, []))
  // A User that nobody invited here is as unknown as one that does not exist.
  if (versions.length === 0) throw badRequest('User not found', 'user')
}

/** A Project as far as its policies go. */
interface PolicyHome {
  readonly id: string
  /** Ids of Projects whose policies it may use. */
  readonly links?: readonly string[]
}

/**
 * A membership names policies of its Project, or of one that this links to. Only a caller who may see all
 * Projects learns that a policy is in another one. Errors: 400.
 */
export async function requirePolicies(
  read: (references: readonly { type: string; id: string }[]) => ReturnType<Repository['readMany']>,
  home: PolicyHome,
  membership: Readonly<Record<string, unknown>>,
  seesAll: boolean,
): Promise<void> {
  const named = policiesOf(membership)
  if (named.length === 0) return
  const parsed = named.map(({ reference }) => {
    const found = parseReference(reference)
    return found?.type === 'AccessPolicy' ? found : { type: 'AccessPolicy', id: '-' }
  })
  const found = await read(parsed)
  for (const [i, { reference, path }] of named.entries()) {
    const version = found[i]
    const place = version?.content === undefined ? undefined : parseVersion(version).meta?.project
    if (place === home.id || (place !== undefined && home.links?.includes(place))) continue
    const problem =
      seesAll && place !== undefined ? 'does not belong to this project' : 'does not exist'
    throw badRequest(`Access policy ${reference ?? 'without a reference'} ${problem}`, path)
  }
}

function policiesOf(
  membership: Readonly<Record<string, unknown>>,
): { reference: string | undefined; path: string }[] {
  const { access, accessPolicy } = membership
  const older =
    accessPolicy === undefined
      ? []
      : [{ reference: referenceIn(accessPolicy), path: 'accessPolicy' }]
  const items: readonly unknown[] = Array.isArray(access) ? access : []
  const newer = items.map((item, i) => ({
    reference: isObject(item) ? referenceIn(item.policy) : undefined,
    path: `access[${i}].policy`,
  }))
  return [...older, ...newer]
}

async function requireNoOwner(store: Store, principal: Principal, id: string): Promise<void> {
  const row = await readRow(store, principal, 'ProjectMembership', id)
  if (row === undefined || row.content === null) return
  const membership = parseVersion(toVersion(row))
  const project = parseReference(referenceIn(membership.project))
  if (project === undefined) return
  const [found] = await readMany(store, serviceOf(principal), [project])
  const owner = found?.content === undefined ? undefined : parseVersion(found).owner
  if (owner === undefined || referenceIn(owner) !== referenceIn(membership.user)) return
  throw badRequest('Cannot delete the owner of the project')
}

async function requireUnused(store: Store, principal: Principal, id: string): Promise<void> {
  const reference = `AccessPolicy/${id}`
  const condition = referenceCondition('access-policy', reference)
  const service = serviceOf(principal)
  const { versions } = await search(
    store,
    service,
    searchFor('ProjectMembership', [condition], 1, []),
  )
  const [user] = versions
  if (user === undefined) return
  // A policy may be used by a Project that links to this one, whose memberships are not to be named.
  const isOwn = principal.isSuperAdmin || parseVersion(user).meta?.project === principal.project.id
  const by = isOwn ? `ProjectMembership/${user.id}` : 'a membership of another project'
  throw badRequest(`Cannot delete ${reference}: referenced by ${by}`)
}

/** The service itself, in the Project of the caller. */
function serviceOf(principal: Principal): Principal {
  return {
    ...principal,
    membershipId: undefined,
    isSuperAdmin: true,
    isProjectAdmin: true,
    rules: undefined,
  }
}

function referenceCondition(code: string, reference: string): Condition {
  return { code, type: 'reference', modifier: undefined, values: [reference] }
}
