/** `Project/$init`: creates a Project with its default client and the owner's membership, if any. */
import { may } from '../access/policy.ts'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import type { Config } from '../core/config/config.ts'
import { badRequest, forbidden } from '../core/errors.ts'
import { parseBody } from '../fhir/json.ts'
import {
  isObject,
  parseReference,
  type Resource,
  referenceIn,
  referenceTo,
} from '../fhir/resource.ts'
import { displayName } from '../identity/principals.ts'
import type { Mail } from '../outbound/mails.ts'
import { FHIR_JSON } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion, present } from '../store/rows/rows.ts'
import type { WriteResult } from '../store/rows/version.ts'
import { isProven, revokeUnprovenLogins, takeIn } from './ownership.ts'
import {
  createClient,
  createMembership,
  type NewMember,
  projectDefaults,
  systemPrincipalFor,
} from './provision.ts'
import { createUser, findUser } from './users.ts'

const EMAIL = /^[^\s@]{1,64}@[^\s@]{1,255}$/

/** One transaction. Errors: 400, 403. */
export const init: Operation = {
  name: 'init',
  on: [{ type: 'Project', level: 'type' }],
  methods: ['POST'],
  area: 'administration',
  async run(call) {
    const { services, principal, request } = call
    if (!principal.isSuperAdmin || !may(principal, 'Project', 'create')) throw forbidden()
    const { name, ownerReference, ownerEmail } = readParameters(request.body)
    const actor = systemPrincipalFor(principal)
    const { config } = services
    const { written, owner } = await services.repository.transaction(async (inside) => {
      const owner = await findOwner(inside, actor, { access: call, ownerReference, ownerEmail })
      const { project } = await foundProject(inside, actor, { name, owner, config })
      const addMail = (id: string, mail: Mail) => inside.addMail(id, mail)
      const home = { id: project.id, name }
      if (owner) await takeIn({ config, repository: inside, addMail }, actor, home, owner)
      return { written: project, owner }
    })
    if (owner?.id && !isProven(owner)) await revokeUnprovenLogins(services, owner.id)
    const isExtended = request.headers['x-medplum'] === 'extended'
    return {
      status: 201,
      headers: {
        'Content-Type': FHIR_JSON,
        Location: `${services.config.baseUrl}fhir/R4/Project/${written.id}`,
        ETag: `W/"${written.ver}"`,
        'Last-Modified': written.lastUpdated.toUTCString(),
      },
      body: present(written, principal, isExtended),
    }
  },
}

interface InitParameters {
  readonly name: string
  readonly ownerReference: string | undefined
  readonly ownerEmail: string | undefined
}

function readParameters(body: Buffer | string | undefined): InitParameters {
  const parameters = parseParameters(body)
  const find = (name: string) =>
    parameters.find((item): item is Record<string, unknown> => isObject(item) && item.name === name)
  const name = find('name')?.valueString
  if (typeof name !== 'string' || name.trim() === '') {
    throw badRequest('Expected one value for parameter name', 'Parameters.parameter')
  }
  const ownerEmail = find('ownerEmail')?.valueString
  if (ownerEmail !== undefined && !(typeof ownerEmail === 'string' && EMAIL.test(ownerEmail))) {
    throw badRequest('ownerEmail must be an e-mail address', 'Parameters.parameter')
  }
  const owner = find('owner')
  if (owner !== undefined && referenceIn(owner.valueReference) === undefined) {
    throw badRequest('owner must be a Reference', 'Parameters.parameter')
  }
  return {
    name,
    ownerReference: referenceIn(owner?.valueReference),
    ownerEmail: ownerEmail?.toLowerCase(),
  }
}

function parseParameters(body: Buffer | string | undefined): readonly unknown[] {
  const parsed = parseBody(body ?? '')
  if (isObject(parsed) && parsed.resourceType === 'Parameters') {
    return Array.isArray(parsed.parameter) ? parsed.parameter : []
  }
  throw badRequest('Expected Parameters', 'resourceType')
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
  const [found] =
    parsed?.type === 'User'
      ? await repository.readMany(systemPrincipal(SYSTEM_PROJECT), [parsed])
      : []
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

interface FoundedProject {
  readonly project: WriteResult
  readonly membership: Resource | undefined
}

interface NewProject {
  readonly name: string
  readonly owner: Resource | undefined
  readonly config: Config
}

/** Runs in the caller's transaction. */
export async function foundProject(
  repository: Repository,
  actor: Principal,
  { name, owner, config }: NewProject,
): Promise<FoundedProject> {
  const owned = owner === undefined ? {} : { owner: { reference: referenceTo(owner) } }
  const resource = projectDefaults({ resourceType: 'Project', name, ...owned }, config)
  const project = await repository.create(actor, resource)
  const home = { id: project.id, name }
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
