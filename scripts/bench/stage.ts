/** Runs the service for one bench, on a throw-away PostgreSQL and Redis with durable settings. */
import { rmSync } from 'node:fs'
import path from 'node:path'
import type { MedplumClient } from '@medplum/core'
import { type Principal, systemPrincipal } from '../../shared/access/principal.ts'
import { openServices } from '../../shared/api/open-services.ts'
import { type Config, readConfig } from '../../shared/core/config/config.ts'
import { createLogger } from '../../shared/core/log.ts'
import type { Services } from '../../shared/request/services.ts'
import { temporaryFolder } from '../account.ts'
import { readCredentials, toEnvironment } from '../credentials.ts'
import { prepare } from '../migrate.ts'
import { startPostgres } from '../postgres.ts'
import { startRedis } from '../redis.ts'
import { followLog, freePort, type Service, startProcess } from '../service.ts'
import { readSuperAdminClient, signIn } from '../session.ts'

const STOP_MS = 5000

export interface Stage {
  readonly config: Config
  readonly services: Services
  readonly baseUrl: string
  /** Starts another process, stopped with the rest; its settings override the stage's. */
  start(name: 'web' | 'worker', settings?: NodeJS.ProcessEnv): Promise<Service>
  /** Creates a Project, a signed-in client, and a principal limited to it. */
  openProject(): Promise<BenchProject>
}

export interface BenchProject {
  readonly projectId: string
  readonly admin: MedplumClient
  readonly client: MedplumClient
  readonly token: string
  readonly principal: Principal
  /** Deploys a bot with this handler body; returns the path of its `$execute`. */
  deploy(body: string, extension?: readonly object[]): Promise<string>
}

/** fsync is on, as in production: without it write results would be too good. */
export async function withStage<T>(work: (stage: Stage) => Promise<T>): Promise<T> {
  const folder = temporaryFolder('botica-bench-')
  const running: Service[] = []
  const keep = (service: Service) => void running.unshift(service)
  try {
    const [postgres, redis, port] = await Promise.all([
      startPostgres(
        { folder: path.join(folder, 'postgres'), sharedBuffersMb: 1024, durable: true },
        keep,
      ),
      startRedis({ folder: path.join(folder, 'redis'), durable: true }, keep),
      freePort(),
    ])
    const baseUrl = `http://127.0.0.1:${port}/`
    const env = Object.assign(process.env, toEnvironment(readCredentials(folder, {})), {
      PORT: String(port),
      BASE_URL: baseUrl,
      DATABASE_URL: postgres.url,
      REDIS_URL: redis.url,
      DATA_DIR: folder,
      LOG_LEVEL: 'warn',
      RATE_LIMIT_PER_MINUTE: '0',
      AUTH_RATE_LIMIT_PER_MINUTE: '0',
    })
    const config = readConfig(env)
    await prepare(config)
    const services = await openServices(config, createLogger('warn', 'script'))
    const start: Stage['start'] = (name, settings) => {
      const place = path.join(folder, `${name}-${running.length}`)
      return startProcess(name, place, { ...env, ...settings }, (service) => {
        keep(service)
        followLog(place, console.error)
      })
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
      await services.close()
    }
  } finally {
    for (const service of running) await service.stop(STOP_MS)
    rmSync(folder, { recursive: true, force: true })
  }
}
async function openProject({ config, principals }: Services): Promise<BenchProject> {
  const admin = await signIn(config.baseUrl, readSuperAdminClient())
  const project = await admin.post('admin/Project/', {
    resourceType: 'Project',
    name: 'Bench',
  })
  const home = `admin/projects/${project.id}`
  const client = await signIn(
    config.baseUrl,
    await admin.post(`${home}/client`, { name: 'Caller' }),
  )
  const token = client.getAccessToken() ?? ''
  const context = await principals.project(project.id)
  if (!context) throw new Error('The bench project was not made')
  const principal = { ...systemPrincipal(context), isSuperAdmin: false }
  const deploy = async (body: string, extension: readonly object[] = []) => {
    const bot = await admin.post(`${home}/bot`, { name: 'bench' })
    const path = `fhir/R4/Bot/${bot.id}`
    if (extension.length > 0) await admin.put(path, { ...bot, extension })
    const code = `exports.handler = async (medplum, event) => { ${body} }`
    await admin.post(`${path}/$deploy`, { code })
    return `/${path}/$execute`
  }
  return { projectId: project.id, admin, client, token, principal, deploy }
}
