import t from 'tap'
import { complaintAbout, startNeighbour } from '../../fixtures/attacks/attack.ts'
import { escapeAttacks, outputAttacks } from '../../fixtures/attacks/code.ts'
import { openTestExecutors } from '../../fixtures/bots/runs.ts'

const executors = await openTestExecutors(t, { spares: 2 })

/** So long on any machine, however busy. */
const LONGEST_MS = 30_000

const neighbour = startNeighbour(executors)
for (const attack of [...outputAttacks, ...escapeAttacks]) {
  t.test(`${attack.name} comes to nothing but the words of the contract`, async (t) => {
    t.equal(await complaintAbout(attack, executors), undefined)
  })
}

t.test('a neighbour of another project was answered all the while', async (t) => {
  const { songs, longestMs } = await neighbour.stop()
  t.ok(songs > 3, `${songs} times`)
  t.ok(longestMs < LONGEST_MS, `after ${Math.round(longestMs)} ms at worst`)
})
