/** `botica init`: creates a project, a user, a client that may deploy, a bot, and the bot's folder. */
import { randomBytes } from 'node:crypto'
import { cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { type MedplumClient, normalizeErrorString } from '@medplum/core'
import { readSuperAdminClient, serviceAddress, signIn } from '../session.ts'
import { deployFile } from './calls.ts'
import { CONFIG, callerFolder, FIRST_FOLDER, openFolder } from './folder.ts'

interface Made {
  readonly id: string
  readonly name: string
  readonly secret: string
}

const ROOT = path.join(import.meta.dirname, '../..')
const EXAMPLE = path.join(ROOT, 'examples/first-bot')
const FIRST_PROJECT = 'First project'

interface InitOptions {
  readonly name?: string
  /** An existing project, whose users stay unchanged. */
  readonly project?: string
  readonly url?: string
}

type Variables = Readonly<Record<string, string | undefined>>

/**
 * Prints the created items, sign-in details and next steps; repeats them for an existing bot of this service. Errors:
 * the bot belongs to another service, or to another project than the named one; the folder has files that would be
 * overwritten.
 */
export async function init(given = FIRST_FOLDER, options: InitOptions): Promise<void> {
  const folder = path.resolve(callerFolder(), given)
  const shown = path.relative(callerFolder(), folder) || '.'
  if (existsSync(path.join(folder, CONFIG))) return await showAgain(folder, shown, options)
  requireUnwritten(folder)
  const baseUrl = options.url ?? serviceAddress()
  const admin = await signIn(baseUrl, readSuperAdminClient())
  const projectId = options.project ?? (await createProject(admin, options.name ?? FIRST_PROJECT))
  const person = options.project === undefined ? await createPerson(admin, projectId) : {}
  const client = await createAdminClient(admin, projectId)
  const medplum = await signIn(baseUrl, client)
  const bot: Made = await medplum.post(`admin/projects/${projectId}/bot`, {
    name: path.basename(folder),
  })

  const variables = {
    MEDPLUM_BASE_URL: baseUrl,
    MEDPLUM_CLIENT_ID: client.id,
    MEDPLUM_CLIENT_SECRET: client.secret,
    ...person,
  }
  writeFolder(folder, bot, variables)
  await deployFile(medplum, bot.id, path.join(folder, 'bot.ts'))
  console.log(`Project ${projectId}, client ${client.id}, bot ${bot.id}`)
  printNext(shown, `${shown}/bot.ts is deployed`, bot.name, variables)
}

async function showAgain(folder: string, shown: string, options: InitOptions): Promise<void> {
  const hasBot = `${folder} has a bot already`
  if (options.name ?? options.project ?? options.url) throw new Error(hasBot)
  try {
    const { botId, medplum } = await openFolder(folder)
    const { id, name = '' } = await medplum.readResource('Bot', botId)
    console.log(`Project ${medplum.getProject()?.id}, bot ${id}`)
    printNext(shown, `${shown} has a bot already`, name, process.env)
  } catch (error) {
    throw new Error(`${hasBot}, which cannot be reached: ${normalizeErrorString(error)}`)
  }
}

function printNext(shown: string, done: string, botName: string, variables: Variables): void {
  const { MEDPLUM_BASE_URL, CONSOLE_EMAIL, CONSOLE_PASSWORD } = variables
  const signInHint = `Sign in at ${MEDPLUM_BASE_URL}console to see its runs in a browser:
  e-mail    ${CONSOLE_EMAIL}
  password  ${CONSOLE_PASSWORD}
`
  const names = ['MEDPLUM_BASE_URL', 'MEDPLUM_CLIENT_ID', 'MEDPLUM_CLIENT_SECRET']
  console.log(`${done}. Next:
  npm run -s botica -- call ${shown}/person.json   calls it
  npm run -s botica -- dev                         deploys it on each save, and shows its log
${CONSOLE_EMAIL ? signInHint : ''}For other tools, such as \`npx medplum bot deploy ${botName}\`, ${shown}/.env has
${names.map((name) => `  ${name}=${variables[name]}`).join('\n')}`)
}

async function createProject(admin: MedplumClient, name: string): Promise<string> {
  const setting = [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }]
  const project = { resourceType: 'Project', name, setting }
  return (await admin.post('admin/Project/', project)).id
}

/** Deploying, logs and replay require an administrator's membership. */
async function createAdminClient(admin: MedplumClient, projectId: string) {
  const home = `admin/projects/${projectId}`
  const { id, secret }: Made = await admin.post(`${home}/client`, { name: 'Bot author' })
  const profile = `ClientApplication/${id}`
  const membership = await admin.searchOne('ProjectMembership', { profile })
  await admin.post(`${home}/members/${membership?.id}`, { ...membership, admin: true })
  return { id, secret }
}

/** Creates an administrator and prints the password. The address is unique, so that no existing account gets a password. */
async function createPerson(admin: MedplumClient, projectId: string) {
  const email = `bot-author-${randomBytes(8).toString('hex')}@example.com`
  const password = randomBytes(12).toString('base64url')
  await admin.post(`admin/projects/${projectId}/invite`, {
    resourceType: 'Practitioner',
    firstName: 'Bot',
    lastName: 'Author',
    email,
    sendEmail: false,
    membership: { admin: true },
  })
  await admin.post('admin/super/setpassword', { email, password })
  return { CONSOLE_EMAIL: email, CONSOLE_PASSWORD: password }
}

/** Checked before anything is created in the service. */
function requireUnwritten(folder: string): void {
  const names = ['.env', '.gitignore', ...(isInside(folder) ? [] : ['package.json'])]
  const found = names.filter((name) => existsSync(path.join(folder, name)))
  if (found.length > 0) {
    throw new Error(`${folder} has ${found.join(' and ')} already; name a new folder`)
  }
}

/** A folder inside the repository uses its packages and scripts. */
function isInside(folder: string): boolean {
  return folder.startsWith(`${ROOT}${path.sep}`)
}

function writeFolder(folder: string, { id, name }: Made, variables: Variables): void {
  mkdirSync(folder, { recursive: true })
  cpSync(EXAMPLE, folder, { recursive: true, force: false })
  const config = { bots: [{ name, id, source: 'bot.ts', dist: 'bot.ts' }] }
  writeFileSync(path.join(folder, CONFIG), asText(config))
  writeFileSync(path.join(folder, '.gitignore'), '.env\nnode_modules\n')
  const lines = Object.entries(variables).map(([variable, value]) => `${variable}=${value}\n`)
  writeFileSync(path.join(folder, '.env'), lines.join(''), { mode: 0o600 })
  if (!isInside(folder)) writePackage(folder)
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
