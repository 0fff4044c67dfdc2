/**
 * The first project: a super admin user and client. Part of the release step; run by `scripts/migrate.ts` after the
 * migrations, idempotent.
 */
import { randomUUID } from 'node:crypto'
import { hashPassword } from '../shared/access/credentials/passwords.ts'
import { systemPrincipal } from '../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../shared/access/project-context.ts'
import type { Config } from '../shared/core/config/config.ts'
import { ConfigError } from '../shared/core/config/reader.ts'
import { createMembership } from '../shared/projects/provision.ts'
import type { Services } from '../shared/request/services.ts'
import { find } from '../shared/store/lookups.ts'
import type { Repository } from '../shared/store/repository.ts'

export interface SuperAdmin {
  readonly email: string
  readonly password: string
  readonly clientId: string
  readonly clientSecret: string
}

const SEED_LOCK = 726_002
const CLIENT_NAME = 'Super Admin Client'
const MOST_CLIENTS = 1000

/** Idempotent and safe for concurrent processes. `present`: nothing was changed. */
export async function seed(
  services: Pick<Services, 'database' | 'repository'>,
  admin: SuperAdmin,
): Promise<'created' | 'present'> {
  const { database, repository } = services
  const passwordHash = (await isSeeded(repository)) ? '' : await hashPassword(admin.password)
  return await database.transaction(async (connection) => {
    await connection.query({ text: 'select pg_advisory_xact_lock($1)', values: [SEED_LOCK] })
    if (await isSeeded(repository)) return 'present'
    await repository.transaction((inside) => createAll(inside, admin, passwordHash))
    return 'created'
  })
}

/** Reads the settings. Errors: ConfigError naming the settings missing for a first start. */
export function requireSuperAdminSettings(config: Config): SuperAdmin {
  const { superAdminEmail, superAdminPassword, superAdminClientId, superAdminClientSecret } = config
  if (!superAdminPassword || !superAdminClientSecret) {
    throw new ConfigError(
      'A first start needs SUPER_ADMIN_PASSWORD and SUPER_ADMIN_CLIENT_SECRET; `npm start` makes them at random',
    )
  }
  return {
    email: superAdminEmail,
    password: superAdminPassword,
    clientId: superAdminClientId ?? randomUUID(),
    clientSecret: superAdminClientSecret,
  }
}

/** Returns the id of the super admin's client; undefined before seeding or after its deletion. */
export async function superAdminClient(repository: Repository): Promise<string | undefined> {
  const clients = await find(repository, systemPrincipal(SYSTEM_PROJECT), 'ClientApplication', {
    conditions: [],
    count: MOST_CLIENTS,
  })
  return clients.find(({ name }) => name === CLIENT_NAME)?.id
}

export async function isSeeded(repository: Repository): Promise<boolean> {
  const project = { type: 'Project', id: SYSTEM_PROJECT.id }
  const [found] = await repository.readMany(systemPrincipal(SYSTEM_PROJECT), [project])
  return found?.content !== undefined
}

async function createAll(
  repository: Repository,
  admin: SuperAdmin,
  passwordHash: string,
): Promise<void> {
  const system = systemPrincipal(SYSTEM_PROJECT)
  const email = admin.email.toLowerCase()
  await repository.create(
    system,
    {
      resourceType: 'Project',
      id: SYSTEM_PROJECT.id,
      name: SYSTEM_PROJECT.name,
      superAdmin: true,
      strictMode: true,
    },
    { keepId: true },
  )
  const user = await repository.create(
    system,
    {
      resourceType: 'User',
      firstName: 'Super',
      lastName: 'Admin',
      email,
      emailVerified: true,
      provenEmail: email,
      passwordHash,
    },
    { unique: [{ scope: 'server', value: email }] },
  )
  const profile = await repository.create(system, {
    resourceType: 'Practitioner',
    name: [{ given: ['Super'], family: 'Admin' }],
    telecom: [{ system: 'email', use: 'work', value: email }],
  })
  const person = { reference: `User/${user.id}`, display: email }
  const practitioner = { reference: `Practitioner/${profile.id}`, display: 'Super Admin' }
  await createMembership(repository, system, SYSTEM_PROJECT, {
    user: person,
    profile: practitioner,
    details: { admin: true },
  })
  const client = await repository.create(
    system,
    {
      resourceType: 'ClientApplication',
      id: admin.clientId,
      name: CLIENT_NAME,
      secret: admin.clientSecret,
    },
    { keepId: true },
  )
  const program = { reference: `ClientApplication/${client.id}`, display: CLIENT_NAME }
  await createMembership(repository, system, SYSTEM_PROJECT, { user: program, profile: program })
}
