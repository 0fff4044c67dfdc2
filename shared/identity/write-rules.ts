/** Write rules of users, memberships, policies, clients, configurations and the audit trail, and the rights of programs. */
import { isDeepStrictEqual } from 'node:util'
import { checkPolicy } from '../access/compile.ts'
import { checkClient } from '../access/credentials/clients.ts'
import { claimsService, implementationReferences } from '../access/guarded/elements.ts'
import { hasAllRights, outranks, type Rights } from '../access/guarded/rights.ts'
import {
  checkAgentSettings,
  checkUserOptions,
  requireSupported,
} from '../access/ineffective-elements.ts'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { exportsType, projectContext } from '../access/project-context.ts'
import { badRequest, conflict, forbiddenByPlatform } from '../core/errors.ts'
import {
  asArray,
  isObject,
  parseReference,
  type Resource,
  referenceIn,
  targetIn,
} from '../fhir/resource.ts'
import type { Database } from '../postgres/database.ts'
import type { Connection } from '../postgres/statement.ts'
import { search } from '../search/page.ts'
import { Keys, readSalt } from '../store/index/keys.ts'
import { equals, searchFor } from '../store/lookups.ts'
import { readMany } from '../store/read/read.ts'
import type { Repository } from '../store/repository.ts'
import {
  normalId,
  readRow,
  type StoreContext,
  type WriteAttempt,
  type WriteRule,
} from '../store/rows/context.ts'
import type { OwnParametersReader } from '../store/rows/custom-parameters.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { platformMeta } from '../store/rows/version.ts'
import { checkGuarded, checkGuardedDeletion, readStored } from '../store/write/authorize.ts'
import { type MembershipRows, readContext, readProfileMemberships } from './memberships.ts'
import { compileRules } from './principals.ts'
import { checkOwnerDeletion, checkOwnerStaysActive } from './project-owner.ts'

const CLIENT = 'ClientApplication'

/** `baseUrl`: this service's address, which no external AuditEvent may name as observer. */
export function identityRules(
  programRights: ProgramRights,
  baseUrl: string | undefined,
): readonly WriteRule[] {
  return [
    userRule,
    membershipRule,
    policyRule,
    clientRule(programRights),
    ...configurationRules,
    auditEventRule(baseUrl),
  ]
}

/** Addresses are unique per scope, ignoring case. */
const userRule: WriteRule = {
  type: 'User',
  checkForm: requireSupported,
  file(user) {
    const { email } = user
    const filed = filedInProject(user)
    return typeof email === 'string' ? { ...filed, email: email.trim().toLowerCase() } : filed
  },
  uniqueValues: (user) =>
    typeof user.email === 'string'
      ? [{ scope: referencedProject(user) ?? 'server', value: user.email }]
      : [],
}

/** External ids are unique per Project. */
const membershipRule: WriteRule = {
  type: 'ProjectMembership',
  file: filedInProject,
  check: checkMembership,
  uniqueValues: (membership) =>
    typeof membership.externalId === 'string'
      ? [{ scope: `externalId ${referencedProject(membership)}`, value: membership.externalId }]
      : [],
  checkDeletion: checkOwnerDeletion,
}

const policyRule: WriteRule = {
  type: 'AccessPolicy',
  checkParameters: checkPolicy,
  checkDeletion: requireUnused,
}

/** A client's keys give access to its rights. */
function clientRule(programRights: ProgramRights): WriteRule {
  const check = (store: StoreContext, principal: Principal, id: string) =>
    requireRightsOver(programRights, store.connection, principal, `${CLIENT}/${id}`)
  return {
    type: CLIENT,
    checkForm(client) {
      requireSupported(client)
      checkClient(client)
    },
    async check(attempt) {
      await requireFreeClientId(attempt)
      const changes = checkGuarded(attempt)
      if (changes.length === 0 || attempt.isNew) return
      await check(attempt.store, attempt.principal, attempt.id)
    },
    async checkRemoval(store, principal, id) {
      await check(store, principal, normalId(id))
    },
  }
}

/**
 * The common address finds a client by its id alone. Ids that the service chooses are unique. Errors: 409 for that of a
 * client of another Project, also a deleted one, which may be restored.
 */
async function requireFreeClientId({ store, principal, id, isNew, interaction }: WriteAttempt) {
  if (isNew || interaction !== 'create') return
  const { project } = principal
  const found = await readRow(store, systemPrincipal(project), CLIENT, id)
  if (found === undefined) return
  if (platformMeta({ metaExtension: found.meta_ext }).project === project.id) return
  throw conflict(`${CLIENT}/${id} exists in another project: choose another id`)
}

const configurationRules: readonly WriteRule[] = [
  'Agent',
  'DomainConfiguration',
  'OperationDefinition',
  'UserConfiguration',
].map((type) => ({
  type,
  checkForm(resource: Resource) {
    requireSupported(resource)
    if (type === 'OperationDefinition') checkImplementation(resource)
    if (type === 'Agent') checkAgentSettings(resource)
    if (type === 'UserConfiguration') checkUserOptions(resource)
  },
  check: async (attempt: WriteAttempt) => void checkGuarded(attempt),
  checkDeletion: (store: StoreContext, principal: Principal, id: string) =>
    checkGuardedDeletion(store, principal, type, id),
}))

/** Errors: 400 for an implementation that would not run: a second one, or one that is not a Bot. */
function checkImplementation(definition: Resource): void {
  const [first, ...others] = implementationReferences(definition).map((value) => ({ value }))
  if (first === undefined) return
  const path = 'OperationDefinition.extension'
  if (others.length > 0) throw badRequest('An operation has one implementation', path)
  if (targetIn(first.value)?.type === 'Bot') return
  throw badRequest('The implementation must be a reference to a Bot, as valueReference', path)
}

function auditEventRule(baseUrl: string | undefined): WriteRule {
  return {
    type: 'AuditEvent',
    async check({ principal, interaction, kept }) {
      if (interaction === 'update') throw neverChanged()
      // The service writes its own events with these rights; super admins import those of other servers.
      if (principal.isSuperAdmin) return
      const path = claimsService(kept, baseUrl)
      if (path !== undefined)
        throw forbiddenByPlatform('Only this service records events in its own name', path)
    },
    async checkRemoval() {
      throw neverChanged()
    },
  }
}

/** Only super admins remove AuditEvents, through `$expunge`. */
function neverChanged() {
  return forbiddenByPlatform('An AuditEvent is never changed')
}

function referencedProject(resource: Resource): string | undefined {
  return targetIn(resource.project)?.id
}

/** Registry rows are stored under the Project they name. */
function filedInProject(resource: Resource): Resource {
  const project = referencedProject(resource)
  return project === undefined ? resource : { ...resource, meta: { ...resource.meta, project } }
}

/** Errors: 400 for an invalid membership or change. */
async function checkMembership(attempt: WriteAttempt): Promise<void> {
  const { store, principal, before, kept } = attempt
  if (before === undefined) await checkNewMember(store, principal, kept)
  else if (!principal.isSuperAdmin && referenceIn(before.profile) !== referenceIn(kept.profile)) {
    throw badRequest('Cannot change profile', 'profile')
  }
  await checkOwnerStaysActive(attempt)
  const home = { id: referencedProject(kept) ?? '' }
  const read = (references: readonly { type: string; id: string }[]) =>
    readMany(store, systemPrincipal(principal.project), references)
  // One of another Project that was stored earlier grants nothing; it must not keep a member from being deactivated.
  const isSame =
    before !== undefined &&
    referencedProject(before) === home.id &&
    isDeepStrictEqual(listPolicies(before), listPolicies(kept))
  if (!isSame) await requirePolicies(read, home, kept, principal.isSuperAdmin)
}

async function checkNewMember(
  store: StoreContext,
  principal: Principal,
  membership: Resource,
): Promise<void> {
  const [projectId, profile, user] = [membership.project, membership.profile, membership.user].map(
    (value) => targetIn(value),
  )
  if (projectId?.type !== 'Project') throw badRequest('Project is required', 'project')
  if (!principal.isSuperAdmin && projectId.id !== principal.project.id) {
    throw badRequest('Project must be your own', 'project')
  }
  const service = systemPrincipal(principal.project)
  const [profileFound, userFound] = await readMany(
    store,
    service,
    [profile, user].map((found) => found ?? { type: 'User', id: '-' }),
  )
  const storedProfile = profileFound?.content === undefined ? undefined : parseVersion(profileFound)
  if (storedProfile?.meta?.project !== projectId.id) {
    if (
      storedProfile === undefined ||
      !(await isSharedBot(store, service, projectId, storedProfile))
    ) {
      throw badRequest('Profile does not belong to project', 'profile')
    }
    const isItself = referenceIn(membership.user) === referenceIn(membership.profile)
    if (!isItself) throw badRequest('The user of a Bot is the Bot itself', 'user')
    return
  }
  const storedUser = userFound?.content === undefined ? undefined : parseVersion(userFound)
  if (storedUser === undefined) throw badRequest('User not found', 'user')
  if (principal.isSuperAdmin) return
  const isOwn = storedUser.meta?.project === projectId.id
  if (isOwn && (storedUser.resourceType !== 'User' || storedUser.project !== undefined)) return
  const condition = equals('user', 'reference', `User/${storedUser.id}`)
  const own = { ...service, isSuperAdmin: false, rules: undefined }
  const { versions } = await search(store, own, searchFor('ProjectMembership', [condition], 1, []))
  // A user not invited here looks like a missing one.
  if (versions.length === 0) throw badRequest('User not found', 'user')
}

/** True for a Bot shared by a linked Project; never in a super admin Project. */
async function isSharedBot(
  store: StoreContext,
  service: Principal,
  project: { readonly type: string; readonly id: string },
  bot: Resource,
): Promise<boolean> {
  const home = bot.meta?.project
  if (bot.resourceType !== 'Bot' || home === undefined) return false
  const found = await readMany(store, service, [project, { type: 'Project', id: home }])
  const [own, other] = found.map((one) =>
    one?.content === undefined ? undefined : parseVersion(one),
  )
  if (own === undefined || other === undefined) return false
  const { links = [], superAdmin } = projectContext(own, 0)
  return !superAdmin && links.includes(home) && exportsType(other, 'Bot')
}

/**
 * Requires policies of the membership's Project: a session reads no others. Only callers with access to all Projects
 * learn that a policy is in another. Errors: 400.
 */
export async function requirePolicies(
  read: (references: readonly { type: string; id: string }[]) => ReturnType<Repository['readMany']>,
  home: { readonly id: string },
  membership: Readonly<Record<string, unknown>>,
  seesAll: boolean,
): Promise<void> {
  const named = listPolicies(membership)
  if (named.length === 0) return
  const parsed = named.map(({ reference }) => {
    const found = parseReference(reference)
    return found?.type === 'AccessPolicy' ? found : { type: 'AccessPolicy', id: '-' }
  })
  const found = await read(parsed)
  for (const [i, { reference, path }] of named.entries()) {
    const version = found[i]
    const place = version?.content === undefined ? undefined : parseVersion(version).meta?.project
    if (place === home.id) continue
    const problem =
      seesAll && place !== undefined ? 'does not belong to this project' : 'does not exist'
    throw badRequest(`Access policy ${reference ?? 'without a reference'} ${problem}`, path)
  }
}

function listPolicies(
  membership: Readonly<Record<string, unknown>>,
): { reference: string | undefined; path: string }[] {
  const { access, accessPolicy } = membership
  const older =
    accessPolicy === undefined
      ? []
      : [{ reference: referenceIn(accessPolicy), path: 'accessPolicy' }]
  const newer = asArray(access).map((item, i) => ({
    reference: isObject(item) ? referenceIn(item.policy) : undefined,
    path: `access[${i}].policy`,
  }))
  return [...older, ...newer]
}

/** Another Project may have a policy with the same id. Errors: 400. */
async function requireUnused(store: StoreContext, principal: Principal, id: string): Promise<void> {
  const reference = `AccessPolicy/${id}`
  const stored = await readStored(store, principal, 'AccessPolicy', id)
  const conditions = [
    equals('access-policy', 'reference', reference),
    equals('project', 'reference', `Project/${stored?.meta?.project}`),
  ]
  const service = systemPrincipal(principal.project)
  const asked = searchFor('ProjectMembership', conditions, 1, [])
  const [user] = (await search(store, service, asked)).versions
  if (user === undefined) return
  throw badRequest(`Cannot delete ${reference}: referenced by ProjectMembership/${user.id}`)
}

/**
 * Returns the rights of each membership with profile `Type/id`; undefined where unknown. A linking Project that gives
 * the Bot a membership trusts the Bot's authors: with a Project id, memberships elsewhere are excluded.
 */
export type ProgramRights = (
  connection: Connection,
  profile: string,
  projectId?: string,
) => Promise<readonly (Rights | undefined)[]>

/**
 * Checks that a program, about to get new code or keys, has no more rights than the writer. Returns its number of
 * memberships. Errors: 403.
 */
export async function requireRightsOver(
  programRights: ProgramRights,
  connection: Connection,
  principal: Principal,
  program: string,
): Promise<number> {
  if (hasAllRights(principal)) return 0
  const home = principal.isSuperAdmin ? undefined : principal.project.id
  const rights = await programRights(connection, program, home)
  if (rights.some((found) => found === undefined || outranks(found, principal))) {
    throw forbiddenByPlatform(`The membership of ${program} has more rights than yours`)
  }
  return rights.length
}

/** One statement, for the salt of row ids. */
export async function openProgramRights(
  database: Database,
  own: OwnParametersReader,
  options: { readonly openPatientAccess?: boolean },
): Promise<ProgramRights> {
  const keys = new Keys(await readSalt(database))
  return async (connection, profile, projectId) => {
    const place = { database: connection, keys }
    const memberships = await readProfileMemberships(place, profile, projectId)
    return Promise.all(memberships.map((membership) => rightsBy(place, membership)))
  }

  async function rightsBy(
    place: MembershipRows,
    membership: Resource,
  ): Promise<Rights | undefined> {
    // An inactive membership may become active without another check of the program.
    const context = await readContext(place, membership)
    if (context === undefined) return undefined
    const { project, number } = context
    const parameters = await own.compiled(place.database, number, context.own)
    const { id, superAdmin } = projectContext(project, number)
    return {
      project: { id },
      isSuperAdmin: superAdmin,
      isProjectAdmin: superAdmin || membership.admin === true,
      rules: compileRules(membership, context, parameters, options).rules,
    }
  }
}
