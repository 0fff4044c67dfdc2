/**
 * Workers that are gone without a word. A killed process has its connections to Redis closed at once, long before its
 * locks end; one that is only slow keeps them. So a worker whose connection is missing twice in a row is lost, and
 * its jobs are given back. A worker that has just come back itself gives the others time to do so, too.
 */
import type { Logger } from '../../log.ts'
import type { Redis } from '../redis/redis.ts'
import { BOT_QUEUES } from './jobs.ts'
import { keys, PREFIX, runScript, script } from './scripts.ts'

/** Twice this and a moment is how long a killed worker's jobs are nobody's. */
const LOOK_MS = 700
const COME_BACK_MS = 5000
const MISSES = 2

/** The name of a worker's connection, and the beginning of the tokens of its locks. */
export const connectionNameOf = (workerId: string): string => `${PREFIX}:worker:${workerId}`

/**
 * KEYS active, stalled, stalled-check of a queue; ARGV the beginning of its keys, and of the tokens of who is lost.
 * Unlocks those jobs and answers how many there are: BullMQ's look for stalled jobs, which may be at once, finds them.
 */
const UNLOCK = script(`
local count = 0
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local lock = ARGV[1] .. id .. ':lock'
  local token = redis.call('GET', lock)
  if token and string.sub(token, 1, #ARGV[2]) == ARGV[2] then
    redis.call('UNLINK', lock)
    redis.call('SADD', KEYS[2], id)
    count = count + 1
  end
end
if count > 0 then redis.call('UNLINK', KEYS[3]) end
return count`)

/** Unlocks the jobs of a queue that the owner of such tokens had; answers how many. */
export async function unlockJobs(redis: Redis, queue: string, owner: string): Promise<number> {
  const names = ['active', 'stalled', 'stalled-check'].map((part) => `${queue}:${part}`)
  return Number(await runScript(redis, UNLOCK, names, [`${queue}:`, owner]))
}

export interface LostWorkersOptions {
  readonly redis: Redis
  readonly workerId: string
  readonly log: Logger
  /** Gives the jobs of that owner back. */
  giveBack(owner: string): Promise<unknown>
}

/** Looks after the other workers until it is stopped. */
export function watchWorkers(options: LostWorkersOptions): { stop(): void } {
  const { redis, workerId, log, giveBack } = options
  const missed = new Map<string, number>()
  let cameBackAt = Number.NEGATIVE_INFINITY
  let isLooking = false
  const onReady = () => {
    cameBackAt = performance.now()
  }

  async function look(): Promise<void> {
    const clients = String(await redis.client('LIST', 'TYPE', 'NORMAL'))
    const known = await Promise.all(
      BOT_QUEUES.map((name) => redis.zrangebyscore(keys.workers(name), '-inf', '+inf')),
    )
    for (const id of new Set(known.flat())) {
      const isHere = id === workerId || clients.includes(` name=${connectionNameOf(id)} `)
      const misses = isHere ? 0 : (missed.get(id) ?? 0) + 1
      if (misses < MISSES) missed.set(id, misses)
      else await bury(id)
    }
  }

  async function bury(id: string): Promise<void> {
    log.warn({ workerId: id }, 'A worker is gone, its jobs are given back')
    missed.delete(id)
    await giveBack(connectionNameOf(id))
    await Promise.all(BOT_QUEUES.map((name) => redis.zrem(keys.workers(name), id)))
  }

  const timer = setInterval(() => {
    if (isLooking || redis.status !== 'ready') return
    if (performance.now() - cameBackAt < COME_BACK_MS) return
    isLooking = true
    look()
      // A Redis that does not tell who is connected has the locks of lost workers end by themselves.
      .catch((cause: unknown) => log.debug({ cause }, 'Workers are not looked after'))
      .finally(() => {
        isLooking = false
      })
  }, LOOK_MS)
  redis.on('ready', onReady)
  return {
    stop() {
      clearInterval(timer)
      redis.off('ready', onReady)
    },
  }
}
