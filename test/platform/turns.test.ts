/** Work that arrives all at once is done in turns of the event loop, so that nobody else waits for all of it. */
import t from 'tap'
import { yieldTurn } from '../../shared/core/yielding.ts'

const MANY = 50
const BUDGET_MS = 5
const PIECE_MS = 2

function work(): void {
  const end = performance.now() + PIECE_MS
  while (performance.now() < end);
}

/** Counts turns of the event loop until it is stopped. */
function countTurns() {
  const turns = { count: 0, stop: () => clearImmediate(timer) }
  const count = () => {
    turns.count++
    timer = setImmediate(count)
  }
  let timer = setImmediate(count)
  return turns
}

t.test('pieces that come together are spread over many turns, in their order', async (t) => {
  const turns = countTurns()
  const done: number[] = []
  const inTurn = new Map<number, number>()
  await Promise.all(
    Array.from({ length: MANY }, async (_, piece) => {
      await yieldTurn()
      work()
      done.push(piece)
      inTurn.set(turns.count, (inTurn.get(turns.count) ?? 0) + 1)
    }),
  )
  turns.stop()
  t.same(done, [...done.keys()])
  // The last of a turn begins within the budget, and the call back that asks is one turn with the first immediates.
  t.ok(Math.max(...inTurn.values()) <= 2 * Math.ceil(BUDGET_MS / PIECE_MS))
  t.ok(inTurn.size >= MANY / (2 * Math.ceil(BUDGET_MS / PIECE_MS)))
})

t.test('who comes alone has the turn at once', async (t) => {
  await new Promise((resolve) => setImmediate(() => setImmediate(resolve)))
  const turns = countTurns()
  await yieldTurn()
  t.equal(turns.count, 0)
  turns.stop()
})

t.test('what a piece has resolved is done before the next piece begins', async (t) => {
  const seen: string[] = []
  await Promise.all(
    ['a', 'b', 'c'].map(async (name) => {
      await yieldTurn()
      seen.push(`${name} begins`)
      await Promise.resolve()
      await new Promise<void>((resolve) => process.nextTick(resolve))
      seen.push(`${name} ends`)
    }),
  )
  t.same(seen, ['a begins', 'a ends', 'b begins', 'b ends', 'c begins', 'c ends'])
})
