/**
 * Live logs of runs. Listeners announce themselves repeatedly on one channel; workers then publish on the bot's
 * channel. Without a listener nothing is published.
 */
import { type Bus, messageKind } from '../redis/bus.ts'

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
  /** Messages dropped: the bot logs more than the limit. */
  | { readonly type: 'gap'; readonly messages: number }

export interface BotLogMessage {
  readonly project: number
  readonly events: readonly BotLogEvent[]
}

/** Address of a bot with listeners: see `botAddress`. */
const FOLLOW = messageKind<string>('follow')
const LOG = messageKind<BotLogMessage>('bot-log')

const REPEAT_MS = 5000
const FORGET_MS = 3 * REPEAT_MS
/** Per bot: above reading speed, below a load for Redis. */
const LENGTH_A_SECOND = 1_000_000
const COST_OF_A_MESSAGE = 500

/** Calls `listener` until `close`. Errors: those of Redis. */
export async function subscribeToBotLogs(
  bus: Bus,
  bot: string,
  listener: (message: BotLogMessage) => void,
): Promise<{ close(): void }> {
  const announce = () => bus.publish(FOLLOW, bot)
  // Fails while Redis is unavailable, without a retry.
  await announce()
  const listening = await bus.listen(LOG, listener, bot)
  const repeat = setInterval(() => void announce().catch(() => undefined), REPEAT_MS)
  return {
    close() {
      clearInterval(repeat)
      listening.close().catch(() => undefined)
    },
  }
}

export type FollowedRuns = Awaited<ReturnType<typeof openFollowed>>

interface Budget {
  second: number
  length: number
  dropped: number
}

export async function openFollowed(bus: Bus) {
  const until = new Map<string, number>()
  const budgets = new Map<string, Budget>()
  const listening = await bus.listen(FOLLOW, (bot) => {
    until.set(bot, Date.now() + FORGET_MS)
  })
  const sweep = setInterval(() => {
    for (const [bot, at] of until) {
      if (at > Date.now()) continue
      until.delete(bot)
      budgets.delete(bot)
    }
  }, FORGET_MS)

  function currentBudget(bot: string): Budget {
    const second = Math.floor(Date.now() / 1000)
    const known = budgets.get(bot)
    if (known?.second === second) return known
    const budget = { second, length: LENGTH_A_SECOND, dropped: known?.dropped ?? 0 }
    budgets.set(bot, budget)
    return budget
  }

  return {
    /** True while the bot has a listener. */
    has: (bot: string) => (until.get(bot) ?? 0) > Date.now(),
    publish(bot: string, message: BotLogMessage): void {
      const budget = currentBudget(bot)
      if (budget.length <= 0) {
        budget.dropped++
        return
      }
      const gap: BotLogEvent[] =
        budget.dropped === 0 ? [] : [{ type: 'gap', messages: budget.dropped }]
      const events = [...gap, ...message.events]
      const lengths = events.map((event) => (event.type === 'log' ? event.text.length : 0))
      budget.dropped = 0
      budget.length -= lengths.reduce((sum, length) => sum + length, COST_OF_A_MESSAGE)
      // Live logs are best effort: lines are lost while Redis is unavailable.
      bus.publish(LOG, { ...message, events }, bot).catch(() => undefined)
    },
    close() {
      clearInterval(sweep)
      listening.close().catch(() => undefined)
    },
  }
}
