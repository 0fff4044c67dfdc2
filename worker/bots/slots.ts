/**
 * How many runs of a bot and of a project this worker takes at once. Caps exist where somebody has set them; this
 * worker has its share of them among the workers that are alive. No counter is shared, so a killed worker leaks
 * none. Besides, the memory of the worker has room for a number of runs, and a project that is alone may fill it.
 *
 * A run beyond its cap is held, the oldest first, and lends its place in the queue meanwhile, so that the next
 * project's run comes through. Beyond what can be held it goes back to the queue for a while, slowly: a flood must
 * not spin through the queue.
 */

/** A run that cannot be held any more comes back after `delayMs`. */
interface Deferral {
  readonly kind: 'back'
  readonly delayMs: number
}

/** A cap of the bot or of the project, the memory of the worker, or the turn of another project. */
type HeldFor = 'bot' | 'project' | 'memory' | 'turn'

interface SlotsOptions {
  liveWorkers(): number
  /** Runs of a queue that use the processor at a time; a project has half while others have runs, too. */
  readonly perQueue: number
  /** Runs that the memory of the worker has room for at the moment. */
  room(): number
}

export interface HeldRuns {
  readonly project: string
  readonly reason: HeldFor
  readonly count: number
}

export interface Slot {
  readonly kind: 'slot'
  readonly hold?: Hold
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
  /** Over all workers; Infinity without a cap. */
  readonly cap: number
}

/** Why a run was held first, and for how long in all. */
export interface Hold {
  readonly reason: HeldFor
  readonly ms: number
}

interface Held {
  readonly asked: Asked
  readonly by: HeldFor
  readonly since: number
  resolve(slot: Slot | Deferral): void
  reject(reason: unknown): void
  /** Its place in the queue is another's meanwhile. */
  readonly hasLent: boolean
  patience?: NodeJS.Timeout
}

/** Jobs that wait here and cost a few kilobytes each. */
export const MOST_HELD = 1000
/** How long a run that is one too many keeps its place in the queue before it goes back. */
const PATIENCE_MS = 20
const LONGEST_MS = 2000
/** A project that had a run so lately is one of the others. */
const LATELY_MS = 1000

export class Slots {
  readonly #options: SlotsOptions
  /** Runs in all, by bot and by project; those that use the processor by queue and project. */
  readonly #taken = new Map<string, number>()
  readonly #deferred = new Map<string, number>()
  readonly #held: Held[] = []
  #latest = { project: '', at: 0 }
  #before = this.#latest

  constructor(options: SlotsOptions) {
    this.#options = options
  }

  /** Errors: what aborted the signal while the run was held. */
  take(asked: Asked): Slot | Promise<Slot | Deferral> {
    this.#note(asked.project.id)
    const reason = this.#reasonOf(asked)
    return reason === undefined ? this.#occupy(asked) : this.#hold(asked, reason)
  }

  /** Runs that are held now, by project and reason. */
  held(): readonly HeldRuns[] {
    const groups = Map.groupBy(this.#held, ({ by, asked }) => `${by} ${asked.project.id}`)
    return [...groups.values()].flatMap((runs) => {
      const [first] = runs
      if (first === undefined) return []
      return [{ project: first.asked.project.id, reason: first.by, count: runs.length }]
    })
  }

  #count(name: string): number {
    return this.#taken.get(name) ?? 0
  }

  #isFull(kind: string, { id, cap }: Place): boolean {
    return (
      this.#count(`${kind} ${id}`) >= Math.max(1, Math.floor(cap / this.#options.liveWorkers()))
    )
  }

  #hasOthers({ project: { id } }: Asked): boolean {
    const other = this.#latest.project === id ? this.#before : this.#latest
    return other.at > Date.now() - LATELY_MS
  }

  #hasHalf(asked: Asked): boolean {
    const { queue, project } = asked
    return (
      this.#count(`${queue} ${project.id}`) >= Math.ceil(this.#options.perQueue / 2) &&
      this.#hasOthers(asked)
    )
  }

  /** A project that is alone leaves room for the first runs of the next; with others it has half. */
  #isMemoryFull(asked: Asked): boolean {
    const all = this.#options.room()
    if (this.#count('all') >= all) return true
    const share = this.#hasOthers(asked) ? Math.ceil(all / 2) : all - this.#options.perQueue
    return this.#count(`project ${asked.project.id}`) >= Math.max(1, share)
  }

  /** Undefined when the run may start. */
  #reasonOf(asked: Asked): HeldFor | undefined {
    if (this.#isFull('bot', asked.bot)) return 'bot'
    if (this.#isFull('project', asked.project)) return 'project'
    if (this.#isMemoryFull(asked)) return 'memory'
    return this.#hasHalf(asked) ? 'turn' : undefined
  }

  #note(project: string): void {
    if (this.#latest.project !== project) {
      this.#before = this.#latest
      this.#latest = { project, at: 0 }
    }
    this.#latest.at = Date.now()
  }

  #occupy({ bot, project, queue }: Asked, hold?: Hold): Slot {
    const busy = `${queue} ${project.id}`
    const places = [`bot ${bot.id}`, `project ${project.id}`]
    let isResting = false
    for (const name of [...places, busy, 'all']) add(this.#taken, name, 1)
    return {
      kind: 'slot',
      ...(hold && { hold }),
      rest: (now) => {
        if (now === isResting) return
        isResting = now
        add(this.#taken, busy, now ? -1 : 1)
        if (now) this.#admitHeld()
      },
      free: () => {
        add(this.#taken, 'all', -1)
        for (const name of places) {
          add(this.#taken, name, -1)
          add(this.#deferred, name, -1)
        }
        if (!isResting) add(this.#taken, busy, -1)
        this.#admitHeld()
      },
    }
  }

  #hold(asked: Asked, by: HeldFor): Promise<Slot | Deferral> {
    asked.signal.throwIfAborted()
    const { promise, resolve, reject } = Promise.withResolvers<Slot | Deferral>()
    const since = Date.now()
    const one: Held = { asked, by, since, resolve, reject, hasLent: this.#held.length < MOST_HELD }
    const at = this.#held.findLastIndex((other) => other.asked.added <= asked.added)
    this.#held.splice(at + 1, 0, one)
    asked.signal.addEventListener('abort', () => this.#release(one)?.reject(asked.signal.reason), {
      once: true,
    })
    if (one.hasLent) asked.onHold(true)
    else this.#sendBackYoungest()
    return promise
  }

  #sendBackYoungest(): void {
    const one = this.#held.findLast(({ patience }) => patience === undefined)
    if (one === undefined) return
    one.patience = setTimeout(() => {
      const name = `bot ${one.asked.bot.id}`
      const line = (this.#deferred.get(name) ?? 0) + 1
      this.#deferred.set(name, line)
      // The longer the line, the later the next look.
      const delayMs = Math.min(line * PATIENCE_MS, LONGEST_MS)
      this.#release(one)?.resolve({ kind: 'back', delayMs })
    }, PATIENCE_MS)
  }

  /** Undefined when it is no longer held. */
  #release(one: Held): Held | undefined {
    const at = this.#held.indexOf(one)
    if (at < 0) return undefined
    this.#held.splice(at, 1)
    clearTimeout(one.patience)
    if (one.hasLent) one.asked.onHold(false)
    return one
  }

  /** Bots and projects that are full are looked at once, however many of their runs are held. */
  #admitHeld(): void {
    const full = new Set<string>()
    for (const one of [...this.#held]) {
      const { bot, project, queue } = one.asked
      const turn = `${queue} ${project.id}`
      if (full.has(bot.id) || full.has(project.id) || full.has(turn)) continue
      const reason = this.#reasonOf(one.asked)
      if (reason !== undefined) {
        full.add(reason === 'bot' ? bot.id : reason === 'turn' ? turn : project.id)
        continue
      }
      const hold = { reason: one.by, ms: Date.now() - one.since }
      this.#release(one)?.resolve(this.#occupy(one.asked, hold))
    }
  }
}

function add(counts: Map<string, number>, name: string, change: number): void {
  const count = (counts.get(name) ?? 0) + change
  if (count > 0) counts.set(name, count)
  else counts.delete(name)
}
