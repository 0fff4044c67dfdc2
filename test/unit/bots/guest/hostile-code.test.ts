import t from 'tap'
import { complaintAbout, startNeighbour } from '../../../fixtures/attacks/attack.ts'
import { openTestExecutors } from '../../../fixtures/bots/runs.ts'
import { escapeAttacks, outputAttacks } from './code-attacks.ts'

const executors = await openTestExecutors(t, { spares: 2 })

const LONGEST_MS = 30_000

const neighbour = startNeighbour(executors)
for (const attack of [...outputAttacks, ...escapeAttacks]) {
  t.test(`ends ${attack.name} with a documented result only`, async (t) => {
    t.equal(await complaintAbout(attack, executors), undefined)
  })
}

t.test('answers a bot of another project throughout', async (t) => {
  const { songs, longestMs } = await neighbour.stop()
  t.ok(songs > 3, `answered ${songs} times`)
  t.ok(longestMs < LONGEST_MS, `after ${Math.round(longestMs)} ms at worst`)
})
