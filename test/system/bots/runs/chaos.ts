/** Load on bots while workers are killed, with the fate of accepted runs. The caller owns service and workers. */
import type { ChildProcess } from 'node:child_process'
import { setTimeout as delay } from 'node:timers/promises'
import { seeded } from '../../../fixtures/policy/oracle.ts'

const random = seeded(Number(process.env.TEST_SEED ?? 1))

interface ChaosOptions {
  readonly baseUrl: string
  readonly token: string
  /** A bot with input `{ ms, effect }` that waits for `ms`; with `effect` it writes a resource first. */
  readonly botId: string
  readonly seconds: number
  readonly killEveryMs: number
  readonly workers: number
  /** Number of asynchronous callers and of waiting callers. */
  readonly callers: number
  startWorker(): Promise<ChildProcess>
}

interface Ledger {
  readonly kills: number
  readonly accepted: number
  readonly completed: number
  readonly failed: number
  readonly cancelled: number
  /** Accepted runs without a final state when all others have one. */
  readonly lost: number
  /** Number of synchronous runs by result. */
  readonly sync: Readonly<Record<string, number>>
  readonly slowestSyncMs: number
}

const SETTLED_MS = 180_000
const CANCEL_EVERY = 20
const LONGEST_RUN_MS = 400

/** Runs the load. Stops everything except the last workers, which finish the remaining runs; the caller stops them. */
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
      // A rejected run (no Redis, no capacity) is not counted as accepted.
      if (answer.status !== 202 || url === null) await delay(100)
      else {
        accepted.set(url, 'accepted')
        // Not the first: on a slow machine a caller has only one run, which must complete.
        if (n % CANCEL_EVERY === 1) await send(options, 'DELETE', url)
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
      // A start may take longer than the pause; at least one worker must stay ready.
      if (ready.length < 2) continue
      const [victim] = ready.splice(random(ready.length), 1)
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

/** Polls each job until it is final; after a timeout the others count as lost. */
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
  const input = { ms: random(LONGEST_RUN_MS), effect: random(10) < 3 }
  return send(options, 'POST', `fhir/R4/Bot/${options.botId}/$execute`, {
    body: JSON.stringify(input),
    headers: {
      'Content-Type': 'application/json',
      ...headers,
    },
  })
}

interface Sent {
  readonly body?: string | undefined
  readonly headers?: Record<string, string> | undefined
}

function send(
  { baseUrl, token }: ChaosOptions,
  method: string,
  path: string,
  { body, headers = {} }: Sent = {},
): Promise<Response> {
  return fetch(new URL(path, baseUrl), {
    method,
    headers: { Authorization: `Bearer ${token}`, ...headers },
    ...(body === undefined ? {} : { body }),
  })
}

export const CHAOS_BOT = `exports.handler = async (medplum, { input, runId }) => {
  if (input.effect) await medplum.createResource({ resourceType: 'Basic', code: { text: runId } })
  await new Promise((resolve) => setTimeout(resolve, input.ms))
  return runId
}`
