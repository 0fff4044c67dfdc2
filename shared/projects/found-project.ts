/** A Project with its default client and, when somebody owns it, their profile and membership. */
import type { Principal } from '../access/principal.ts'
import type { Config } from '../config/config.ts'
import { type Resource, referenceTo } from '../fhir/resource.ts'
import { displayOf } from '../identity/principals.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { WriteResult } from '../store/rows/version.ts'
import { createClient, createMembership, projectDefaults } from './provision.ts'

export interface FoundedProject {
  readonly project: WriteResult
  /** The owner's membership. */
  readonly membership: Resource | undefined
}

/** In the caller's transaction. */
export async function foundProject(
  repository: Repository,
  actor: Principal,
  name: string,
  owner: Resource | undefined,
  config: Config,
): Promise<FoundedProject> {
  const owned = owner === undefined ? {} : { owner: { reference: referenceTo(owner) } }
  const resource = projectDefaults({ resourceType: 'Project', name, ...owned }, config)
  const project = await repository.create(actor, resource)
  const home = { id: project.id, name }
  await createClient(repository, actor, home, { name: `${name} Default Client` })
  const membership = owner && (await admitOwner(repository, actor, home, owner))
  return { project, membership }
}

async function admitOwner(
  repository: Repository,
  actor: Principal,
  home: { readonly id: string; readonly name: string },
  owner: Resource,
): Promise<Resource> {
  const profile = await createProfile(repository, actor, home.id, 'Practitioner', owner)
  return await admitUser(repository, actor, home, owner, profile, { admin: true })
}

/** A person of this name and address in the Project. */
export async function createProfile(
  repository: Repository,
  actor: Principal,
  projectId: string,
  type: 'Patient' | 'Practitioner',
  user: Resource,
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

/** The membership that makes `profile` the one of this User. */
export async function admitUser(
  repository: Repository,
  actor: Principal,
  home: { readonly id: string; readonly name: string },
  user: Resource,
  profile: Resource,
  details: Parameters<typeof createMembership>[5],
): Promise<Resource> {
  const who = { reference: referenceTo(user), display: String(user.email ?? user.id) }
  const display = displayOf(profile)
  const person = { reference: referenceTo(profile), ...(display === undefined ? {} : { display }) }
  return parseVersion(await createMembership(repository, actor, home, who, person, details))
}
