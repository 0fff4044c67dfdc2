/** Bot runs during faults, and their common assertions. */
import type { Test } from 'tap'
import { type Tenant, until } from '../../fixtures/botica.ts'
import { execute, handler } from '../../fixtures/bots/bots.ts'
import type { Answer } from '../../fixtures/client.ts'
import { complaints, type Running } from '../../fixtures/services/cluster.ts'

/** Long enough for another worker to start and take over on a busy machine. */
const CALLER_WAITS_MS = 100_000

/**
 * Writes a Basic with the run if `n` is odd, takes `ms`, returns `n`. The last of 200 runs are long: also on a busy
 * machine they are under way when a fault comes after the first ones.
 */
export const CODE = handler(`
  const { n = 0, ms = n < 180 ? 50 + (n * 37) % 150 : 4000 } = event.input
  const code = { text: event.runId }
  if (n % 2 === 1) await medplum.createResource({ resourceType: 'Basic', code })
  await new Promise((resolve) => setTimeout(resolve, ms))
  return { n }`)
interface Timed {
  readonly n: number
  readonly answer: Answer
  readonly ms: number
}

export async function timed(n: number, asked: Promise<Answer>): Promise<Timed> {
  const startedAt = Date.now()
  const answer = await asked
  return { n, answer, ms: Date.now() - startedAt }
}

/** Starts runs with n from 0 concurrently; calls `onAnswer` for each. */
export function runMany(
  { admin }: Tenant,
  id: string,
  count: number,
  onAnswer: () => void = () => undefined,
): Promise<Timed[]> {
  const one = async (n: number) => {
    const wait = { Prefer: `wait=${CALLER_WAITS_MS / 1000}` }
    const done = await timed(n, execute(admin, id, { n }, wait))
    onAnswer()
    return done
  }
  return Promise.all(Array.from({ length: count }, (_, n) => one(n)))
}

/** Asserts timely responses with the result, or the outcome of an interruption after a write. */
export function assertAnswered(t: Test, runs: readonly Timed[]): void {
  const slowest = Math.max(...runs.map(({ ms }) => ms))
  t.ok(slowest < CALLER_WAITS_MS + 10_000, `answers the slowest caller in ${slowest} ms`)
  const odd = runs.filter(({ n, answer }) => !isResult(n, answer) && !(n % 2 && isCut(answer)))
  t.same(
    odd.map(({ n, answer }) => `${n}: ${answer.status} ${answer.text}`),
    [],
  )
}

export const isResult = (n: number, { status, text }: Answer) =>
  status === 200 && text === JSON.stringify({ n })
const isCut = ({ status, text }: Answer) => status === 500 && text.includes('Bot run interrupted')

export async function basics({ admin }: Tenant): Promise<readonly string[]> {
  const found = await admin.get<{ entry?: { resource: { code: { text: string } } }[] }>(
    'Basic?_count=1000',
  )
  return (found.body.entry ?? []).map(({ resource }) => resource.code.text)
}

/** Asserts that no run wrote twice, and that each answered one wrote once. */
export async function assertWrittenOnce(
  t: Test,
  tenant: Tenant,
  runs: readonly Timed[],
): Promise<void> {
  const ids = await basics(tenant)
  t.equal(new Set(ids).size, ids.length, 'no run wrote twice')
  const written = new Set(ids)
  const answered = runs.filter(({ n, answer }) => n % 2 === 1 && answer.status === 200)
  t.ok(answered.every(({ answer }) => written.has(String(answer.headers.get('x-bot-run-id')))))
}

/** Returns undefined for a timely 503 with Retry-After, otherwise the response. */
async function otherThan503(asked: Promise<Answer>, withinMs: number): Promise<string | undefined> {
  const { answer, ms } = await timed(0, asked)
  const { status, headers, text } = answer
  const isRight = status === 503 && text.includes('"transient"') && headers.has('retry-after')
  return isRight && ms < withinMs ? undefined : `${status} after ${ms} ms: ${text}`
}

/** Asserts that every response during this time is a timely 503. */
export async function assertUnavailable(
  t: Test,
  forMs: number,
  withinMs: number,
  ask: () => readonly Promise<Answer>[],
): Promise<void> {
  const since = Date.now()
  const odd = new Set<string>()
  await until(async () => {
    const found = await Promise.all(ask().map((asked) => otherThan503(asked, withinMs)))
    for (const text of found) if (text !== undefined) odd.add(text)
    return Date.now() - since > forMs
  }, 60_000)
  t.same([...odd], [])
}

/** Asserts one log line for the outage and one for each affected request, without stacks and secrets. */
export function assertQuietLog(t: Test, running: Running, seen: number): void {
  const lines = complaints(running).slice(seen)
  t.same(
    lines.filter((line) => /stack|\n\s+at |known-to-redis|postgres:\/\//.test(line)).slice(0, 3),
    [],
  )
  const outage = lines.filter((line) => !line.includes('"requestId"'))
  t.match(outage.join('\n'), /(Redis|PostgreSQL) is away/)
  t.same(outage.slice(5), [], 'has at most five lines')
}
