/** What the profiles of one resource may cost: they are a tenant's, and hold the thread while they run. */
import { tooCostly } from '../../errors.ts'

/** Counts steps, of some 100 ns each. Errors: 400 `too-costly`. */
export type Spend = (steps?: number) => void

/** Far more than any profile needs. A busy machine takes no part in it. */
const MAX_CPU_MS = 1_000
const STEPS_BETWEEN_LOOKS = 2_000
/** So many that the clock is looked at. */
export const MANY_STEPS = STEPS_BETWEEN_LOOKS

/** The thread's own time is looked at now and then, for the call alone costs 1 µs. */
export function createMeter(): Spend {
  const start = process.threadCpuUsage()
  let left = STEPS_BETWEEN_LOOKS
  return (steps = 1) => {
    left -= steps
    if (left > 0) return
    left = STEPS_BETWEEN_LOOKS
    const { user, system } = process.threadCpuUsage(start)
    if ((user + system) / 1_000 > MAX_CPU_MS) {
      throw tooCostly('The profiles take too long to check')
    }
  }
}
