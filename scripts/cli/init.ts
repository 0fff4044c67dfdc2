/** `botica init`: a project, a client in it that may deploy, a bot, and the folder in which its author works. */
import { cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import type { MedplumClient } from '@medplum/core'
import { serviceAddress, signIn, superAdminClient } from '../session.ts'
import { deployFile } from './calls.ts'
import { CONFIG, callerFolder, FIRST_FOLDER } from './folder.ts'

interface Made {
  readonly id: string
  readonly name: string
  readonly secret: string
}

const ROOT = path.join(import.meta.dirname, '../..')
const EXAMPLE = path.join(ROOT, 'examples/first-bot')

export interface InitOptions {
  readonly name: string
  readonly project?: string
  readonly url?: string
}

/** Prints what it made, and what to do next. Errors: the folder has a bot already. */
export async function init(
  given = FIRST_FOLDER,
  { name, project, url }: InitOptions,
): Promise<void> {
  const folder = path.resolve(callerFolder(), given)
  if (existsSync(path.join(folder, CONFIG))) throw new Error(`${folder} has a bot already`)
  const baseUrl = url ?? serviceAddress()
  const admin = await signIn(baseUrl, await superAdminClient())
  const projectId = project ?? (await createProject(admin, name))
  const client = await createAdminClient(admin, projectId)
  const medplum = await signIn(baseUrl, client)
  const bot: Made = await medplum.post(`admin/projects/${projectId}/bot`, {
    name: path.basename(folder),
  })

  const variables = {
    MEDPLUM_BASE_URL: baseUrl,
    MEDPLUM_CLIENT_ID: client.id,
    MEDPLUM_CLIENT_SECRET: client.secret,
  }
  const lines = Object.entries(variables).map(([variable, value]) => `${variable}=${value}`)
  writeFolder(folder, bot, lines)
  await deployFile(medplum, bot.id, path.join(folder, 'bot.ts'))
  const shown = path.relative(callerFolder(), folder) || '.'
  console.log(`Project ${projectId}, client ${client.id}, bot ${bot.id}
${shown}/bot.ts is deployed. Next:
  npm run -s botica -- call ${shown}/person.json   calls it
  npm run -s botica -- dev                         deploys it on each save, and shows its log
For other tools, such as \`npx medplum bot deploy ${bot.name}\`, ${shown}/.env has
${lines.map((line) => `  ${line}`).join('\n')}`)
}

async function createProject(admin: MedplumClient, name: string): Promise<string> {
  const setting = [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }]
  const made: Made = await admin.post('admin/Project/', {
    resourceType: 'Project',
    name,
    setting,
  })
  return made.id
}

/** Only the membership of an administrator lets a client deploy, read logs and replay. */
async function createAdminClient(admin: MedplumClient, projectId: string) {
  const home = `admin/projects/${projectId}`
  const { id, secret }: Made = await admin.post(`${home}/client`, {
    name: 'Bot author',
  })
  const profile = `ClientApplication/${id}`
  const membership = await admin.searchOne('ProjectMembership', { profile })
  await admin.post(`${home}/members/${membership?.id}`, { ...membership, admin: true })
  return { id, secret }
}

function writeFolder(folder: string, { id, name }: Made, env: readonly string[]): void {
  mkdirSync(folder, { recursive: true })
  cpSync(EXAMPLE, folder, { recursive: true, force: false })
  const config = { bots: [{ name, id, source: 'bot.ts', dist: 'bot.ts' }] }
  writeFileSync(path.join(folder, CONFIG), asText(config))
  writeFileSync(path.join(folder, '.gitignore'), '.env\nnode_modules\n')
  writeFileSync(path.join(folder, '.env'), `${env.join('\n')}\n`, { mode: 0o600 })
  // A folder of the repository uses the packages and the scripts of the repository.
  if (!folder.startsWith(`${ROOT}${path.sep}`)) writePackage(folder)
}

function writePackage(folder: string): void {
  const program = JSON.parse(readFileSync(path.join(ROOT, 'package.json'), 'utf8'))
  const { dependencies, devDependencies } = program as Record<string, Record<string, string>>
  const packages = {
    type: 'module',
    private: true,
    dependencies: { '@medplum/core': dependencies?.['@medplum/core'] },
    devDependencies: { '@medplum/fhirtypes': devDependencies?.['@medplum/fhirtypes'] },
  }
  writeFileSync(path.join(folder, 'package.json'), asText(packages))
}

function asText(value: unknown): string {
  return `${JSON.stringify(value, undefined, 2)}\n`
}
