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

/** Id of a bot with listeners. */
const FOLLOW = messageKind<string>('follow')
const LOG = messageKind<BotLogMessage>('bot-log')

const REPEAT_MS = 5000
const FORGET_MS = 3 * REPEAT_MS
/** Per bot: above reading speed, below a load for Redis. */
const LENGTH_A_SECOND = 1_000_000
const COST_OF_A_MESSAGE = 500

/** Calls `hear` until `close`. Errors: those of Redis. */
export async function subscribeToBotLogs(
  bus: Bus,
  botId: string,
  hear: (message: BotLogMessage) => void,
): Promise<{ close(): void }> {
  const say = () => bus.publish(FOLLOW, botId)
  // Fails while Redis is unavailable, without a retry.
  await say()
  const listening = await bus.listen(LOG, hear, botId)
  const repeat = setInterval(() => void say().catch(() => undefined), REPEAT_MS)
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
  const listening = await bus.listen(FOLLOW, (botId) => {
    until.set(botId, Date.now() + FORGET_MS)
  })
  const sweep = setInterval(() => {
    for (const [botId, at] of until) {
      if (at > Date.now()) continue
      until.delete(botId)
      budgets.delete(botId)
    }
  }, FORGET_MS)

  function currentBudget(botId: string): Budget {
    const second = Math.floor(Date.now() / 1000)
    const known = budgets.get(botId)
    if (known?.second === second) return known
    const budget = { second, length: LENGTH_A_SECOND, dropped: known?.dropped ?? 0 }
    budgets.set(botId, budget)
    return budget
  }

  return {
    /** True while the bot has a listener. */
    has: (botId: string) => (until.get(botId) ?? 0) > Date.now(),
    tell(botId: string, message: BotLogMessage): void {
      const budget = currentBudget(botId)
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
      bus.publish(LOG, { ...message, events }, botId).catch(() => undefined)
    },
    close() {
      clearInterval(sweep)
      listening.close().catch(() => undefined)
    },
  }
}
