/** Redis connections and queues of a process. */
import { Queue } from 'bullmq'
import type { Config } from '../core/config/config.ts'
import type { Logger } from '../core/log.ts'
import type { Bus } from '../redis/bus.ts'
import { endStart, openRedis, type Redis, untilReady } from '../redis/redis.ts'
import { PREFIX } from '../redis/script.ts'
import { BOT_QUEUES, type BotQueue, EXPORTS, IMPORTS, REQUESTS } from './jobs.ts'

/** BullMQ's queue events have no reader. */
const EVENTS = { events: { maxLen: 1 } }

export interface Parts {
  readonly config: Config
  readonly log: Logger
  readonly redis: Redis
  readonly bus: Bus
  readonly bots: ReadonlyMap<BotQueue, Queue>
  readonly requests: Queue
  readonly exports: Queue
  readonly imports: Queue
  readonly all: readonly Queue[]
}

/** Waits up to 30 s for Redis. */
export async function openParts(config: Config, bus: Bus, log: Logger): Promise<Parts> {
  const redis = openRedis(config, 'request', log)
  await untilReady(redis, log)
  const open = (name: string) => {
    const queue = new Queue(name, { connection: redis, prefix: PREFIX, streams: EVENTS })
    queue.on('error', (error) => log.debug({ queue: name, reason: error.message }, 'Queue'))
    return queue
  }
  const bots = new Map(BOT_QUEUES.map((name) => [name, open(name)] as const))
  const [requests, exports, imports] = [open(REQUESTS), open(EXPORTS), open(IMPORTS)]
  const all = [...bots.values(), requests, exports, imports]
  await Promise.all(all.map((queue) => queue.waitUntilReady()))
  endStart(redis, config)
  return { config, log, redis, bus, bots, requests, exports, imports, all }
}
