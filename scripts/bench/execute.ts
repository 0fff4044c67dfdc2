/**
 * `$execute` of a trivial bot over HTTP, through web, Redis, worker and sandbox, against the raw BullMQ
 * round trip of the same payload; both with 8 worker slots, in alternating rounds.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { connect } from '../session.ts'
import { type Load, measure, median, openWire } from './load.ts'
import { openRawQueue } from './raw-queue.ts'
import { openStage } from './stage.ts'

const ROUNDS = 5
const root = path.join(import.meta.dirname, '..', '..')
const input = JSON.stringify({ text: 'x'.repeat(190) })

export async function execute(seconds: number): Promise<readonly Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl, WORKER_CONCURRENCY: '8' })
  const raw = await openRawQueue(stage.config.redisUrl)
  const children = [
    startChild(stage.env, '--disable-warning=ExperimentalWarning', 'server/main.ts'),
    startChild(stage.env, '--no-node-snapshot', 'worker/main.ts'),
  ]
  try {
    await untilReady(baseUrl)
    Object.assign(process.env, {
      BASE_URL: baseUrl,
      SUPER_ADMIN_CLIENT_ID: stage.env.SUPER_ADMIN_CLIENT_ID,
      SUPER_ADMIN_CLIENT_SECRET: stage.env.SUPER_ADMIN_CLIENT_SECRET,
    })
    const { token, url } = await deployEcho()
    const figures: Figure[] = []
    for (const callers of [1, 64, 256]) {
      const wire = await openWire(baseUrl, callers, token, 'application/json')
      const rounds: { ours: Load; limit: Load }[] = []
      for (let round = 0; round < ROUNDS; round++) {
        const limit = await measure(callers, seconds, () => raw.roundTrip(input))
        const ours = await measure(callers, seconds, async (caller) => {
          return (await wire.send(caller, 'POST', url, input)) === 200
        })
        if (ours.failed > 0) throw new Error(`${ours.failed} of ${ours.done} calls failed`)
        rounds.push({ ours, limit })
      }
      wire.close()
      figures.push(...report(callers, rounds))
    }
    return figures
  } finally {
    await Promise.all(children.map(stopChild))
    await raw.close()
    await stage.close()
  }
}

function report(callers: number, rounds: readonly { ours: Load; limit: Load }[]): Figure[] {
  const middle = (side: 'ours' | 'limit', key: keyof Load) =>
    median(rounds.map((round) => round[side][key]))
  const show = (side: 'ours' | 'limit') =>
    `${Math.round(middle(side, 'perSecond'))}/s, p50 ${middle(side, 'p50Ms').toFixed(2)} ms`
  if (callers === 1) {
    const more = median(rounds.map(({ ours, limit }) => ours.p50Ms - limit.p50Ms))
    return [
      {
        what: 'execute, 1 caller, p50 above raw',
        ours: show('ours'),
        limit: show('limit'),
        ratio: `+${more.toFixed(2)} ms`,
        required: '<= 1.5 ms',
      },
    ]
  }
  const ratio = median(rounds.map(({ ours, limit }) => ours.perSecond / limit.perSecond))
  const tail = median(rounds.map(({ ours }) => ours.p99Ms / ours.p50Ms))
  return [
    {
      what: `execute, ${callers} callers`,
      ours: show('ours'),
      limit: show('limit'),
      ratio: ratio.toFixed(2),
      required: '>= 0.35',
    },
    {
      what: `execute, ${callers} callers, p99 / p50`,
      ours: `${middle('ours', 'p99Ms').toFixed(1)} ms`,
      limit: `${middle('limit', 'p99Ms').toFixed(1)} ms`,
      ratio: tail.toFixed(1),
      required: callers === 64 ? '<= 4' : '',
    },
  ]
}

async function deployEcho(): Promise<{ token: string; url: string }> {
  const admin = await connect()
  const project = await admin.post('admin/Project/', { resourceType: 'Project', name: 'Bench' })
  const home = `admin/projects/${project.id}`
  const client = await admin.post(`${home}/client`, { name: 'Caller' })
  const bot = await admin.post(`${home}/bot`, { name: 'echo' })
  await admin.post(`fhir/R4/Bot/${bot.id}/$deploy`, {
    code: 'exports.handler = async (medplum, event) => event.input',
  })
  const { token } = await connect({ id: String(client.id), secret: String(client.secret) })
  return { token, url: `/fhir/R4/Bot/${bot.id}/$execute` }
}

function startChild(env: NodeJS.ProcessEnv, ...args: string[]): ChildProcess {
  return spawn(process.execPath, args, { cwd: root, env, stdio: ['ignore', 'inherit', 'inherit'] })
}

async function stopChild(child: ChildProcess): Promise<void> {
  child.kill('SIGTERM')
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
}

async function untilReady(baseUrl: string): Promise<void> {
  for (const deadline = Date.now() + 30_000; Date.now() < deadline; await delay(100)) {
    const answer = await fetch(`${baseUrl}healthcheck`).catch(() => undefined)
    if (!answer?.ok) continue
    const { workers } = (await answer.json()) as { workers: boolean }
    if (workers) return
  }
  throw new Error('The service was not ready within 30 s')
}
