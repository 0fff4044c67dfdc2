import t from 'tap'
import { complaintAbout, startNeighbour } from '../../fixtures/attacks/attack.ts'
import { memoryAttacks } from '../../fixtures/attacks/memory.ts'
import { timeAttacks } from '../../fixtures/attacks/time.ts'
import { eventually } from '../../fixtures/bots/bots.ts'
import { openTestExecutors } from '../../fixtures/bots/runs.ts'

// Executors that nobody uses end soon, so that what they took can be seen to come back.
const executors = await openTestExecutors(t, { spares: 2, idleMs: 1000 })
const before = await settledMb()

/** So long on any machine, however busy. */
const LONGEST_MS = 30_000

for (const attacks of [timeAttacks, memoryAttacks]) {
  const neighbour = startNeighbour(executors)
  for (const attack of attacks) {
    t.test(`${attack.name} ends in time and in the words of the contract`, async (t) => {
      t.equal(await complaintAbout(attack, executors), undefined)
    })
  }
  t.test('a neighbour of another project was answered all the while', async (t) => {
    const { songs, longestMs } = await neighbour.stop()
    t.ok(songs > 3, `${songs} times`)
    t.ok(longestMs < LONGEST_MS, `after ${Math.round(longestMs)} ms at worst`)
  })
}

t.test('the memory that all of them took has come back', async (t) => {
  await eventually(async () => ((await settledMb()) < before * 1.3 ? true : undefined))
  t.match(executors.stats(), { running: 0, waiting: 0, spares: 2, quarantined: 0 })
})

/** Resident size of the spares alone, in MB; waits for the other executors to end. */
async function settledMb(): Promise<number> {
  return await eventually(async () => {
    const { executors: bound, spares, quarantined, rssMb } = executors.stats()
    return bound === 0 && spares === 2 && quarantined === 0 && rssMb > 60 ? rssMb : undefined
  })
}
