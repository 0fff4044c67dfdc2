/** A local Redis for `npm start` and `npm test`. */
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { accessSync, constants, existsSync, lstatSync, symlinkSync } from 'node:fs'
import { connect } from 'node:net'
import { delimiter, join } from 'node:path'
import { promisify } from 'node:util'
import { programsFolder, serviceAccount, serviceFolder } from './account.ts'
import { freePort, type OnSpawn, type Program, type Service, startService } from './service.ts'

export interface RedisOptions {
  readonly folder: string
  readonly durable: boolean
  /** A free port by default; pass an earlier one for clients that keep using it. */
  readonly port?: number
  readonly password?: string
}

const NO_REDIS =
  'There is no redis-server or valkey-server here; install the package redis-server (Debian), valkey (Fedora, Homebrew), or set REDIS_URL to a running one'

export async function startRedis(options: RedisOptions, onSpawn?: OnSpawn): Promise<Service> {
  const command = findServer() ?? (await installServer())
  const folder = serviceFolder(options.folder)
  const port = options.port ?? (await freePort())
  const password = options.password ?? randomBytes(24).toString('base64url')
  const program: Program = {
    name: 'Redis',
    url: `redis://:${password}@127.0.0.1:${port}`,
    command,
    args: ['-'],
    input: [
      `port ${port}`,
      'bind 127.0.0.1',
      `dir ${JSON.stringify(folder)}`,
      `requirepass ${password}`,
      `appendonly ${options.durable ? 'yes' : 'no'}`,
      'save ""',
      'maxmemory-policy noeviction',
      'databases 256',
      '',
    ].join('\n'),
    env: { LANG: 'C.UTF-8', TZ: 'UTC' },
    folder,
    account: serviceAccount(),
    stopSignal: 'SIGTERM',
    isReady: () => answers(port, password),
  }
  return await startService(program, onSpawn)
}

export function findServer(): string | undefined {
  return onPath('redis-server') ?? onPath('valkey-server') ?? linkServer()
}

function onPath(name: string): string | undefined {
  const folders = (process.env.PATH ?? '').split(delimiter)
  return folders.map((folder) => join(folder, name)).find(isExecutable)
}

/**
 * Debian's redis-tools contains the server as redis-check-rdb, which acts by the name it is called with. The
 * redis-server package would add a system service on port 6379.
 */
function linkServer(): string | undefined {
  const program = onPath('redis-check-rdb')
  if (program === undefined) return undefined
  const link = join(programsFolder(), 'redis-server')
  if (lstatSync(link, { throwIfNoEntry: false }) === undefined) symlinkSync(program, link)
  return link
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}

async function installServer(): Promise<string> {
  if (process.getuid?.() !== 0 || !existsSync('/usr/bin/apt-get')) throw new Error(NO_REDIS)
  console.log("Installing Redis from the system's packages …")
  try {
    await aptGet('update')
    await aptGet('install', '-y', '--no-install-recommends', 'redis-tools')
  } catch (cause) {
    throw new Error(NO_REDIS, { cause })
  }
  const installed = linkServer()
  if (installed === undefined) throw new Error(NO_REDIS)
  return installed
}

async function aptGet(...args: string[]): Promise<void> {
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  const options = ['-q', '-o', 'DPkg::Lock::Timeout=120']
  await promisify(execFile)('apt-get', [...options, ...args], { env, maxBuffer: 1 << 26 })
}

/** While loading a large append-only file, Redis answers PING with an error. */
function answers(port: number, password: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    socket.setTimeout(2000, () => socket.destroy())
    socket.on('connect', () => socket.write(`AUTH ${password}\r\nPING\r\n`))
    let said = ''
    socket.on('data', (data) => {
      said += data.toString()
      if (said.includes('+PONG') || said.includes('-')) socket.destroy()
    })
    socket.on('error', () => undefined)
    socket.on('close', () => resolve(said.includes('+PONG')))
  })
}
