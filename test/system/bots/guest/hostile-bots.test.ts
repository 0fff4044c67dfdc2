import t from 'tap'
import { complaintAbout, startNeighbour } from '../../../fixtures/attacks/attack.ts'
import { eventually } from '../../../fixtures/bots/bots.ts'
import { openTestExecutors } from '../../../fixtures/bots/runs.ts'
import { memoryAttacks } from './memory-attacks.ts'
import { timeAttacks } from './time-attacks.ts'

// Idle executors end soon, so that the test sees their memory returned.
const executors = await openTestExecutors(t, { spares: 2, idleMs: 1000 })
const before = await settledMb()

const LONGEST_MS = 30_000

for (const attacks of [timeAttacks, memoryAttacks]) {
  const neighbour = startNeighbour(executors)
  for (const attack of attacks) {
    t.test(`ends ${attack.name} in time with a documented result`, async (t) => {
      t.equal(await complaintAbout(attack, executors), undefined)
    })
  }
  t.test('answers a bot of another project throughout', async (t) => {
    const { songs, longestMs } = await neighbour.stop()
    t.ok(songs > 3, `answered ${songs} times`)
    t.ok(longestMs < LONGEST_MS, `after ${Math.round(longestMs)} ms at worst`)
  })
}

t.test('returns the memory of all attacks', async (t) => {
  await eventually(async () => ((await settledMb()) < before * 1.3 ? true : undefined))
  t.match(executors.stats(), { running: 0, waiting: 0, spares: 2, quarantined: 0 })
})

/** Waits for the other executors to end; returns the resident size of the spares in MB. */
async function settledMb(): Promise<number> {
  return await eventually(async () => {
    const { executors: bound, spares, quarantined, rssMb } = executors.stats()
    return bound === 0 && spares === 2 && quarantined === 0 && rssMb > 60 ? rssMb : undefined
  })
}
