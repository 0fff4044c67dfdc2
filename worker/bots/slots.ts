/**
 * Concurrency limits per bot and project. Configured caps are divided among live workers, without shared counters, so a
 * killed worker leaks none. Memory also bounds the runs of a worker. A run beyond its cap is held, oldest first, and
 * releases its place in the queue so that the next project's run comes through. When too many are held, the latest goes
 * back to the queue for a while.
 */

/** Too many runs are held, or the run was aborted while it was held. */
type NoSlot = { readonly kind: 'back'; readonly delayMs: number } | { readonly kind: 'aborted' }

/** The cap of the bot or project, the worker's memory, or the turn of another project. */
type HeldFor = 'bot' | 'project' | 'memory' | 'turn'

interface SlotsOptions {
  liveWorkers(): number
  /** Runs of a queue that use CPU at a time; a project gets half while others have runs. */
  readonly perQueue: number
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
  setIdle(isIdle: boolean): void
  free(): void
}

interface Asked {
  readonly bot: Place
  readonly project: Place
  readonly queue: string
  readonly added: number
  readonly signal: AbortSignal
  /** Called when the run starts or stops waiting for its place. */
  onHold(isHeld: boolean): void
}

interface Place {
  readonly id: string
  readonly cap: number
}

export interface Hold {
  /** `key` and `rate` are waits before the slot. */
  readonly reason: HeldFor | 'key' | 'rate'
  readonly ms: number
}

interface Held {
  readonly asked: Asked
  readonly by: HeldFor
  readonly since: number
  resolve(slot: Slot | NoSlot): void
}

export const MOST_HELD = 1000
const BACK_MS = 2000
/** A project counts as active this long after its last run. */
const LATELY_MS = 1000

export class Slots {
  readonly #options: SlotsOptions
  /** Runs by bot and by project; CPU-using runs by queue and project. */
  readonly #taken = new Map<string, number>()
  readonly #held: Held[] = []
  #latest = { project: '', at: 0 }
  #before = this.#latest

  constructor(options: SlotsOptions) {
    this.#options = options
  }

  take(asked: Asked): Slot | Promise<Slot | NoSlot> {
    this.#note(asked.project.id)
    const reason = this.#reasonOf(asked)
    return reason === undefined ? this.#occupy(asked) : this.#hold(asked, reason)
  }

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

  /** Reserves room for the first runs of another project; with several projects each has half. */
  #isMemoryFull(asked: Asked): boolean {
    const all = this.#options.room()
    if (this.#count('all') >= all) return true
    const share = this.#hasOthers(asked) ? Math.ceil(all / 2) : all - this.#options.perQueue
    return this.#count(`project ${asked.project.id}`) >= Math.max(1, share)
  }

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
    let isIdle = false
    for (const name of [...places, busy, 'all']) addTo(this.#taken, name, 1)
    return {
      kind: 'slot',
      ...(hold && { hold }),
      setIdle: (now) => {
        if (now === isIdle) return
        isIdle = now
        addTo(this.#taken, busy, now ? -1 : 1)
        if (now) this.#admitHeld()
      },
      free: () => {
        addTo(this.#taken, 'all', -1)
        for (const name of places) addTo(this.#taken, name, -1)
        if (!isIdle) addTo(this.#taken, busy, -1)
        this.#admitHeld()
      },
    }
  }

  #hold(asked: Asked, by: HeldFor): Promise<Slot | NoSlot> {
    if (asked.signal.aborted) return Promise.resolve({ kind: 'aborted' })
    const { promise, resolve } = Promise.withResolvers<Slot | NoSlot>()
    const one: Held = { asked, by, since: Date.now(), resolve }
    const at = this.#held.findLastIndex((other) => other.asked.added <= asked.added)
    this.#held.splice(at + 1, 0, one)
    const onAbort = () => this.#release(one)?.resolve({ kind: 'aborted' })
    asked.signal.addEventListener('abort', onAbort, { once: true })
    asked.onHold(true)
    const last = this.#held.length > MOST_HELD ? this.#held.at(-1) : undefined
    if (last !== undefined) this.#release(last)?.resolve({ kind: 'back', delayMs: BACK_MS })
    return promise
  }

  #release(one: Held): Held | undefined {
    const at = this.#held.indexOf(one)
    if (at < 0) return undefined
    this.#held.splice(at, 1)
    one.asked.onHold(false)
    return one
  }

  /** Visits full bots and projects once, however many of their runs are held. */
  #admitHeld(): void {
    if (this.#held.length === 0) return
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

/** Changes a count; one of 0 is removed. */
export function addTo<K>(counts: Map<K, number>, key: K, change: number): void {
  const count = (counts.get(key) ?? 0) + change
  if (count > 0) counts.set(key, count)
  else counts.delete(key)
}
