/**
 * How many runs of a bot and of a project this worker takes at once: its share of the caps among the
 * workers that are alive. No counter is shared, so a killed worker leaks none; with caps above the
 * worker's own concurrency the question costs nothing.
 *
 * A run beyond the caps is held, the oldest first, and lends its place in the queue meanwhile, so that
 * the next project's run comes through. Beyond what can be held it goes back to the queue for a while,
 * slowly: a flood must not spin through the queue.
 */

/** Thrown for a run whose bot or project has its share; it comes back after `delayMs`. */
export class Deferred extends Error {
  readonly delayMs: number

  constructor(delayMs: number) {
    super('The bot or project has its share of this worker')
    this.delayMs = delayMs
  }
}

export interface SlotsOptions {
  liveWorkers(): number
  /** Runs of a queue that use the processor at a time; a project has half while others have runs, too. */
  readonly perQueue: number
}

export interface Slots {
  /** Errors: Deferred; what aborted the signal while the run was held. */
  take(asked: Asked): Slot | Promise<Slot>
}

export interface Slot {
  /** The run begins or ends to wait without using the processor. */
  rest(isResting: boolean): void
  free(): void
}

export interface Asked {
  readonly bot: Place
  readonly project: Place
  readonly queue: string
  /** Epoch ms when the run was asked for. */
  readonly added: number
  readonly signal: AbortSignal
  /** Whether the run waits for its place here. */
  onHold(isHeld: boolean): void
}

export interface Place {
  readonly id: string
  /** Over all workers. */
  readonly cap: number
}

interface Held {
  readonly asked: Asked
  resolve(slot: Slot): void
  reject(reason: unknown): void
  /** Its place in the queue is another's meanwhile. */
  readonly hasLent: boolean
  patience?: NodeJS.Timeout
}

const MOST_HELD = 32
/** How long a run that is one too many keeps its place in the queue before it goes back. */
const PATIENCE_MS = 20
const LONGEST_MS = 2000
/** A project that had a run so lately is one of the others. */
const LATELY_MS = 1000

export function createSlots({ liveWorkers, perQueue }: SlotsOptions): Slots {
  /** Runs by bot and by project; those that use the processor by queue and project. */
  const taken = new Map<string, number>()
  const deferred = new Map<string, number>()
  const held: Held[] = []
  let latest = { project: '', at: 0 }
  let before = latest

  function isFull(kind: string, { id, cap }: Place): boolean {
    const share = Math.max(1, Math.floor(cap / liveWorkers()))
    return (taken.get(`${kind} ${id}`) ?? 0) >= share
  }

  function hasHalf({ queue, project: { id } }: Asked): boolean {
    if ((taken.get(`${queue} ${id}`) ?? 0) < Math.ceil(perQueue / 2)) return false
    const other = latest.project === id ? before : latest
    return other.at > Date.now() - LATELY_MS
  }

  function isFree(asked: Asked): boolean {
    return !isFull('bot', asked.bot) && !isFull('project', asked.project) && !hasHalf(asked)
  }

  function note(project: string): void {
    if (latest.project !== project) {
      before = latest
      latest = { project, at: 0 }
    }
    latest.at = Date.now()
  }

  function occupy({ bot, project, queue }: Asked): Slot {
    const busy = `${queue} ${project.id}`
    const places = [`bot ${bot.id}`, `project ${project.id}`]
    let isResting = false
    for (const name of [...places, busy]) add(taken, name, 1)
    return {
      rest(now) {
        if (now === isResting) return
        isResting = now
        add(taken, busy, now ? -1 : 1)
        if (now) admitHeld()
      },
      free() {
        for (const name of places) {
          add(taken, name, -1)
          add(deferred, name, -1)
        }
        if (!isResting) add(taken, busy, -1)
        admitHeld()
      },
    }
  }

  function hold(asked: Asked): Promise<Slot> {
    asked.signal.throwIfAborted()
    const { promise, resolve, reject } = Promise.withResolvers<Slot>()
    const one: Held = { asked, resolve, reject, hasLent: held.length < MOST_HELD }
    const at = held.findLastIndex((other) => other.asked.added <= asked.added)
    held.splice(at + 1, 0, one)
    asked.signal.addEventListener('abort', () => release(one)?.reject(asked.signal.reason), {
      once: true,
    })
    if (one.hasLent) asked.onHold(true)
    else sendBackYoungest()
    return promise
  }

  function sendBackYoungest(): void {
    const one = held.findLast(({ patience }) => patience === undefined)
    if (one === undefined) return
    one.patience = setTimeout(() => {
      const name = `bot ${one.asked.bot.id}`
      const line = (deferred.get(name) ?? 0) + 1
      deferred.set(name, line)
      // The longer the line, the later the next look.
      release(one)?.reject(new Deferred(Math.min(line * PATIENCE_MS, LONGEST_MS)))
    }, PATIENCE_MS)
  }

  /** Undefined when it is no longer held. */
  function release(one: Held): Held | undefined {
    const at = held.indexOf(one)
    if (at < 0) return undefined
    held.splice(at, 1)
    clearTimeout(one.patience)
    if (one.hasLent) one.asked.onHold(false)
    return one
  }

  function admitHeld(): void {
    for (const one of [...held]) {
      if (isFree(one.asked)) release(one)?.resolve(occupy(one.asked))
    }
  }

  return {
    take(asked) {
      note(asked.project.id)
      return isFree(asked) ? occupy(asked) : hold(asked)
    },
  }
}

function add(counts: Map<string, number>, name: string, change: number): void {
  const count = (counts.get(name) ?? 0) + change
  if (count > 0) counts.set(name, count)
  else counts.delete(name)
}
