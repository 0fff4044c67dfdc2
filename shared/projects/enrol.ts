/**
 * Creates user, profile, membership and mail of an invite in one transaction. Invites for one address or external id
 * are serialized, so that their decisions stay valid.
 */

import { provenApplicant } from '../access/credentials/hashing.ts'
import { hashPassword, requireGoodPassword } from '../access/credentials/passwords.ts'
import {
  type Principal,
  type ProjectContext,
  servicePrincipal,
  systemPrincipal,
} from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import {
  badRequest,
  conflict,
  forbiddenByPlatform,
  HttpError,
  multipleMatches,
} from '../core/errors.ts'
import { LOST, retryOnConflict } from '../core/retry.ts'
import { requireNamedMail } from '../fhir/bot-declarations.ts'
import {
  isObject,
  parseReference,
  type Reference,
  type Resource,
  referenceIn,
  referenceTo,
} from '../fhir/resource.ts'
import { displayName, type Session } from '../identity/principals.ts'
import { requirePolicies } from '../identity/write-rules.ts'
import { givenFields, recordChange } from '../request/admin-audit.ts'
import type { Services } from '../request/services.ts'
import type { Condition } from '../search/language/search-request.ts'
import { equals, exactly, find, searchFor } from '../store/lookups.ts'
import type { Transaction } from '../store/repository.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { WriteResult } from '../store/rows/version.ts'
import type { TransactionLocks } from '../store/transaction.ts'
import { requireValid } from '../validation/validate.ts'
import { defaultPolicy } from './default-policies.ts'
import { defined } from './fields.ts'
import {
  type Enrollee,
  findOrCreateProfile,
  type Invitation,
  type Inviter,
  namedReference,
  profileIn,
  profileSearch,
  readInvitation,
  withoutPlatformMeta,
} from './invitation.ts'
import { inviteMail, welcomeMail } from './mail-texts.ts'
import {
  administeredProject,
  isProven,
  revokeUnprovenLogins,
  voidCredentials,
} from './ownership.ts'
import { createSecurityRequest } from './security-requests.ts'
import { createUser, findUser } from './users.ts'

interface Enrolment {
  readonly membership: WriteResult
  readonly outcome: 'created' | 'updated'
  /** The User whose earlier logins are revoked, as their owner is unknown. */
  readonly unprovenUserId?: string | undefined
}

const MEMBER = 'User is already a member of this project'
const SEVERAL =
  'User has several memberships that fit: give the externalId of one, or change one by its id'
/** Per user and Project. */
const MOST_MEMBERSHIPS = 100

/** Retries when a membership is deleted during its update. Errors: 400, 409, 412. */
async function enrol(services: Services, inviter: Inviter, enrollee: Enrollee): Promise<Enrolment> {
  return retryOnConflict<Enrolment>(async () => {
    try {
      return await services.repository.transaction(
        (inside) => enrolIn(services, inside, inviter, enrollee),
        enrollmentLocks(inviter, enrollee),
      )
    } catch (error) {
      const isGone = error instanceof HttpError && error.status === 410
      if (!isGone) throw error
      return LOST
    }
  })
}

/** Locks the criteria of the decision before the transaction's snapshot. */
function enrollmentLocks(
  { project }: Inviter,
  { resourceType, email, externalId }: Enrollee,
): TransactionLocks {
  const byEmail =
    email === undefined
      ? []
      : [searchFor('User', [exactly('email', email)], 1, []), profileSearch(resourceType, email)]
  const inProject = equals('project', 'reference', `Project/${project.id}`)
  const byExternalId =
    externalId === undefined
      ? []
      : [searchFor('ProjectMembership', [inProject, exactly('external-id', externalId)], 1, [])]
  const conditions = [...byEmail, ...byExternalId]
  return { principal: systemPrincipal(project), conditions, oneState: true }
}

async function enrolIn(
  services: Services,
  inside: Transaction,
  inviter: Inviter,
  enrollee: Enrollee,
): Promise<Enrolment> {
  const { caller, project } = inviter
  const { resourceType, scope, email, profile: wanted } = enrollee
  const actor = servicePrincipal(SYSTEM_PROJECT, caller)
  const home = await readProject(inside, project)
  // Another Project may have a policy with the same id.
  const read = (references: readonly { type: string; id: string }[]) =>
    inside.readMany(systemPrincipal(project), references)
  const policies = memberPolicies(enrollee, home)
  await requirePolicies(read, project, policies, caller.isSuperAdmin)
  const chosen = wanted && (await profileIn(inside, project, wanted, resourceType))

  const scopedTo = scope === 'project' ? project.id : undefined
  const known = email === undefined ? undefined : await findUser(inside, email, scopedTo)
  const existing = await existingMembership(inside, inviter, enrollee, known)
  const isVoid = known !== undefined && (await voidCredentials(inside, known))
  const unprovenUserId = known === undefined || isProven(known) ? undefined : known.id
  if (existing !== undefined) {
    const membership = await update(inside, inviter, existing, enrollee)
    if (known !== undefined && isVoid)
      await invite(services, inside, { home: inviter, mail: enrollee, user: known, isVoid: true })
    return { membership, outcome: 'updated', unprovenUserId }
  }
  const user = known ?? (await createUser(inside, actor, newUser(enrollee, scopedTo)))
  const profile = chosen ?? (await findOrCreateProfile(inside, inviter, enrollee))
  const membership = await inside.create(actor, {
    ...buildMembership(inviter, enrollee, policies),
    resourceType: 'ProjectMembership',
    meta: { project: project.id },
    project: { reference: `Project/${project.id}`, display: project.name },
    user: namedReference(user, email),
    profile: namedReference(profile, displayName(profile)),
  })
  await recordChange(inside, caller, {
    project,
    interaction: 'create',
    target: `ProjectMembership/${membership.id}`,
    fields: givenFields(parseVersion(membership)),
  })
  const isNew = known === undefined || !isProven(known)
  const mailed = { home: inviter, mail: enrollee, user, isVoid }
  if (isNew) await invite(services, inside, mailed)
  else await welcome(services, inside, mailed)
  return { membership, outcome: 'created', unprovenUserId }
}

/** Returns the membership to update; undefined: create one. Errors: 409, 412 for several matches. */
async function existingMembership(
  inside: Transaction,
  { project }: Inviter,
  enrollee: Enrollee,
  known: Resource | undefined,
): Promise<Resource | undefined> {
  const { email, scope, externalId, upsert, forceNewMembership } = enrollee
  const own = systemPrincipal(project, 'project')
  const findMemberships = (condition: Condition) =>
    find(inside, own, 'ProjectMembership', { conditions: [condition], count: MOST_MEMBERSHIPS })
  const ofUser = (user: Resource | undefined) =>
    user === undefined ? [] : findMemberships(equals('user', 'reference', referenceTo(user)))

  const holders =
    externalId === undefined ? [] : await findMemberships(exactly('external-id', externalId))
  const holder = holders.find((membership) => membership.externalId === externalId)
  const taken = conflict('A membership with this externalId already exists')
  if (forceNewMembership) {
    if (holder !== undefined) throw taken
    return undefined
  }
  if (email !== undefined) {
    const otherScope = scope === 'project' ? undefined : project.id
    const other = await ofUser(await findUser(inside, email, otherScope))
    if (other.length > 0) throw conflict(MEMBER)
  }
  const memberships = await ofUser(known)
  if (memberships.length > 0) {
    if (!upsert) throw conflict(MEMBER)
    const same = memberships.filter((membership) => hasProfile(membership, enrollee))
    const [first, second] = same
    if (first === undefined) throw conflict(`${MEMBER} with a different profile`)
    const named = holder && same.find(({ id }) => id === holder.id)
    if (holder !== undefined && named === undefined) throw taken
    if (named === undefined && second !== undefined) throw multipleMatches(SEVERAL)
    return named ?? first
  }
  if (holder === undefined) return undefined
  // Without an address, the external id identifies the person.
  if (upsert && email === undefined && hasProfile(holder, enrollee)) return holder
  throw taken
}

function hasProfile(membership: Resource, { profile, resourceType }: Enrollee): boolean {
  const current = referenceIn(membership.profile)
  return profile === undefined
    ? parseReference(current)?.type === resourceType
    : current === profile.reference
}

async function update(
  inside: Transaction,
  { caller, project }: Inviter,
  existing: Resource,
  { details }: Enrollee,
): Promise<WriteResult> {
  const { id = '' } = existing
  const next = { ...existing, ...details }
  requireValid(withoutPlatformMeta(next), { strict: true })
  const fields = givenFields({ resourceType: 'ProjectMembership', ...details })
  const written = await inside.patch(
    // The rules of memberships apply, such as those for the owner.
    { ...caller, project, rules: undefined, declared: undefined },
    { type: 'ProjectMembership', id },
    (current) => ({
      ...current,
      ...details,
    }),
  )
  if (written.outcome !== 'unchanged') {
    await recordChange(inside, caller, {
      project,
      interaction: 'update',
      target: `ProjectMembership/${id}`,
      fields,
    })
  }
  return written
}

function newUser(enrollee: Enrollee, projectId: string | undefined) {
  const { firstName, lastName, email, passwordHash, mfaRequired } = enrollee
  const isProven = passwordHash !== undefined && email !== undefined
  const user = { firstName, lastName, email, projectId, passwordHash, isProven }
  requireValid({ resourceType: 'User', firstName, lastName }, { strict: true })
  return mfaRequired ? { ...user, mfaRequired } : user
}

/** Returns the policies of a new member: those of the invitation, otherwise the default of the Project. */
function memberPolicies(
  { resourceType, details: { accessPolicy, access, admin } }: Enrollee,
  home: Resource,
): Readonly<Record<string, unknown>> {
  if (accessPolicy !== undefined || access !== undefined) return defined({ accessPolicy, access })
  return defined({ accessPolicy: defaultPolicy(home, resourceType, admin === true) })
}

function buildMembership(
  { user, project }: Inviter,
  { details }: Enrollee,
  policies: Readonly<Record<string, unknown>>,
): Record<string, unknown> {
  const membership = {
    ...(user === undefined ? {} : { invitedBy: user }),
    ...details,
    ...policies,
  }
  const anybody = { reference: `Patient/${project.id}` }
  const whole = {
    ...membership,
    resourceType: 'ProjectMembership',
    project: { reference: `Project/${project.id}` },
    user: { reference: `User/${project.id}` },
    profile: anybody,
  }
  requireValid(whole, { strict: true })
  return membership
}

async function readProject(inside: Transaction, project: ProjectContext): Promise<Resource> {
  const [found] = await inside.readMany(systemPrincipal(project), [
    { type: 'Project', id: project.id },
  ])
  return found?.content === undefined ? { resourceType: 'Project' } : parseVersion(found)
}

interface Invited {
  readonly home: Inviter
  readonly mail: Enrollee
  readonly user: Resource
  readonly isVoid: boolean
}

/** Mails a link to set a password to a User without one. A loss of credentials is always mailed. */
async function invite(
  { config }: Services,
  inside: Transaction,
  { home: { caller, project }, mail: { email, sendEmail }, user, isVoid }: Invited,
): Promise<void> {
  if (email === undefined) return
  const link = await createSecurityRequest(inside, servicePrincipal(SYSTEM_PROJECT, caller), {
    type: 'invite',
    user,
  })
  const mail = inviteMail(config, email, { projectName: project.name, link, isVoid })
  if (sendEmail || isVoid) await inside.addMail(project.id, mail)
}

async function welcome(
  { config }: Services,
  inside: Transaction,
  { home: { project }, mail: { email, sendEmail }, user }: Invited,
): Promise<void> {
  if (email === undefined || !sendEmail) return
  await inside.addMail(project.id, welcomeMail(config, user, project.name))
}

const OWNER_ALONE =
  'Only its owner sets the password of a server scoped user: leave it out, or invite with scope "project"'

interface Invitee {
  readonly user: Reference | undefined
  readonly isStrict?: boolean
  readonly projectId: string
  readonly body: Record<string, unknown>
}

/** `user`: the inviting person, if any. Errors: 400, 403, 404, 409, 412, 429. */
export async function inviteMember(
  services: Services,
  caller: Principal,
  { user, projectId, body, isStrict = false }: Invitee,
): Promise<Enrolment> {
  const project = await administeredProject(
    services.principals,
    caller,
    projectId,
    ['ProjectMembership', 'create'],
    ['User', 'create'],
  )
  const { password, ...invitation }: Invitation = readInvitation(body, isStrict)
  if (invitation.email !== undefined) requireNamedMail(caller.declared, invitation.email)
  if (caller.declared !== undefined && invitation.details.admin === true) {
    throw forbiddenByPlatform('A Bot that names its secrets or hosts invites no administrators')
  }
  // The address may belong to a person of other Projects, where this password would give access.
  const isTheirs = invitation.scope === 'server' && !caller.isSuperAdmin
  if (password !== undefined && isTheirs) throw badRequest(OWNER_ALONE, 'password')
  const passwordHash = await hashGivenPassword(services, caller, password)
  const inviter = { caller, user, project }
  const enrolled = await enrol(services, inviter, { ...invitation, passwordHash })
  if (enrolled.unprovenUserId !== undefined)
    await revokeUnprovenLogins(services, enrolled.unprovenUserId)
  return enrolled
}

async function hashGivenPassword(
  { config, hashing }: Services,
  { membershipId }: Principal,
  password: string | undefined,
): Promise<string | undefined> {
  if (password === undefined) return undefined
  await requireGoodPassword(password, 'password', config)
  return await hashing.run(provenApplicant(membershipId ?? ''), () => hashPassword(password))
}

/** Returns undefined for clients, which are not Users. */
export function sessionUser({ membership }: Session): Reference | undefined {
  const { user } = membership
  const reference = isObject(user) ? (user as Reference) : undefined
  return parseReference(reference?.reference)?.type === 'User' ? reference : undefined
}
