/**
 * A bot's folder: code, test, `medplum.config.json` with the bot id, and `.env` with service and client. Medplum's
 * command line tool reads the same two files.
 */
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { loadEnvFile } from 'node:process'
import type { MedplumClient } from '@medplum/core'
import { signIn } from '../session.ts'

export const CONFIG = 'medplum.config.json'
export const FIRST_FOLDER = 'first-bot'

export interface BotFolder {
  readonly folder: string
  readonly botId: string
  readonly source: string
  readonly medplum: MedplumClient
  /** Returns the URL of a bot operation, such as `$logs`. */
  operation(name: string): string
}

/** npm runs scripts in the repository root, wherever it is called. */
export function callerFolder(): string {
  const { npm_lifecycle_event: event, INIT_CWD } = process.env
  const isScript = event === 'botica' || event === 'first-bot'
  return (isScript ? INIT_CWD : undefined) ?? process.cwd()
}

/**
 * Signs in with the client of the folder, or of `clientFile`. Errors: a message for a missing bot folder or client file, an
 * unreachable service, or a rejected client.
 */
export async function openFolder(
  given: string | undefined,
  clientFile?: string,
): Promise<BotFolder> {
  const places = candidateFolders(given)
  const folder = places.find((place) => existsSync(path.join(place, CONFIG)))
  if (folder === undefined) {
    throw new Error(
      `No ${CONFIG} in ${places.join(' or ')}; make a bot by \`botica init\`, or name its folder by --folder`,
    )
  }
  const config = JSON.parse(readFileSync(path.join(folder, CONFIG), 'utf8'))
  const { bots = [] } = config as { bots?: { id?: string; source?: string }[] }
  const [{ id: botId = '', source = 'bot.ts' } = {}] = bots
  if (botId === '') throw new Error(`${path.join(folder, CONFIG)} names no bot`)
  const medplum = await openService(folder, clientFile)
  const operation = (name: string) => medplum.fhirUrl('Bot', botId, name).href
  return { folder, botId, source: path.join(folder, source), medplum, operation }
}

/** Signs in with the client of the environment, of `.env` in the folder, or of `clientFile`. Errors: as `openFolder`. */
export async function openService(
  given: string | undefined,
  clientFile?: string,
): Promise<MedplumClient> {
  const places = candidateFolders(given)
  const folder = places.find((place) => existsSync(path.join(place, '.env'))) ?? places[0]
  const env = path.join(folder, '.env')
  if (existsSync(env)) loadEnvFile(env)
  const { MEDPLUM_BASE_URL, MEDPLUM_CLIENT_ID, MEDPLUM_CLIENT_SECRET } = process.env
  const own = { id: MEDPLUM_CLIENT_ID, secret: MEDPLUM_CLIENT_SECRET }
  const { id, secret } = clientFile === undefined ? own : readClient(clientFile)
  if (!MEDPLUM_BASE_URL || !id || !secret) {
    throw new Error(
      `MEDPLUM_BASE_URL, MEDPLUM_CLIENT_ID or MEDPLUM_CLIENT_SECRET is missing; set it, or write it to ${env}`,
    )
  }
  return await signIn(MEDPLUM_BASE_URL, { id, secret })
}

/** Returns the named folder; otherwise the caller's, and the one in it that `init` makes. */
function candidateFolders(given: string | undefined): readonly [string, ...string[]] {
  const here = callerFolder()
  return given === undefined ? [here, path.join(here, FIRST_FOLDER)] : [path.resolve(here, given)]
}

/** Reads a response of `/client`, or the credentials of the first start. */
function readClient(given: string) {
  const file = path.resolve(callerFolder(), given)
  const { id, secret, clientId, clientSecret } = JSON.parse(readFileSync(file, 'utf8'))
  const client = { id: id ?? clientId, secret: secret ?? clientSecret }
  if (typeof client.id === 'string' && typeof client.secret === 'string') return client
  throw new Error(`${file} must have "id" and "secret" of a client`)
}
