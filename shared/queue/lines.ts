/**
 * Runs that wait for their key or for the rate of their bot. A key has a line in Redis, in the order of arrival: a run
 * leaves it when it has ended, and the first `most` of the line may run. A queued run that waits is a delayed job. The
 * end of an earlier run promotes it, and it looks again by itself in case that was missed.
 */
import type { Queue } from 'bullmq'
import { tooManyRequests } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Redis } from '../redis/redis.ts'
import { NOW, PREFIX, runScript, script } from '../redis/script.ts'
import type { BotQueue, ExecuteJob, Rate, Turn } from './jobs.ts'

/** Lines without a change are dropped after twice the longest wait of a run. */
const KEEP_MS = 2 * 3_600_000
/** A waiting run looks again after a time that depends on its place. */
const LOOK_MS = 1000
const LONGEST_LOOK_MS = 60_000
/** The job of a younger place may not have been added yet. */
const ADDED_MS = 10_000
/** Starts that come late may be made up for within this time. */
const CREDIT_MS = 100

/** Lua: the time in µs, which also orders runs that arrive within a millisecond. */
const MICROS = `
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]`

/** Lua: returns `heads`, a part of the line, each with its age in ms, appended to `reply`. */
const AGES = `
for i = 1, #heads, 2 do
  table.insert(reply, heads[i])
  table.insert(reply, math.floor((micros - heads[i + 1]) / 1000))
end
return reply`

/** KEYS line; ARGV run, most, ms to keep. Joins unless in the line. Returns the place, from 0, and the heads. */
const JOIN = script(`${MICROS}
redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', micros), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local reply = { redis.call('ZRANK', KEYS[1], ARGV[1]) }
if reply[1] < tonumber(ARGV[2]) then return reply end
local heads = redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1, 'WITHSCORES')
${AGES}`)

/**
 * KEYS line; ARGV run, most. Leaves the line. Returns the run whose turn comes by that. The others of the turn are left
 * alone: one of them may be delayed until its retry.
 */
const LEAVE = script(`${MICROS}
local place = redis.call('ZRANK', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
local reply = {}
if not place or place >= tonumber(ARGV[2]) then return reply end
local heads = redis.call('ZRANGE', KEYS[1], ARGV[2] - 1, ARGV[2] - 1, 'WITHSCORES')
${AGES}`)

/**
 * KEYS waiting runs, next start; ARGV run, ms between starts, most waiting (-1: any number), ms to keep. Returns the
 * expected ms until the start, or -1 when too many wait.
 */
const WAIT = script(`${NOW}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[4])
local count = redis.call('ZCARD', KEYS[1])
local most = tonumber(ARGV[3])
if most >= 0 and count >= most then return -1 end
redis.call('ZADD', KEYS[1], 'NX', now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local free = tonumber(redis.call('GET', KEYS[2]) or '0')
return math.ceil(math.max(free - now, 0) + redis.call('ZRANK', KEYS[1], ARGV[1]) * ARGV[2])`)

/**
 * KEYS waiting runs, next start; ARGV run, ms between starts, ms of credit, ms to keep. Starts the run, or returns ms
 * to wait.
 */
const START = script(`${NOW}
local free = tonumber(redis.call('GET', KEYS[2]) or '0')
if free > now then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[4])
  redis.call('ZADD', KEYS[1], 'NX', now, ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return math.ceil(free - now + redis.call('ZRANK', KEYS[1], ARGV[1]) * ARGV[2])
end
redis.call('ZREM', KEYS[1], ARGV[1])
local after = math.max(free, now - ARGV[3]) + ARGV[2]
redis.call('SET', KEYS[2], string.format('%.3f', after), 'PX', ARGV[4])
return 0`)

/** Where a run waits: in a queue of Redis, or as a delivery in PostgreSQL. */
type Origin = BotQueue | 'delivery'

interface Place {
  readonly origin: Origin
  readonly runId: string
}

type LineJob = Pick<ExecuteJob, 'runId' | 'asynchronous' | 'delivery' | 'class' | 'turn' | 'rate'>

export interface Wait {
  readonly delayMs: number
  readonly waitsFor?: 'key' | 'rate'
}

const NO_WAIT: Wait = { delayMs: 0 }

/** A run at the front of a line. */
interface Head extends Place {
  readonly ageMs: number
}

interface LinePlace {
  readonly rank: number
  /** Empty for a run whose turn it is. */
  readonly heads: readonly Head[]
}

export class Lines {
  readonly #redis: Redis
  readonly #bots: Readonly<Record<BotQueue, Queue>>
  readonly #log: Logger

  constructor(redis: Redis, bots: Readonly<Record<BotQueue, Queue>>, log: Logger) {
    this.#redis = redis
    this.#bots = bots
    this.#log = log
  }

  /** For a run that arrives. Errors: 429 when too many wait for the rate, unless it was accepted before. */
  async join(job: LineJob, wasAccepted = job.class === 'event'): Promise<Wait> {
    const { turn, rate } = job
    if (turn === undefined && rate === undefined) return NO_WAIT
    const [place, startMs] = await Promise.all([
      turn && joinLine(this.#redis, turn, toPlace(job)),
      rate && awaitStart(this.#redis, wasAccepted ? { ...rate, mostWaiting: -1 } : rate, job),
    ])
    if (rate !== undefined && startMs !== undefined && startMs < 0) {
      throw tooManyRequests(Math.max(1, Math.ceil(rate.msPerRun / 1000)))
    }
    const turnMs = turn && place ? lookMs(place.rank, turn.most) : 0
    const delayMs = Math.max(turnMs, startMs ?? 0)
    return delayMs === 0 ? NO_WAIT : { delayMs, waitsFor: turnMs > 0 ? 'key' : 'rate' }
  }

  /** Promotes a delayed job whose turn came before it was added. */
  async recheck({ turn, ...job }: LineJob): Promise<void> {
    if (turn === undefined) return
    const place = toPlace(job)
    const rank = await this.#redis.zrank(lineKey(turn), toMember(place))
    if (rank !== null && rank < turn.most) await this.#promote(place)
  }

  /** Returns ms until the run may look again; 0 when it starts now. Errors: those of Redis. */
  async start(job: LineJob, hasDelivery: (id: string) => Promise<boolean>): Promise<number> {
    const { turn, rate } = job
    const turnMs = turn === undefined ? 0 : await this.#takeTurn(turn, job, hasDelivery)
    if (turnMs > 0 || rate === undefined) return turnMs
    return await takeStart(this.#redis, rate, job)
  }

  /** Ends the turn of a run, and promotes the next run of its key. Errors: those of Redis. */
  async leave(job: LineJob): Promise<void> {
    const { turn, rate } = job
    if (rate !== undefined) await this.#redis.zrem(waitingKey(rate), job.runId)
    if (turn === undefined) return
    let leaving: Place | undefined = toPlace(job)
    while (leaving !== undefined) {
      const values = [toMember(leaving), turn.most]
      const reply = await runScript(this.#redis, LEAVE, [lineKey(turn)], values)
      const [next] = toHeads(toList(reply))
      const isKnown = next === undefined || (await this.#promote(next))
      leaving = isKnown || next.ageMs < ADDED_MS ? undefined : next
    }
  }

  /** A head without a job or delivery was lost, with Redis or its worker, and would hold its place. */
  async #takeTurn(
    turn: Turn,
    job: LineJob,
    hasDelivery: (id: string) => Promise<boolean>,
  ): Promise<number> {
    const { rank, heads } = await joinLine(this.#redis, turn, toPlace(job))
    let waitMs = lookMs(rank, turn.most)
    for (const { origin, runId, ageMs } of heads) {
      if (ageMs < ADDED_MS) continue
      const isKnown = await (origin === 'delivery'
        ? hasDelivery(runId)
        : hasJob(this.#bots[origin], runId))
      if (isKnown) continue
      await this.#redis.zrem(lineKey(turn), toMember({ origin, runId }))
      waitMs = 1
    }
    return job.delivery === true ? Math.min(waitMs, LOOK_MS) : waitMs
  }

  /** False for a run without a job. Deliveries look again by themselves. */
  async #promote({ origin, runId }: Place): Promise<boolean> {
    if (origin === 'delivery') return true
    const job = await this.#bots[origin].getJob(runId)
    if (job === undefined) return false
    // Rejects for a run that is not delayed.
    await job.promote().catch((error: Error) => {
      this.#log.debug({ runId, reason: error.message }, 'A run was not promoted')
    })
    return true
  }
}

async function joinLine(redis: Redis, turn: Turn, place: Place): Promise<LinePlace> {
  const values = [toMember(place), turn.most, KEEP_MS]
  const [rank, ...heads] = toList(await runScript(redis, JOIN, [lineKey(turn)], values))
  return { rank: Number(rank), heads: toHeads(heads) }
}

function lookMs(rank: number, most: number): number {
  if (rank < most) return 0
  return Math.min(LOOK_MS * Math.ceil((rank + 1) / most), LONGEST_LOOK_MS)
}

export async function hasJob(queue: Queue, runId: string): Promise<boolean> {
  return (await queue.getJobState(runId)) !== 'unknown'
}

async function awaitStart(redis: Redis, rate: Rate, job: LineJob): Promise<number> {
  const names = [waitingKey(rate), nextKey(rate)]
  const values = [job.runId, rate.msPerRun, rate.mostWaiting, KEEP_MS]
  return Number(await runScript(redis, WAIT, names, values))
}

async function takeStart(redis: Redis, rate: Rate, job: LineJob): Promise<number> {
  const names = [waitingKey(rate), nextKey(rate)]
  const values = [job.runId, rate.msPerRun, CREDIT_MS, KEEP_MS]
  return Number(await runScript(redis, START, names, values))
}

function lineKey({ key }: Turn): string {
  return `${PREFIX}:turn:${key}`
}

function waitingKey({ key }: Rate): string {
  return `${PREFIX}:rate:${key}`
}

function nextKey({ key }: Rate): string {
  return `${PREFIX}:rate-next:${key}`
}

function toPlace({ delivery, asynchronous, runId }: LineJob): Place {
  const queue = asynchronous === true ? 'bots-async' : 'bots-sync'
  return { origin: delivery === true ? 'delivery' : queue, runId }
}

const ORIGINS: readonly Origin[] = ['bots-sync', 'bots-async', 'delivery']

function toMember({ origin, runId }: Place): string {
  return `${origin} ${runId}`
}

function toHeads(items: readonly unknown[]): readonly Head[] {
  return items.flatMap((item, index) => {
    if (index % 2 === 1) return []
    const [name, runId = ''] = String(item).split(' ')
    const origin = ORIGINS.find((one) => one === name)
    return origin === undefined ? [] : [{ origin, runId, ageMs: Number(items[index + 1]) }]
  })
}

function toList(reply: unknown): readonly unknown[] {
  return Array.isArray(reply) ? reply : []
}
