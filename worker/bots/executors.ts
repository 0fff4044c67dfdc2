/**
 * Where bots run: the worker's side of the executors. One child process a project, blank spares, and the
 * rules for what happens when a process dies with runs in it.
 *
 * A process that was killed for one run's sake fails that run; its neighbours start again elsewhere. When
 * nobody knows whose fault it was, each run is repeated once, alone, and the guilty one shows itself. A run
 * that may have had an effect is never repeated.
 */
import { availableParallelism } from 'node:os'
import { unavailable } from '../../shared/core/errors.ts'
import type { Logger } from '../../shared/core/log.ts'
import {
  type ActiveRun,
  type Death,
  type Ended,
  ExecutorProcess,
  type Host,
  remainingMs,
} from './executor-process.ts'
import { Tenant } from './executor-tenant.ts'
import { Quarantine } from './quarantine.ts'
import { type BotRun, failed, type RunFailure, type RunResult, resultOf } from './run-result.ts'
import { Spares } from './spare-executors.ts'

export interface ExecutorsOptions {
  readonly log: Logger
  /** Projects that have an executor at a time; the one that calls least often makes room. */
  readonly maxExecutors: number
  /** Beyond it idle executors end; unlimited by default. */
  readonly memoryMb?: number
  readonly spares: number
  readonly isolatesPerBot: number
  readonly runsPerExecutor?: number
  readonly idleMs?: number
  /** Starts a blank executor; tests count and delay it. */
  readonly start?: () => ExecutorProcess
}

export interface ExecutorsStats {
  readonly executors: number
  readonly spares: number
  readonly quarantined: number
  /** Bot versions that always run alone. */
  readonly heldVersions: number
  readonly isolates: number
  readonly running: number
  readonly waiting: number
  readonly rssMb: number
  readonly deaths: Readonly<Record<Death['cause'], number>>
}

const CHECK_MS = 100
const IDLE_MS = 10 * 60_000
const MAX_AGE_MS = 60 * 60_000
const MAX_REPEATS = 2
/** How long a project may wait for an executor while all are busy with others. */
const TURN_MS = 250
/** Executors that are started for projects at a time: a crowd of starts would all be late. */
const BINDING_AT_ONCE = Math.max(2, availableParallelism())
/** Less is not worth a start. */
const SHORTEST_REPEAT_MS = 20

/** The worker's own part of its memory, with a spare. */
const WORKER_MB = 250
/** Measured memory of an idle bound executor, its part of what all share included. */
const EXECUTOR_MB = 13
const FEWEST_EXECUTORS = 2
/** The executors' own memory, as a part of the worker's, from which on hardly a run is added. */
const TOO_MUCH = 1

/** Measured memory of a run that waits in an isolate of its own. */
const ISOLATE_MB = 2
const FEWEST_RUNS = 16

/**
 * The idle one with the longest pauses; of those alike, the one that got its executor last. Where more projects than
 * there are executors call in turn, those that have one then keep it: the one longest unused would be the next to call,
 * and each call would cost a start.
 */
function leastUsed(bound: readonly Tenant[]): Tenant | undefined {
  const idle = bound.filter(({ isIdle }) => isIdle)
  const longest = Math.max(...idle.map(({ pause }) => pause))
  const [last] = idle.filter(({ pause }) => pause >= longest).sort((a, b) => b.boundAt - a.boundAt)
  return last
}

/** How many runs a worker with so much memory has at a time; each has an isolate. */
export function runsWithin(memoryMb: number): number {
  const leftMb = memoryMb - WORKER_MB - FEWEST_EXECUTORS * EXECUTOR_MB
  return Math.max(FEWEST_RUNS, Math.floor(leftMb / ISOLATE_MB))
}

/** How many executors a worker with so much memory has; two even if they do not fit. */
export function executorsWithin(memoryMb: number): number {
  return Math.max(FEWEST_EXECUTORS, Math.floor((memoryMb - WORKER_MB) / EXECUTOR_MB))
}

/** Starts the spares; `close` ends every process. */
export async function openExecutors(options: ExecutorsOptions): Promise<Executors> {
  const executors = new Executors(options)
  await executors.ready()
  return executors
}

export class Executors {
  readonly #options: ExecutorsOptions
  readonly #memoryMb: number
  readonly #spares: Spares
  readonly #quarantine: Quarantine
  /** In the order of last use. */
  readonly #tenants = new Map<string, Tenant>()
  readonly #deaths = { exit: 0, heartbeat: 0, memory: 0, timeout: 0, cancelled: 0, closed: 0 }
  readonly #checks: NodeJS.Timeout
  readonly #binding = new Set<Tenant>()
  #lastCheck = Date.now()
  #ownMb = 0
  #isClosed = false

  constructor(options: ExecutorsOptions) {
    this.#options = options
    this.#memoryMb = options.memoryMb ?? Number.POSITIVE_INFINITY
    const start = options.start ?? (() => new ExecutorProcess(runsWithin(this.#memoryMb)))
    this.#spares = new Spares(options.log, options.spares, start)
    this.#quarantine = new Quarantine(this.#spares)
    this.#checks = setInterval(() => this.#check(), CHECK_MS)
  }

  async ready(): Promise<void> {
    await Promise.all(this.#spares.processes.map((spare) => spare.ready))
  }

  /** Never rejects for what a bot does; 503 when no executor can be had. */
  async run(
    run: BotRun,
    host: Host,
    signal: AbortSignal,
    onRest: ActiveRun['onRest'] = () => {},
  ): Promise<RunResult> {
    const active: ActiveRun = {
      run,
      host,
      signal,
      deadline: undefined,
      sideEffects: 0,
      isResting: false,
      onRest,
      end: () => {},
    }
    let isApart = this.#quarantine.holds(run)
    for (let repeats = 0; ; repeats++) {
      if (signal.aborted) return this.#failed(active, 'cancelled')
      const ended = await (isApart ? this.#quarantine.run(active) : this.#runAtHome(active))
      if (signal.aborted) return this.#failed(active, 'cancelled')
      if (ended === undefined) {
        if (active.deadline === undefined) throw unavailable('Bot executor')
        return this.#failed(active, 'crash')
      }
      if (ended.t === 'done') {
        return resultOf(run, {
          done: ended.message,
          body: ended.body,
          log: ended.log,
          sideEffects: active.sideEffects,
        })
      }
      const failure = this.#judge(active, ended.death, isApart || ended.isGuilty, repeats)
      if (failure) return this.#failed(active, failure)
      isApart = ended.isGuilty === undefined || this.#quarantine.holds(run)
    }
  }

  /** From now on the bot version runs alone: it may have ended workers. */
  suspect(version: Pick<BotRun, 'botKey' | 'codeHash'>): void {
    this.#quarantine.condemn(version)
  }

  /** Runs that there is room for; few while those under way take far more than they were reckoned with. */
  get room(): number {
    if (this.#ownMb > this.#memoryMb * TOO_MUCH) return FEWEST_RUNS
    return runsWithin(this.#memoryMb)
  }

  stats(): ExecutorsStats {
    const tenants = [...this.#tenants.values()]
    const processes = this.#processes()
    const sum = (numbers: number[]) => numbers.reduce((total, number) => total + number, 0)
    return {
      executors: tenants.filter(({ executor }) => executor?.isAlive).length,
      spares: this.#spares.processes.length,
      quarantined: this.#quarantine.processes.size,
      heldVersions: this.#quarantine.heldVersions,
      isolates: sum(processes.map(({ isolates }) => isolates)),
      running: sum(processes.map(({ active }) => active.size)),
      waiting: sum(tenants.map(({ waiting }) => waiting)),
      rssMb: sum(processes.map(({ rssMb }) => rssMb)),
      deaths: { ...this.#deaths },
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true
    clearInterval(this.#checks)
    const processes = this.#processes()
    this.#spares.close()
    for (const tenant of this.#tenants.values()) tenant.abandon()
    for (const process of processes) process.kill({ cause: 'closed' })
    await Promise.all(processes.map(({ died }) => died))
  }

  /** Decides what the death of the process means for this run; undefined: try again. */
  #judge(
    active: ActiveRun,
    { cause }: Death,
    isGuilty: boolean | undefined,
    repeats: number,
  ): RunFailure | undefined {
    if (cause === 'closed') return 'interrupted'
    if (isGuilty) {
      this.#quarantine.recordKill(active.run)
      return cause === 'exit' || cause === 'heartbeat' ? 'crash' : cause
    }
    if (active.sideEffects > 0) return 'interrupted'
    const mayRepeat = repeats < MAX_REPEATS && remainingMs(active) > SHORTEST_REPEAT_MS
    if (mayRepeat) return undefined
    return isGuilty === false ? 'interrupted' : 'crash'
  }

  #failed(active: ActiveRun, failure: RunFailure): RunResult {
    const { run, deadline, sideEffects } = active
    const wallMs = deadline === undefined ? 0 : Date.now() - (deadline - run.limits.wallMs)
    return failed(run, failure, { sideEffects, wallMs })
  }

  async #runAtHome(active: ActiveRun): Promise<Ended | undefined> {
    const { projectId } = active.run
    const tenant = this.#tenants.get(projectId) ?? new Tenant(this.#tenantLimits())
    this.#tenants.delete(projectId)
    this.#tenants.set(projectId, tenant)
    const ended = tenant.run(active)
    if (!tenant.executor?.isAlive) void this.#bind(tenant)
    const end = await ended
    if (tenant.isIdle) this.#bindWaiting()
    return end
  }

  /** Gives the tenant a spare, unless all executors are busy with others; then it waits. */
  async #bind(tenant: Tenant): Promise<void> {
    if (this.#binding.has(tenant) || this.#isStartingEnough || !this.#hasRoom()) return
    this.#binding.add(tenant)
    try {
      const executor = await this.#spares.take()
      tenant.executor = executor
      tenant.boundAt = Date.now()
      void executor.died.then(({ cause }) => {
        this.#deaths[cause]++
        if (tenant.executor === executor) tenant.executor = undefined
        this.#bindWaiting()
      })
    } catch (error) {
      if (!this.#isClosed) this.#options.log.error({ err: error }, 'No executor for a project')
      tenant.abandon()
    } finally {
      this.#binding.delete(tenant)
      tenant.pump()
      this.#bindWaiting()
    }
  }

  get #isStartingEnough(): boolean {
    return this.#binding.size >= BINDING_AT_ONCE
  }

  /** Binds executors for waiting Projects, the longest wait first. */
  #bindWaiting(): void {
    if (this.#isStartingEnough) return
    const missing = this.#missing()
    missing.sort((a, b) => (a.missesSince ?? 0) - (b.missesSince ?? 0))
    for (const tenant of missing) void this.#bind(tenant)
  }

  /** Tenants that wait for an executor; one whose start is under way has its turn, however slow the start is. */
  #missing(): Tenant[] {
    return [...this.#tenants.values()].filter(
      (tenant) => tenant.missesSince !== undefined && !this.#binding.has(tenant),
    )
  }

  /** The one longest unused comes first. */
  #bound(): Tenant[] {
    return [...this.#tenants.values()].filter(({ executor }) => executor?.isAlive)
  }

  #hasRoom(): boolean {
    const bound = this.#bound()
    if (bound.length + this.#binding.size < this.#options.maxExecutors) return true
    const idle = leastUsed(bound)
    idle?.retire()
    return idle !== undefined
  }

  /**
   * With more busy projects than executors, the one that has its own for longest makes room; it finishes what
   * runs. One retirement is for one start.
   */
  #rotate(): void {
    this.#bindWaiting()
    if (this.#isStartingEnough) return
    const since = Date.now() - TURN_MS
    if (!this.#missing().some(({ missesSince = since }) => missesSince < since)) return
    const [longest] = this.#bound()
      .filter(({ boundAt }) => boundAt < since)
      .sort((a, b) => a.boundAt - b.boundAt)
    longest?.retire()
    this.#bindWaiting()
  }

  /** Executors that bots have made large: the one longest idle gives its memory back. */
  #shed(): void {
    this.#ownMb = this.#processes().reduce((sum, process) => sum + process.ownMb, 0)
    if (this.#ownMb <= this.#memoryMb - WORKER_MB) return
    const bound = this.#bound()
    if (bound.length > FEWEST_EXECUTORS) bound.find(({ isIdle }) => isIdle)?.retire()
  }

  #tenantLimits() {
    const { isolatesPerBot, runsPerExecutor = runsWithin(this.#memoryMb) } = this.#options
    return { isolatesPerBot, runsPerExecutor, maxAgeMs: MAX_AGE_MS }
  }

  #processes(): ExecutorProcess[] {
    const bound = [...this.#tenants.values()].flatMap(({ executor, draining }) => [
      ...(executor ? [executor] : []),
      ...draining,
    ])
    return [...bound, ...this.#spares.processes, ...this.#quarantine.processes]
  }

  #check(): void {
    const isLate = Date.now() - this.#lastCheck > 5 * CHECK_MS
    this.#lastCheck = Date.now()
    for (const process of this.#processes()) {
      if (isLate) process.forgive()
      process.check()
    }
    this.#rotate()
    this.#shed()
    const since = Date.now() - (this.#options.idleMs ?? IDLE_MS)
    for (const [project, tenant] of this.#tenants) {
      const spentBy = tenant.executor?.spentBy
      if (spentBy) {
        this.#quarantine.recordKill(spentBy)
        tenant.retire()
      }
      if (!tenant.isIdle || tenant.lastUsedAt > since) continue
      tenant.retire()
      if (tenant.draining.size === 0) this.#tenants.delete(project)
    }
  }
}
