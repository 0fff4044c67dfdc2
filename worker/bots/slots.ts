/**
 * How many runs of a bot and of a project this worker takes at once: its share of the caps among the
 * workers that are alive. No counter is shared, so a killed worker leaks none; with caps above the
 * worker's own concurrency the question costs nothing.
 */

/** Thrown for a run whose bot or project has its share; it comes back after `delayMs`. */
export class Deferred extends Error {
  readonly delayMs: number

  constructor(delayMs: number) {
    super('The bot or project has its share of this worker')
    this.delayMs = delayMs
  }
}

export interface Slots {
  /** Errors: Deferred. Answers what gives the place back. */
  take(places: readonly Place[]): () => void
}

export interface Place {
  readonly name: string
  /** Over all workers. */
  readonly cap: number
}

const SHORTEST_MS = 20
const LONGEST_MS = 2000

export function createSlots(liveWorkers: () => number): Slots {
  const taken = new Map<string, number>()
  const deferred = new Map<string, number>()

  return {
    take(places) {
      const workers = liveWorkers()
      const full = places.find(
        ({ name, cap }) => (taken.get(name) ?? 0) >= Math.max(1, Math.floor(cap / workers)),
      )
      if (full !== undefined) {
        // The longer the line, the later the next look: a flood must not spin through the queue.
        const line = (deferred.get(full.name) ?? 0) + 1
        deferred.set(full.name, line)
        throw new Deferred(Math.min(line * SHORTEST_MS, LONGEST_MS))
      }
      for (const { name } of places) add(taken, name, 1)
      return () => {
        for (const { name } of places) {
          add(taken, name, -1)
          add(deferred, name, -1)
        }
      }
    },
  }
}

function add(counts: Map<string, number>, name: string, change: number): void {
  const count = (counts.get(name) ?? 0) + change
  if (count > 0) counts.set(name, count)
  else counts.delete(name)
}
