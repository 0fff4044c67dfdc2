/** Long work over many items that lets other requests have the thread in between. */
import { setImmediate as turn } from 'node:timers/promises'

/** A step takes some 20 µs at most. */
const STEPS = 500

/** Calls `work` for each item, one turn of the event loop for some. */
export async function paced<T>(items: Iterable<T>, work: (item: T) => void): Promise<void> {
  let left = STEPS
  for (const item of items) {
    work(item)
    left -= 1
    if (left > 0) continue
    left = STEPS
    await turn()
  }
}
