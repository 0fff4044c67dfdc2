/**
 * Quarantine: runs repeated after an unexplained crash, and bot versions that have killed executors, each in a separate
 * process.
 */
import { Cache } from '../../shared/core/cache.ts'
import {
  type ActiveRun,
  type Ended,
  type ExecutorProcess,
  remainingMs,
} from './executor-process.ts'
import type { BotRun } from './run-result.ts'
import type { Spares } from './spare-executors.ts'

const KILLS = 2
const KILLS_WITHIN_MS = 10 * 60_000
const MAX_PROCESSES = 2
const MAX_VERSIONS = 10_000

export class Quarantine {
  readonly processes = new Set<ExecutorProcess>()
  readonly #spares: Spares
  readonly #kills = new Cache<string, number[]>({ name: 'kills', max: MAX_VERSIONS })
  readonly #waiting: (() => void)[] = []
  #open = 0

  constructor(spares: Spares) {
    this.#spares = spares
  }

  /** True for a bot version that killed two executors in 10 minutes; a new version starts clean. */
  holds(run: BotRun): boolean {
    return (this.#kills.get(versionOf(run))?.length ?? 0) >= KILLS
  }

  get heldVersions(): number {
    return [...this.#kills.values()].filter(({ length }) => length >= KILLS).length
  }

  recordKill(run: BotRun): void {
    const since = Date.now() - KILLS_WITHIN_MS
    const before = this.#kills.get(versionOf(run)) ?? []
    if (before.length >= KILLS) return
    const recent = before.filter((at) => at > since)
    this.#kills.set(versionOf(run), [...recent, Date.now()])
  }

  condemn(version: Pick<BotRun, 'botKey' | 'codeHash'>): void {
    this.#kills.set(versionOf(version), Array(KILLS).fill(Date.now()))
  }

  /** Runs alone in a separate process; undefined when it was cancelled or out of time before. */
  async run(active: ActiveRun): Promise<Ended | undefined> {
    if (this.#open >= MAX_PROCESSES) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    } else this.#open++
    let process: ExecutorProcess | undefined
    try {
      process = await this.#spares.take()
      this.processes.add(process)
      if (active.signal.aborted || remainingMs(active) <= 0) return undefined
      return await process.start(active)
    } finally {
      if (process) this.processes.delete(process)
      process?.kill({ cause: 'closed' })
      const next = this.#waiting.shift()
      if (next) next()
      else this.#open--
    }
  }
}

function versionOf({ botKey, codeHash }: Pick<BotRun, 'botKey' | 'codeHash'>): string {
  return `${botKey} ${codeHash}`
}
