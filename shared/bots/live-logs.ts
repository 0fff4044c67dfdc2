/**
 * Live logs of a bot's runs while somebody listens. Listeners say so on one channel, again and again; a worker
 * that has heard of them publishes on the channel of the bot. Without a listener nothing travels.
 */
import type { Config } from '../config/config.ts'
import type { Logger } from '../log.ts'
import { PREFIX } from '../platform/queue/scripts.ts'
import { openRedis, type Redis, untilReady } from '../platform/redis/redis.ts'

/** One thing that happened to a run. */
export type BotLogEvent =
  | {
      readonly type: 'start'
      readonly runId: string
      readonly started: string
      readonly attempt: number
      readonly requester: string | undefined
      readonly traceId: string
    }
  | { readonly type: 'log'; readonly runId: string; readonly text: string }
  | {
      readonly type: 'end'
      readonly runId: string
      readonly status: string
      readonly durationMs: number
      readonly cpuMs: number
      readonly memoryMb: number | undefined
    }
  /** So many messages were left out: the bot says more than can be passed on. */
  | { readonly type: 'gap'; readonly messages: number }

export interface BotLogMessage {
  /** Number of the Project in which the run acts. */
  readonly project: number
  readonly events: readonly BotLogEvent[]
}

const FOLLOW = `${PREFIX}:follow`
const channelOf = (botId: string) => `${PREFIX}:bot-log:${botId}`

const REPEAT_MS = 5000
/** Two repeats may be missed. */
const FORGET_MS = 3 * REPEAT_MS
/** The limit of one bot: more than a person reads, less than Redis would notice. */
const LENGTH_A_SECOND = 1_000_000
const COST_OF_A_MESSAGE = 500

/** Calls `hear` until `close`. Errors: after 30 s without Redis. */
export async function listenToBot(
  config: Config,
  log: Logger,
  botId: string,
  hear: (message: BotLogMessage) => void,
): Promise<{ close(): void }> {
  const subscriber = openRedis(config, 'subscribe', log)
  const redis = openRedis(config, 'subscribe', log)
  let repeat: NodeJS.Timeout | undefined
  const close = () => {
    clearInterval(repeat)
    subscriber.disconnect()
    redis.disconnect()
  }
  try {
    await Promise.all([untilReady(subscriber, log), untilReady(redis, log)])
    // Published by the workers only.
    subscriber.on('message', (_channel, text: string) => hear(JSON.parse(text) as BotLogMessage))
    await subscriber.subscribe(channelOf(botId))
    const say = () => redis.publish(FOLLOW, botId)
    await say()
    // While Redis is away the connection keeps one until it is back.
    repeat = setInterval(() => void say().catch(() => undefined), REPEAT_MS)
    return { close }
  } catch (error) {
    close()
    throw error
  }
}

export interface Followed {
  /** True while somebody listens to the bot. */
  has(botId: string): boolean
  /** Passes on what there is room for. */
  tell(botId: string, message: BotLogMessage): void
  close(): void
}

interface Budget {
  second: number
  length: number
  dropped: number
}

/** The worker's end. Waits up to 30 s for Redis. */
export async function openFollowed(config: Config, log: Logger, redis: Redis): Promise<Followed> {
  const until = new Map<string, number>()
  const budgets = new Map<string, Budget>()
  const subscriber = openRedis(config, 'subscribe', log)
  await untilReady(subscriber, log)
  subscriber.on('message', (_channel, botId: string) => {
    until.set(botId, Date.now() + FORGET_MS)
  })
  await subscriber.subscribe(FOLLOW)
  const sweep = setInterval(() => {
    for (const [botId, at] of until) {
      if (at > Date.now()) continue
      until.delete(botId)
      budgets.delete(botId)
    }
  }, FORGET_MS)

  function budgetOf(botId: string): Budget {
    const second = Math.floor(Date.now() / 1000)
    const known = budgets.get(botId)
    if (known?.second === second) return known
    const budget = { second, length: LENGTH_A_SECOND, dropped: known?.dropped ?? 0 }
    budgets.set(botId, budget)
    return budget
  }

  return {
    has: (botId) => (until.get(botId) ?? 0) > Date.now(),
    tell(botId, message) {
      const budget = budgetOf(botId)
      if (budget.length <= 0) {
        budget.dropped++
        return
      }
      const gap: BotLogEvent[] =
        budget.dropped === 0 ? [] : [{ type: 'gap', messages: budget.dropped }]
      const text = JSON.stringify({ ...message, events: [...gap, ...message.events] })
      budget.dropped = 0
      budget.length -= text.length + COST_OF_A_MESSAGE
      // A live log is best effort: lines that Redis cannot take now are lost.
      redis.publish(channelOf(botId), text).catch(() => undefined)
    },
    close() {
      clearInterval(sweep)
      subscriber.disconnect()
    },
  }
}
