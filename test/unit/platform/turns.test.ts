/** Work that arrives at once is spread over event loop turns, so that other requests are served. */
import t from 'tap'
import { yieldTurn } from '../../../shared/core/yielding.ts'

const MANY = 50
const BUDGET_MS = 5
const PIECE_MS = 2

function work(): void {
  const end = performance.now() + PIECE_MS
  while (performance.now() < end);
}

function countTurns() {
  const turns = { count: 0, stop: () => clearImmediate(timer) }
  const count = () => {
    turns.count++
    timer = setImmediate(count)
  }
  let timer = setImmediate(count)
  return turns
}

t.test('spreads simultaneous pieces over many turns in order', async (t) => {
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
  // The last piece of a turn starts within the budget, and the asking callback shares one turn with
  // the first immediates.
  t.ok(Math.max(...inTurn.values()) <= 2 * Math.ceil(BUDGET_MS / PIECE_MS))
  t.ok(inTurn.size >= MANY / (2 * Math.ceil(BUDGET_MS / PIECE_MS)))
})

t.test('starts a single piece immediately', async (t) => {
  await new Promise((resolve) => setImmediate(() => setImmediate(resolve)))
  const turns = countTurns()
  await yieldTurn()
  t.equal(turns.count, 0)
  turns.stop()
})

t.test('runs continuations of a piece before the next piece', async (t) => {
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
