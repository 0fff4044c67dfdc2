/**
 * A request, level by level: what the resolvers of one level ask for is gathered until none of them has
 * anything left to do, then sent as one statement a kind. Answers are handed out some at a time, so that
 * other requests get their turn of the event loop in between.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'

/** Answers in the order of the items; each is made when its turn comes. */
export type Answers<Answer> = readonly (() => Answer)[]

export interface Levels {
  /** Items of one `key` and one level are one call of `run`. */
  ask<Item, Answer>(
    key: string,
    item: Item,
    run: (items: readonly Item[]) => Promise<Answers<Answer>>,
  ): Promise<Answer>
  /** Waits for a turn when `work` has used up the present one. */
  pace(work: number): Promise<void> | undefined
  /** Counts work that was done without waiting. */
  spend(work: number): void
  /** Gives others a turn. */
  rest(): Promise<void>
  /** Turns of the event loop that were given to others. */
  readonly turns: number
}

/** Statements of one request at the same time. */
const AT_ONCE = 4
const SLICE_MS = 5
/** Values handed to resolvers in one turn, where the clock does not end it earlier. */
const SLICE_WORK = 2_000

interface Group {
  readonly items: unknown[]
  readonly settle: { resolve(answer: unknown): void; reject(error: unknown): void }[]
  readonly run: (items: readonly unknown[]) => Promise<Answers<unknown>>
}

/** `check` throws when the request must end. */
export function openLevels(check: () => void): Levels {
  let groups = new Map<string, Group>()
  let running = false
  let turns = 0
  let used = 0
  let all = 0
  let began = performance.now()
  let waiting: (() => void)[] = []

  const isUsedUp = () => used > SLICE_WORK || performance.now() - began > SLICE_MS
  const rest = () => {
    const { promise, resolve } = Promise.withResolvers<void>()
    if (waiting.push(resolve) === 1) void wake()
    return promise
  }

  /** One after the other: thousands that wait would use up much more than one turn. */
  async function wake(): Promise<void> {
    for (let next = 0; next < waiting.length; ) {
      await nextTurn()
      turns++
      used = 0
      began = performance.now()
      for (; next < waiting.length && !isUsedUp(); next++) {
        waiting[next]?.()
        // It goes on before the next one does.
        await undefined
      }
    }
    waiting = []
  }

  const spend = (work: number) => {
    used += work
    all += work
  }
  const pace = (work: number) => {
    spend(work)
    return isUsedUp() ? rest().then(check) : undefined
  }

  async function runGroup({ items, settle, run }: Group): Promise<void> {
    try {
      check()
      const answers = await run(items)
      for (const [i, { resolve, reject }] of settle.entries()) {
        try {
          resolve(answers[i]?.())
        } catch (error) {
          reject(error)
        }
        const turn = pace(1)
        if (turn !== undefined) await turn
      }
    } catch (error) {
      for (const { reject } of settle) reject(error)
    }
  }

  /** Resolvers that were paced have asked by then: two turns have passed in which none of them went on. */
  async function settled(): Promise<void> {
    for (let before = -1; before !== all; ) {
      before = all
      await rest()
      await rest()
    }
  }

  async function work(): Promise<void> {
    await settled()
    while (groups.size > 0) {
      const level = [...groups.values()]
      groups = new Map()
      const lanes = Array.from({ length: AT_ONCE }, async () => {
        for (let next = level.shift(); next !== undefined; next = level.shift()) {
          await runGroup(next)
        }
      })
      await Promise.all(lanes)
      await settled()
    }
    running = false
  }

  return {
    ask<Item, Answer>(
      key: string,
      item: Item,
      run: (items: readonly Item[]) => Promise<Answers<Answer>>,
    ) {
      const { promise, resolve, reject } = Promise.withResolvers<Answer>()
      // Groups of one key hold items and answers of the types of that key.
      const group = groups.get(key) ?? { items: [], settle: [], run: run as Group['run'] }
      group.items.push(item)
      group.settle.push({ resolve: resolve as (answer: unknown) => void, reject })
      groups.set(key, group)
      if (!running) {
        running = true
        void work()
      }
      return promise
    },
    pace,
    spend,
    rest,
    get turns() {
      return turns
    },
  }
}
