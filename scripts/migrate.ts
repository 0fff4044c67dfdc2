/**
 * The release step, `node scripts/migrate.ts`: migrates the database and creates the first project with a super admin
 * user and client. `--who` also prints the first sign-in; secrets are settings and are not printed.
 */
import { randomUUID } from 'node:crypto'
import { hashPassword } from '../shared/access/credentials/passwords.ts'
import { SYSTEM_PROJECT, system } from '../shared/access/project-context.ts'
import { writeFeatures } from '../shared/api/write-features.ts'
import { type Config, readConfig } from '../shared/core/config/config.ts'
import { ConfigError } from '../shared/core/config/reader.ts'
import { createLogger } from '../shared/core/log.ts'
import { openDatabase } from '../shared/postgres/database.ts'
import { connectionErrorReason } from '../shared/postgres/pool.ts'
import { keepSessionSettings } from '../shared/postgres/sessions.ts'
import { createMembership } from '../shared/projects/provision.ts'
import type { Services } from '../shared/request/services.ts'
import { find } from '../shared/store/lookups.ts'
import { migrate } from '../shared/store/migrate.ts'
import { openRepository } from '../shared/store/open-repository.ts'
import type { Repository } from '../shared/store/repository.ts'

const SEED_LOCK = 726_002
const CLIENT_NAME = 'Super Admin Client'
const MOST_CLIENTS = 1000

/**
 * Safe to run twice and concurrently. `isFirst`: the super admin was created now. `client`: id of the first client,
 * if it still exists.
 */
export async function prepare(
  config: Config,
): Promise<{ readonly isFirst: boolean; readonly client: string | undefined }> {
  const { databaseUrl, databaseDirectUrl } = config
  // Migrations take a session lock, and time.
  const direct = {
    ...config,
    databaseUrl: databaseDirectUrl ?? databaseUrl,
    databaseDirectUrl: undefined,
  }
  const database = openDatabase(direct, createLogger(config.logLevel, 'script'))
  try {
    await migrate(database)
    if (databaseDirectUrl !== undefined) await keepSessionSettings(database)
    const repository = await openRepository(database, writeFeatures())
    const isFirst = await seed({ database, repository }, config)
    const all = { conditions: [], count: MOST_CLIENTS }
    const clients = await find(repository, system, 'ClientApplication', all)
    return { isFirst, client: clients.find(({ name }) => name === CLIENT_NAME)?.id }
  } finally {
    await database.close()
  }
}

/** Creates the first project; false if there is one. Errors: ConfigError naming the missing settings. */
export async function seed(
  services: Pick<Services, 'database' | 'repository'>,
  config: Config,
): Promise<boolean> {
  const { database, repository } = services
  if (await isSeeded(repository)) return false
  const admin = requireSuperAdminSettings(config)
  const passwordHash = await hashPassword(admin.password)
  return await database.transaction(async (connection) => {
    await connection.query({ text: 'select pg_advisory_xact_lock($1)', values: [SEED_LOCK] })
    if (await isSeeded(repository)) return false
    await repository.transaction((inside) => createAll(inside, admin, passwordHash))
    return true
  })
}

async function isSeeded(repository: Repository): Promise<boolean> {
  const project = { type: 'Project', id: SYSTEM_PROJECT.id }
  const [found] = await repository.readMany(system, [project])
  return found?.content !== undefined
}

type SuperAdmin = ReturnType<typeof requireSuperAdminSettings>

/** Errors: ConfigError naming the settings missing for a first start. */
export function requireSuperAdminSettings(config: Config) {
  const { superAdminEmail, superAdminPassword, superAdminClientId, superAdminClientSecret } = config
  if (!superAdminPassword || !superAdminClientSecret) {
    throw new ConfigError(
      'A first start needs SUPER_ADMIN_PASSWORD and SUPER_ADMIN_CLIENT_SECRET; `npm start` makes them at random',
    )
  }
  return {
    email: superAdminEmail.toLowerCase(),
    password: superAdminPassword,
    clientId: superAdminClientId ?? randomUUID(),
    clientSecret: superAdminClientSecret,
  }
}

async function createAll(
  repository: Repository,
  { email, clientId, clientSecret }: SuperAdmin,
  passwordHash: string,
): Promise<void> {
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
      id: clientId,
      name: CLIENT_NAME,
      secret: clientSecret,
    },
    { keepId: true },
  )
  const program = { reference: `ClientApplication/${client.id}`, display: CLIENT_NAME }
  await createMembership(repository, system, SYSTEM_PROJECT, { user: program, profile: program })
}

if (import.meta.main) {
  try {
    const config = readConfig()
    for (const doubt of config.warnings) console.error(doubt)
    const { isFirst, client = 'gone' } = await prepare(config)
    console.log('Migrated')
    if (isFirst || process.argv.includes('--who')) {
      console.log(
        `The super admin is ${config.superAdminEmail}, with the password of SUPER_ADMIN_PASSWORD`,
      )
      console.log(`Its client is ${client}, with the secret of SUPER_ADMIN_CLIENT_SECRET`)
      console.log(`The service is at ${config.baseUrl}`)
    }
  } catch (error) {
    const refusal = connectionErrorReason(error)
    const reason = error instanceof Error ? error.message : error
    console.error(refusal ? `PostgreSQL refuses the connection: ${refusal}` : reason)
    process.exitCode = 1
  }
}
