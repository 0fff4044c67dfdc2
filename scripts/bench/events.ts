/**
 * Subscriptions through one worker: how soon after its answer a change reaches a receiver and starts a
 * Bot, and how many a second reach a receiver beside how many plain requests it takes from this process.
 */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { startWeb, startWorker, stopChild, untilReady } from './children.ts'
import { descendantsCpuUs } from './cpu.ts'
import { deployBots } from './deployed.ts'
import { median } from './load.ts'
import { openStage } from './stage.ts'

const EVENTS_A_SECOND = 1000
const BUNDLE = 500
const AT_ONCE = 10
const CODE = { code: { text: 'bench' } }
const PATIENCE_MS = 120_000

export async function events(seconds: number): Promise<readonly Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const settings = { PORT: String(port), BASE_URL: baseUrl, HOOK_TARGETS: 'all', BOT_FETCH: 'all' }
  const stage = await openStage(settings)
  const children = [startWeb(stage.env), startWorker(stage.env)]
  const receiver = await openReceiver()
  try {
    await untilReady(baseUrl, true)
    const code = `exports.handler = async () => { await fetch('${receiver.url}/bot', { method: 'POST' }) }`
    const { token, ids } = await deployBots(stage.env, { told: code })
    const post = async (url: string, body: object) => {
      const answer = await fetch(`${baseUrl}fhir/R4${url}`, {
        method: 'POST',
        headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/fhir+json' },
        body: JSON.stringify(body),
      })
      if (!answer.ok) throw new Error(`POST ${url} answered ${answer.status}`)
      await answer.arrayBuffer()
    }
    const subscribe = (criteria: string, endpoint: string) =>
      post('/Subscription', {
        resourceType: 'Subscription',
        status: 'active',
        reason: 'bench',
        criteria,
        channel: { type: 'rest-hook', endpoint },
      })
    await subscribe('Basic', `${receiver.url}/hook`)
    await subscribe('Device', `Bot/${ids.told}`)
    await subscribe('Patient', `${receiver.url}/many`)

    const latency = async (path: string, resource: { readonly resourceType: string }) => {
      const found: number[] = []
      const end = performance.now() + seconds * 1000
      while (performance.now() < end || found.length < 20) {
        const next = receiver.count(path) + 1
        await post(`/${resource.resourceType}`, resource)
        const start = performance.now()
        await receiver.until(path, next)
        found.push(performance.now() - start)
      }
      return median(found.slice(found.length >> 2))
    }
    const hookMs = await latency('/hook', { resourceType: 'Basic', ...CODE })
    const botMs = await latency('/bot', { resourceType: 'Device' })
    const entry = Array.from({ length: BUNDLE }, () => ({
      request: { method: 'POST', url: 'Patient' },
      resource: { resourceType: 'Patient', gender: 'female' },
    }))
    const total = Math.ceil((seconds * EVENTS_A_SECOND) / BUNDLE) * BUNDLE
    for (let i = 0; i < total; i += BUNDLE) {
      await post('', { resourceType: 'Bundle', type: 'transaction', entry })
    }
    // Those that came while the changes were made are no figure.
    const before = receiver.count('/many')
    const [workerUs, postgresUs] = [cpuUs('worker/main.ts'), cpuUs('postgres')]
    const start = performance.now()
    await receiver.until('/many', total)
    const perSecond = ((total - before) * 1000) / (performance.now() - start)
    const cpuMs = (name: string, beforeUs: number) =>
      `${((cpuUs(name) - beforeUs) / 1000 / (total - before)).toFixed(2)} ms`
    const cpu = {
      worker: cpuMs('worker/main.ts', workerUs),
      postgres: cpuMs('postgres', postgresUs),
    }
    const raw = await rawPerSecond(receiver, seconds)
    const show = (ms: number) => `p50 ${ms.toFixed(1)} ms`
    return [
      { what: 'change to receiver', ours: show(hookMs), limit: '', ratio: '', required: '' },
      { what: 'change to Bot', ours: show(botMs), limit: '', ratio: '', required: '<= 50 ms' },
      {
        what: `events, one worker (${total - before} left when all were written)`,
        ours: `${Math.round(perSecond)}/s`,
        limit: `${Math.round(raw)}/s`,
        ratio: (perSecond / raw).toFixed(2),
        required: '>= 500/s',
      },
      { what: 'CPU an event: worker', ours: cpu.worker, limit: '', ratio: '', required: '' },
      { what: 'CPU an event: PostgreSQL', ours: cpu.postgres, limit: '', ratio: '', required: '' },
    ]
  } finally {
    await Promise.all(children.map(stopChild))
    receiver.close()
    await stage.close()
  }
}

function cpuUs(name: string): number {
  return descendantsCpuUs((command) => command.includes(name))
}

type Receiver = Awaited<ReturnType<typeof openReceiver>>

async function openReceiver() {
  const counts = new Map<string, number>()
  const server = createServer((req, res) => {
    req.resume().on('end', () => {
      const path = req.url ?? ''
      counts.set(path, count(path) + 1)
      res.end()
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo // it listens
  const count = (path: string) => counts.get(path) ?? 0
  return {
    url: `http://127.0.0.1:${port}`,
    count,
    async until(path: string, wanted: number) {
      const deadline = performance.now() + PATIENCE_MS
      while (count(path) < wanted) {
        if (performance.now() > deadline) throw new Error(`${count(path)} of ${wanted} arrived`)
        await delay(1)
      }
    },
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}

async function rawPerSecond({ url }: Receiver, seconds: number): Promise<number> {
  const end = performance.now() + seconds * 1000
  let done = 0
  const body = JSON.stringify({ resourceType: 'Patient', gender: 'female' })
  const send = async () => {
    while (performance.now() < end) {
      const answer = await fetch(`${url}/raw`, { method: 'POST', body })
      await answer.arrayBuffer()
      done += 1
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, send))
  return done / seconds
}
