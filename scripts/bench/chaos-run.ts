/**
 * Load on bots while workers are killed: what was accepted against what came of it. The service and its
 * workers belong to the caller.
 */
import type { ChildProcess } from 'node:child_process'
import { setTimeout as delay } from 'node:timers/promises'

export interface ChaosOptions {
  readonly baseUrl: string
  readonly token: string
  /** Its bot takes `{ ms, effect }` and waits for so long; with `effect` it writes a resource first. */
  readonly botId: string
  readonly seconds: number
  readonly killEveryMs: number
  readonly workers: number
  /** Callers that ask for later, and callers that wait. */
  readonly callers: number
  /** Resolves when the worker takes jobs. */
  startWorker(): Promise<ChildProcess>
}

export interface Ledger {
  readonly kills: number
  readonly accepted: number
  readonly completed: number
  readonly failed: number
  readonly cancelled: number
  /** Accepted, and in no final state when all others are. */
  readonly lost: number
  /** Runs with a caller who waited, and what they were answered. */
  readonly sync: Readonly<Record<string, number>>
  readonly slowestSyncMs: number
}

const SETTLED_MS = 180_000
const CANCEL_EVERY = 20
const LONGEST_RUN_MS = 400

/** Ends what it started except the last workers, which finish what is left; the caller stops them. */
export async function runChaos(options: ChaosOptions): Promise<Ledger> {
  const ready = await Promise.all(
    Array.from({ length: options.workers }, () => options.startWorker()),
  )
  const starting = new Set<Promise<unknown>>()
  const ends = Date.now() + options.seconds * 1000
  const accepted = new Map<string, string>()
  const sync: Record<string, number> = {}
  let slowestSyncMs = 0
  let kills = 0

  async function askForLater(): Promise<void> {
    for (let n = 0; Date.now() < ends; n++) {
      const answer = await execute(options, { Prefer: 'respond-async' })
      const url = answer.headers.get('content-location')
      // What was refused (no Redis, no place) is not accepted, so not counted.
      if (answer.status !== 202 || url === null) await delay(100)
      else {
        accepted.set(url, 'accepted')
        if (n % CANCEL_EVERY === 0) await send(options, 'DELETE', url)
      }
    }
  }

  async function askAndWait(): Promise<void> {
    while (Date.now() < ends) {
      const askedAt = Date.now()
      const answer = await execute(options, {})
      const text = await answer.text()
      const what = text.includes('Bot run interrupted') ? 'interrupted' : String(answer.status)
      sync[what] = (sync[what] ?? 0) + 1
      slowestSyncMs = Math.max(slowestSyncMs, Date.now() - askedAt)
      if (answer.status === 503) await delay(100)
    }
  }

  async function kill(): Promise<void> {
    while (Date.now() + options.killEveryMs < ends) {
      await delay(options.killEveryMs)
      // On a slow machine a start takes longer than the pause; one at least is to take jobs.
      if (ready.length < 2) continue
      const [victim] = ready.splice(Math.floor(Math.random() * ready.length), 1)
      victim?.kill('SIGKILL')
      kills++
      const next = options.startWorker().then((worker) => ready.push(worker))
      starting.add(next)
      void next.finally(() => starting.delete(next))
    }
    await Promise.all(starting)
  }

  await Promise.all([
    ...Array.from({ length: options.callers }, askForLater),
    ...Array.from({ length: options.callers }, askAndWait),
    kill(),
  ])
  await settle(options, accepted)
  const count = (status: string) => [...accepted.values()].filter((one) => one === status).length
  return {
    kills,
    accepted: accepted.size,
    completed: count('completed'),
    failed: count('error'),
    cancelled: count('cancelled'),
    lost: accepted.size - count('completed') - count('error') - count('cancelled'),
    sync,
    slowestSyncMs,
  }
}

/** Looks at each job until it is final; after a while what is left is lost. */
async function settle(options: ChaosOptions, accepted: Map<string, string>): Promise<void> {
  const deadline = Date.now() + SETTLED_MS
  for (const [url] of accepted) {
    for (;;) {
      const answer = await send(options, 'GET', url)
      const { status = 'lost' } = (await answer.json()) as { status?: string }
      accepted.set(url, status)
      if (answer.status !== 202 || Date.now() > deadline) break
      await delay(200)
    }
  }
}

function execute(options: ChaosOptions, headers: Record<string, string>): Promise<Response> {
  const input = { ms: Math.floor(Math.random() * LONGEST_RUN_MS), effect: Math.random() < 0.3 }
  return send(options, 'POST', `fhir/R4/Bot/${options.botId}/$execute`, JSON.stringify(input), {
    'Content-Type': 'application/json',
    ...headers,
  })
}

function send(
  { baseUrl, token }: ChaosOptions,
  method: string,
  path: string,
  body?: string,
  headers: Record<string, string> = {},
): Promise<Response> {
  return fetch(new URL(path, baseUrl), {
    method,
    headers: { Authorization: `Bearer ${token}`, ...headers },
    ...(body === undefined ? {} : { body }),
  })
}

/** Code of the bot. */
export const CHAOS_BOT = `exports.handler = async (medplum, { input, runId }) => {
  if (input.effect) await medplum.createResource({ resourceType: 'Basic', code: { text: runId } })
  await new Promise((resolve) => setTimeout(resolve, input.ms))
  return runId
}`
