/** Imports the slots of a worker, whose order requests cannot force. */
import t from 'tap'
import { type Slot, Slots } from '../../../../worker/bots/slots.ts'
import { until } from '../../../fixtures/botica.ts'

const NONE = Number.POSITIVE_INFINITY
const PLACES = 8
const PATIENCE_MS = 60_000

function openSlots(room: number, liveWorkers = 1) {
  const slots = new Slots({ liveWorkers: () => liveWorkers, perQueue: PLACES, room: () => room })
  const admitted: Slot[] = []
  let onHold = 0
  function ask(project: string, count: number, caps: { bot?: number; project?: number } = {}) {
    const mine: Slot[] = []
    for (let n = 0; n < count; n++) {
      const taken = slots.take({
        bot: { id: `bot of ${project}`, cap: caps.bot ?? NONE },
        project: { id: project, cap: caps.project ?? NONE },
        queue: 'bots-sync',
        added: n,
        signal: new AbortController().signal,
        onHold: (isHeld) => {
          onHold += isHeld ? 1 : -1
        },
      })
      void Promise.resolve(taken).then((slot) => {
        if (slot.kind !== 'slot') return
        slot.setIdle(true)
        admitted.push(slot)
        mine.push(slot)
      })
    }
    return mine
  }
  return { slots, ask, admitted, onHold: () => onHold }
}

t.test('gives a single project all slots except a reserve for the next', async (t) => {
  const { ask, slots, onHold } = openSlots(100)
  const alone = ask('one', 300)
  await until(async () => alone.length === 100 - PLACES, PATIENCE_MS)
  t.equal(onHold(), 300 - alone.length, 'the others wait outside the queue')
  t.same(slots.held(), [{ project: 'one', reason: 'memory', count: 300 - alone.length }])

  const next = ask('two', PLACES)
  await until(async () => next.length === PLACES, PATIENCE_MS)
  alone.shift()?.free()
  t.equal(onHold(), 300 - 100 + PLACES, 'limits it to half with another project')
})

t.test('shares configured caps among living workers', async (t) => {
  for (const [reason, most] of [
    ['bot', 5],
    ['project', 10],
  ] as const) {
    const { ask, slots } = openSlots(1000, 2)
    const mine = ask('one', 30, { [reason]: 2 * most })
    await until(async () => mine.length === most, PATIENCE_MS)
    t.same(slots.held(), [{ project: 'one', reason, count: 30 - most }])
  }
})

t.test('reports why and how long a run was held', async (t) => {
  const { ask } = openSlots(1000)
  const mine = ask('one', 2, { bot: 1 })
  await until(async () => mine.length === 1, PATIENCE_MS)
  mine[0]?.free()
  await until(async () => mine.length === 2, PATIENCE_MS)
  t.equal(mine[0]?.hold, undefined)
  t.match(mine[1]?.hold, { reason: 'bot', ms: Number })
})
