/**
 * Every attack of the test suite in turn, and the longest that a neighbour of another project waited
 * meanwhile. Its limit is its own longest wait while nobody attacks.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { type Attack, complaintAbout, startNeighbour } from '../../test/fixtures/attacks/attack.ts'
import { escapeAttacks, outputAttacks } from '../../test/fixtures/attacks/code.ts'
import { memoryAttacks } from '../../test/fixtures/attacks/memory.ts'
import { timeAttacks } from '../../test/fixtures/attacks/time.ts'
import { openTestExecutors } from '../../test/fixtures/bot-runs.ts'
import type { Figure } from '../bench.ts'

const LONGEST_MS = 250

const kinds: Readonly<Record<string, readonly Attack[]>> = {
  time: timeAttacks,
  memory: memoryAttacks,
  output: outputAttacks,
  escapes: escapeAttacks,
}

/** `seconds` without an attack, then each kind. */
export async function hostile(seconds: number): Promise<readonly Figure[]> {
  await using stack = new AsyncDisposableStack()
  const executors = await openTestExecutors({ teardown: (end) => stack.defer(end) }, { spares: 2 })
  const quiet = startNeighbour(executors)
  await delay(seconds * 1000)
  const { longestMs: limitMs } = await quiet.stop()
  const figures: Figure[] = []
  for (const [kind, attacks] of Object.entries(kinds)) {
    const neighbour = startNeighbour(executors)
    const complaints: string[] = []
    for (const attack of attacks) {
      const complaint = await complaintAbout(attack, executors)
      if (complaint !== undefined) complaints.push(`${attack.name} ${complaint}`)
    }
    const { longestMs, songs } = await neighbour.stop()
    if (complaints.length > 0) console.error(complaints.join('\n'))
    figures.push({
      what: `${kind}: ${attacks.length} attacks, ${songs} questions`,
      ours: `${longestMs.toFixed(0)} ms longest wait, ${complaints.length} got through`,
      limit: `${limitMs.toFixed(0)} ms in peace`,
      ratio: (longestMs / limitMs).toFixed(1),
      required: `${longestMs <= LONGEST_MS ? 'reached' : 'missed'}: ${LONGEST_MS} ms`,
    })
  }
  return figures
}
