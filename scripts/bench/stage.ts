/** Runs the service for one bench, on a throw-away PostgreSQL and Redis with durable settings. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { MedplumClient } from '@medplum/core'
import { type Principal, systemPrincipal } from '../../shared/access/principal.ts'
import { openServices } from '../../shared/api/open-services.ts'
import { type Config, readConfig } from '../../shared/core/config/config.ts'
import { createLogger } from '../../shared/core/log.ts'
import type { Services } from '../../shared/request/services.ts'
import { temporaryFolder } from '../account.ts'
import { prepare } from '../migrate.ts'
import { startPostgres } from '../postgres.ts'
import { nodeArguments } from '../procfile.ts'
import { startRedis } from '../redis.ts'
import { freePort } from '../service.ts'
import { readSuperAdminClient, signIn } from '../session.ts'

const ROOT = path.join(import.meta.dirname, '..', '..')
const READY_MS = 120_000
const STOP_MS = 5000

export interface Stage {
  readonly config: Config
  readonly services: Services
  readonly baseUrl: string
  /** Starts another process, stopped with the rest; its settings override the stage's. */
  start(name: 'web' | 'worker', settings?: NodeJS.ProcessEnv): Promise<ChildProcess>
  /** Creates a Project, a signed-in client, and a principal limited to it. */
  openProject(): Promise<BenchProject>
}

export interface BenchProject {
  readonly projectId: string
  readonly admin: MedplumClient
  readonly token: string
  readonly principal: Principal
  /** Deploys a bot with this handler body; returns the path of its `$execute`. */
  deploy(body: string, extension?: readonly object[]): Promise<string>
}

/** fsync is on, as in production: without it write results would be too good. */
export async function withStage<T>(work: (stage: Stage) => Promise<T>): Promise<T> {
  const folder = temporaryFolder('botica-bench-')
  const [postgres, redis, port] = await Promise.all([
    startPostgres({ folder: path.join(folder, 'postgres'), sharedBuffersMb: 1024, durable: true }),
    startRedis({ folder: path.join(folder, 'redis'), durable: true }),
    freePort(),
  ])
  const baseUrl = `http://127.0.0.1:${port}/`
  const env = Object.assign(process.env, {
    PORT: String(port),
    BASE_URL: baseUrl,
    DATABASE_URL: postgres.url,
    REDIS_URL: redis.url,
    DATA_DIR: folder,
    LOG_LEVEL: 'warn',
    RATE_LIMIT_PER_MINUTE: '0',
    AUTH_RATE_LIMIT_PER_MINUTE: '0',
    SUPER_ADMIN_CLIENT_ID: randomUUID(),
    SUPER_ADMIN_CLIENT_SECRET: randomBytes(32).toString('hex'),
    SUPER_ADMIN_PASSWORD: randomBytes(16).toString('hex'),
  })
  const config = readConfig(env)
  await prepare(config)
  const services = await openServices(config, createLogger('warn', 'script'))
  const children: ChildProcess[] = []
  const start: Stage['start'] = async (name, settings = {}) => {
    const child = spawn(process.execPath, nodeArguments(name), {
      cwd: ROOT,
      env: { ...env, ...settings },
      stdio: ['ignore', 'inherit', 'inherit'],
    })
    children.push(child)
    await untilReady(`http://127.0.0.1:${settings.PORT ?? port}/`, name === 'worker')
    return child
  }
  try {
    await start('web')
    return await work({
      config,
      services,
      baseUrl,
      start,
      openProject: () => openProject(services),
    })
  } finally {
    await Promise.all(children.map(stop))
    await services.close()
    await Promise.all([postgres.stop(STOP_MS), redis.stop(STOP_MS)])
    await rm(folder, { recursive: true, force: true })
  }
}

export async function stop(child: ChildProcess): Promise<void> {
  child.kill('SIGTERM')
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
}

async function untilReady(baseUrl: string, needsWorker: boolean): Promise<void> {
  for (const deadline = Date.now() + READY_MS; Date.now() < deadline; await delay(100)) {
    const answer = await fetch(`${baseUrl}healthcheck`).catch(() => undefined)
    if (!answer?.ok) continue
    const { workers } = (await answer.json()) as { workers: boolean }
    if (workers || !needsWorker) return
  }
  throw new Error(`The service was not ready within ${READY_MS / 1000} s`)
}

interface Made {
  readonly id: string
  readonly secret: string
}

async function openProject({ config, principals }: Services): Promise<BenchProject> {
  const admin = await signIn(config.baseUrl, await readSuperAdminClient())
  const project: Made = await admin.post('admin/Project/', {
    resourceType: 'Project',
    name: 'Bench',
  })
  const home = `admin/projects/${project.id}`
  const client: Made = await admin.post(`${home}/client`, { name: 'Caller' })
  const token = (await signIn(config.baseUrl, client)).getAccessToken() ?? ''
  const context = await principals.project(project.id)
  if (!context) throw new Error('The bench project was not made')
  const principal = { ...systemPrincipal(context), isSuperAdmin: false }
  const deploy = async (body: string, extension: readonly object[] = []) => {
    const bot: Made = await admin.post(`${home}/bot`, { name: 'bench' })
    const path = `fhir/R4/Bot/${bot.id}`
    if (extension.length > 0) await admin.put(path, { ...bot, extension })
    const code = `exports.handler = async (medplum, event) => { ${body} }`
    await admin.post(`${path}/$deploy`, { code })
    return `/${path}/$execute`
  }
  return { projectId: project.id, admin, token, principal, deploy }
}
