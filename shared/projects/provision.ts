/** Creates what belongs together: projects, and programs with the membership that lets them in. */
import { randomBytes } from 'node:crypto'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import type { Config } from '../config/config.ts'
import { badRequest } from '../errors.ts'
import { isResource, type Reference, type Resource } from '../fhir/resource.ts'
import { requirePolicies } from '../identity/write-rules.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { WriteResult } from '../store/rows/version.ts'

const BOT_TEMPLATE = `import { BotEvent, MedplumClient } from '@medplum/core';

export async function handler(medplum: MedplumClient, event: BotEvent): Promise<any> {
  // Your code here
}
`

/** The Project that something is made for. */
export interface Home {
  readonly id: string
  readonly name: string
}

/** The service writing on behalf of a caller whose right to it was checked: no policy, his name. */
export function onBehalfOf(caller: Principal): Principal {
  return {
    ...systemPrincipal(SYSTEM_PROJECT),
    profile: caller.profile,
    profileDisplay: caller.profileDisplay,
    onBehalfOf: caller.onBehalfOf,
    ...(caller.cause ? { cause: caller.cause } : {}),
  }
}

/** 64 hex characters. */
export function newSecret(): string {
  return randomBytes(32).toString('hex')
}

/** A new Project is strict, and has the default features unless its creator names others. */
export function projectDefaults(project: Resource, config: Config): Resource {
  return { strictMode: true, features: [...config.defaultProjectFeatures], ...project }
}

/** A Project as a caller sends it. Errors: 400 for another type, and without a name. */
export function newProject(body: unknown, config: Config): Resource {
  if (!isResource(body) || body.resourceType !== 'Project') {
    throw badRequest('resourceType must be Project', 'resourceType')
  }
  if (typeof body.name !== 'string' || body.name.trim() === '') {
    throw badRequest('Project name is required', 'name')
  }
  return projectDefaults(body, config)
}

interface MembershipDetails {
  readonly admin?: boolean
  readonly accessPolicy?: Reference
}

/** `user` and `profile` are the same program for clients and bots. */
export async function createMembership(
  repository: Repository,
  actor: Principal,
  home: Home,
  user: Reference,
  profile: Reference,
  details: MembershipDetails = {},
): Promise<WriteResult> {
  const { id, name } = home
  return await repository.create(actor, {
    resourceType: 'ProjectMembership',
    meta: { project: id },
    project: { reference: `Project/${id}`, display: name },
    user,
    profile,
    ...details,
  })
}

/** With its membership, in the caller's transaction. `client` brings everything but the secret. */
export async function createClient(
  repository: Repository,
  actor: Principal,
  home: Home,
  client: Readonly<Record<string, unknown>>,
  accessPolicy?: Reference,
): Promise<WriteResult> {
  await requireOwnPolicies(repository, home, accessPolicy)
  const written = await repository.create(actor, {
    ...client,
    resourceType: 'ClientApplication',
    meta: { project: home.id },
    secret: newSecret(),
  })
  await admit(repository, actor, home, parseVersion(written), accessPolicy)
  return written
}

/** With its membership and a template as its source, in the caller's transaction. */
export async function createBot(
  repository: Repository,
  actor: Principal,
  home: Home,
  bot: Readonly<Record<string, unknown>>,
  accessPolicy?: Reference,
): Promise<WriteResult> {
  await requireOwnPolicies(repository, home, accessPolicy)
  const source = await repository.create(actor, {
    resourceType: 'Binary',
    meta: { project: home.id },
    contentType: 'text/typescript',
    data: Buffer.from(BOT_TEMPLATE).toString('base64'),
  })
  const written = await repository.create(actor, {
    runtimeVersion: 'vmcontext',
    ...bot,
    resourceType: 'Bot',
    meta: { project: home.id },
    sourceCode: {
      contentType: 'text/typescript',
      title: 'index.ts',
      url: `Binary/${source.id}`,
    },
  })
  await admit(repository, actor, home, parseVersion(written), accessPolicy)
  return written
}

/** Errors: 400 for a policy that is not in the project. */
async function requireOwnPolicies(
  repository: Repository,
  home: Home,
  accessPolicy: Reference | undefined,
): Promise<void> {
  const read = (references: readonly { type: string; id: string }[]) =>
    repository.readMany(systemPrincipal(SYSTEM_PROJECT), references)
  await requirePolicies(read, home, { accessPolicy }, false)
}

async function admit(
  repository: Repository,
  actor: Principal,
  home: Home,
  program: Resource,
  accessPolicy: Reference | undefined,
): Promise<void> {
  const reference = {
    reference: `${program.resourceType}/${program.id}`,
    display: String(program.name),
  }
  const details = accessPolicy === undefined ? {} : { accessPolicy }
  await createMembership(repository, actor, home, reference, reference, details)
}
