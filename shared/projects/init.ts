/** `Project/$init`: creates a Project with its default client and the owner's membership, if any. */
import { may } from '../access/policy.ts'
import { type Principal, servicePrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT, system } from '../access/project-context.ts'
import type { Config } from '../core/config/config.ts'
import { badRequest, forbidden } from '../core/errors.ts'
import { parseReference, type Resource, referenceIn, referenceTo } from '../fhir/resource.ts'
import { displayName } from '../identity/principals.ts'
import type { Mail } from '../outbound/mails.ts'
import { readInputs } from '../request/parameters.ts'
import { absoluteUrl, textReply, versionHeaders } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion, present } from '../store/rows/rows.ts'
import type { WriteResult } from '../store/rows/version.ts'
import { createDefaultPolicies } from './default-policies.ts'
import { isProven, revokeUnprovenLogins, voidAndNotify } from './ownership.ts'
import {
  createClient,
  createMembership,
  type NewMember,
  projectDefaults,
  type TargetProject,
} from './provision.ts'
import { createUser, EMAIL, findUser } from './users.ts'

/** One transaction. Errors: 400, 403. */
export const init: Operation = {
  name: 'init',
  on: [{ type: 'Project', level: 'type' }],
  methods: ['POST'],
  inputs: {
    name: 'text!: Of the project',
    owner: 'reference: Of a User',
    ownerEmail: 'text: Address of a person',
  },
  text: {
    summary: 'Make a project with its first administrator',
    answer: 'Project',
    status: 201,
  },
  area: 'administration',
  async run(call) {
    const { services, principal, request } = call
    if (!principal.isSuperAdmin || !may(principal, 'Project', 'create')) throw forbidden()
    const { name, ownerReference, ownerEmail } = readParameters(call)
    const actor = servicePrincipal(SYSTEM_PROJECT, principal)
    const { config } = services
    const { written, owner } = await services.repository.transaction(async (inside) => {
      const owner = await findOwner(inside, actor, { access: call, ownerReference, ownerEmail })
      const { project } = await foundProject(inside, actor, { name, owner, config })
      const addMail = (id: string, mail: Mail) => inside.addMail(id, mail)
      const home = { id: project.id, name }
      if (owner) await voidAndNotify({ config, repository: inside, addMail }, actor, home, owner)
      return { written: project, owner }
    })
    if (owner?.id && !isProven(owner)) await revokeUnprovenLogins(services, owner.id)
    const isExtended = request.headers['x-medplum'] === 'extended'
    return textReply(201, present(written, principal, isExtended), {
      ...versionHeaders(written),
      Location: absoluteUrl(services, `Project/${written.id}`),
    })
  },
}

function readParameters(call: OperationCall) {
  const inputs = readInputs(call)
  const name = inputs.required('name')
  if (name.trim() === '') throw badRequest('name must not be empty', 'name')
  const ownerEmail = inputs.text('ownerEmail')?.toLowerCase()
  if (ownerEmail !== undefined && !EMAIL.test(ownerEmail)) {
    throw badRequest('ownerEmail must be an e-mail address', 'ownerEmail')
  }
  return { name, ownerReference: inputs.text('owner'), ownerEmail }
}

interface Owner {
  readonly access: OperationCall
  readonly ownerReference: string | undefined
  readonly ownerEmail: string | undefined
}

async function findOwner(
  repository: Repository,
  actor: Principal,
  { access: { services, principal }, ownerReference, ownerEmail }: Owner,
): Promise<Resource | undefined> {
  if (ownerReference !== undefined) return await existingOwner(repository, ownerReference)
  if (ownerEmail !== undefined) return await ownerByEmail(repository, actor, ownerEmail)
  if (principal.membershipId === undefined) return undefined
  const session = await services.principals.forMembership(principal.membershipId)
  const user = referenceIn(session?.membership.user)
  if (parseReference(user)?.type !== 'User') return undefined
  return await existingOwner(repository, user ?? '')
}

async function existingOwner(repository: Repository, reference: string): Promise<Resource> {
  const parsed = parseReference(reference)
  const [found] = parsed?.type === 'User' ? await repository.readMany(system, [parsed]) : []
  if (found?.content === undefined) {
    throw badRequest('Only Users are permitted to be the owner of a new Project')
  }
  const user = parseVersion(found)
  if (user.project !== undefined) {
    throw badRequest('Project owner must not belong to another Project')
  }
  return user
}

/** Returns a server scoped User; a new one must set a password first. */
async function ownerByEmail(
  repository: Repository,
  actor: Principal,
  email: string,
): Promise<Resource> {
  const known = await findUser(repository, email, undefined)
  if (known !== undefined) return known
  const [firstName = email] = email.split('@')
  return await createUser(repository, actor, { firstName, lastName: 'Owner', email })
}

interface NewProject {
  readonly name: string
  readonly owner: Resource | undefined
  readonly config: Config
}

async function withDefaultPolicies(
  repository: Repository,
  actor: Principal,
  home: TargetProject,
): Promise<WriteResult> {
  const defaultAccessPolicies = await createDefaultPolicies(repository, actor, home)
  return await repository.patch(actor, { type: 'Project', id: home.id }, (project) => ({
    ...project,
    defaultAccessPolicies,
  }))
}

/** Runs in the caller's transaction. */
export async function foundProject(
  repository: Repository,
  actor: Principal,
  { name, owner, config }: NewProject,
) {
  const owned = owner === undefined ? {} : { owner: { reference: referenceTo(owner) } }
  const resource = projectDefaults({ resourceType: 'Project', name, ...owned }, config)
  const created = await repository.create(actor, resource)
  const home = { id: created.id, name }
  const project = config.newProjectPolicies
    ? await withDefaultPolicies(repository, actor, home)
    : created
  await createClient(repository, actor, home, { client: { name: `${name} Default Client` } })
  const membership = owner && (await admitOwner(repository, actor, home, owner))
  return { project, membership }
}

async function admitOwner(
  repository: Repository,
  actor: Principal,
  home: { readonly id: string; readonly name: string },
  owner: Resource,
): Promise<Resource> {
  const profile = await createProfile(repository, actor, {
    projectId: home.id,
    type: 'Practitioner',
    user: owner,
  })
  return await admitUser(repository, actor, home, {
    user: owner,
    profile,
    details: { admin: true },
  })
}

interface NewProfile {
  readonly projectId: string
  readonly type: 'Patient' | 'Practitioner'
  readonly user: Resource
}

export async function createProfile(
  repository: Repository,
  actor: Principal,
  { projectId, type, user }: NewProfile,
): Promise<Resource> {
  const telecom =
    typeof user.email === 'string'
      ? { telecom: [{ system: 'email', use: 'work', value: user.email }] }
      : {}
  const written = await repository.create(actor, {
    resourceType: type,
    meta: { project: projectId },
    name: [{ given: [user.firstName], family: user.lastName }],
    ...telecom,
  })
  return parseVersion(written)
}

export interface AdmittedUser {
  readonly user: Resource
  readonly profile: Resource
  readonly details?: NewMember['details']
}

export async function admitUser(
  repository: Repository,
  actor: Principal,
  home: { readonly id: string; readonly name: string },
  { user, profile, details }: AdmittedUser,
): Promise<Resource> {
  const who = { reference: referenceTo(user), display: String(user.email ?? user.id) }
  const display = displayName(profile)
  const person = { reference: referenceTo(profile), ...(display === undefined ? {} : { display }) }
  return parseVersion(
    await createMembership(repository, actor, home, { user: who, profile: person, details }),
  )
}
