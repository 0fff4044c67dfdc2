/** Memory that this process may use, as the container or the machine has it. */
import { totalmem } from 'node:os'

const MB = 1024 * 1024
/** A larger budget is somebody's decision. */
const MOST_MB = 2048

/** The limit of the container (cgroup), or half of a machine that is shared with others; 2 GB at most. */
export function defaultMemoryMb(total = totalmem(), limit = process.constrainedMemory()): number {
  // Without a limit Node answers 0, or a number that no machine has.
  const isLimited = limit > 0 && limit < total
  return Math.min(Math.floor((isLimited ? limit : total / 2) / MB), MOST_MB)
}
