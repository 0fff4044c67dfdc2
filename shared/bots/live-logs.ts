/**
 * Live logs of a bot's runs while somebody listens. Listeners say so on one channel, again and again; a worker
 * that has heard of them publishes on the channel of the bot. Without a listener nothing travels.
 */
import { type Bus, messageKind } from '../redis/bus.ts'

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

/** The id of a bot whose runs are listened to. */
const FOLLOW = messageKind<string>('follow')
/** Events of the runs of a bot; its id is the address. */
const LOG = messageKind<BotLogMessage>('bot-log')

const REPEAT_MS = 5000
/** Two repeats may be missed. */
const FORGET_MS = 3 * REPEAT_MS
/** The limit of one bot: more than a person reads, less than Redis would notice. */
const LENGTH_A_SECOND = 1_000_000
const COST_OF_A_MESSAGE = 500

/** Calls `hear` until `close`. Errors: those of Redis. */
export async function subscribeToBotLogs(
  bus: Bus,
  botId: string,
  hear: (message: BotLogMessage) => void,
): Promise<{ close(): void }> {
  const say = () => bus.publish(FOLLOW, botId)
  // While Redis is away this fails, and nobody waits for it to come back.
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

export interface FollowedRuns {
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

/** The worker's end. */
export async function openFollowed(bus: Bus): Promise<FollowedRuns> {
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
    has: (botId) => (until.get(botId) ?? 0) > Date.now(),
    tell(botId, message) {
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
      // A live log is best effort: lines that Redis cannot take now are lost.
      bus.publish(LOG, { ...message, events }, botId).catch(() => undefined)
    },
    close() {
      clearInterval(sweep)
      listening.close().catch(() => undefined)
    },
  }
}
