/**
 * The worker's side of the executors: one child process per project, blank spares, and crash handling. A process killed
 * because of one run fails that run; the others start again. If the cause is unknown, each run is repeated once, alone,
 * which reveals the guilty one. A run with a possible effect is never repeated.
 */
import { availableParallelism } from 'node:os'
import pLimit from 'p-limit'
import { Cache } from '../../shared/core/cache.ts'
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
import { type BotRun, failed, type RunFailure, type RunResult, toRunResult } from './run-result.ts'
import { Spares } from './spare-executors.ts'

export interface ExecutorsOptions {
  readonly log: Logger
  /** Limit on projects with an executor; the one that calls least often is evicted. */
  readonly maxExecutors: number
  /** Idle executors end above this; unlimited by default. */
  readonly memoryMb?: number
  readonly spares: number
  /** Spares at the start, if more: as many as projects are expected to call soon. */
  readonly firstSpares?: number
  readonly runsPerExecutor?: number
  readonly idleMs?: number
  readonly start?: () => ExecutorProcess
}

export type ExecutorsStats = ReturnType<Executors['stats']>

const CHECK_MS = 100
const IDLE_MS = 10 * 60_000
const MAX_REPEATS = 2
/** How long a project may wait for an executor while all are busy with others. */
const TURN_MS = 250
/** Executor starts in parallel: more at once would all be late. */
const BINDING_AT_ONCE = Math.max(2, availableParallelism())
/** A shorter remaining time is not worth a start. */
const SHORTEST_REPEAT_MS = 20

const WORKER_MB = 250
/** Memory of an idle bound executor, with its part of shared pages. */
const EXECUTOR_MB = 13
const FEWEST_EXECUTORS = 2
/** Share of the worker's memory in executors above which hardly any run is added. */
const TOO_MUCH = 1

const ISOLATE_MB = 2
const FEWEST_RUNS = 16

/**
 * Returns the idle tenant with the longest pauses; on a tie, the one bound last. With more projects than executors
 * calling in turn, LRU would evict the next caller, and each call would cost a start.
 */
function leastUsed(bound: readonly Tenant[]): Tenant | undefined {
  const idle = bound.filter(({ isIdle }) => isIdle)
  const longest = Math.max(...idle.map(({ pause }) => pause))
  const [last] = idle.filter(({ pause }) => pause >= longest).sort((a, b) => b.boundAt - a.boundAt)
  return last
}

/** Returns how many runs fit into the memory; each has an isolate. */
export function runsWithin(memoryMb: number): number {
  const leftMb = memoryMb - WORKER_MB - FEWEST_EXECUTORS * EXECUTOR_MB
  return Math.max(FEWEST_RUNS, Math.floor(leftMb / ISOLATE_MB))
}

/** Returns how many executors fit into the memory, at least two. */
export function executorsWithin(memoryMb: number): number {
  return Math.max(FEWEST_EXECUTORS, Math.floor((memoryMb - WORKER_MB) / EXECUTOR_MB))
}

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
  /** In order of last use. */
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
    this.#spares = new Spares(
      options.log,
      options.spares,
      Math.min(options.firstSpares ?? 0, options.maxExecutors),
      start,
    )
    this.#quarantine = new Quarantine(this.#spares)
    this.#checks = setInterval(() => this.#check(), CHECK_MS)
  }

  async ready(): Promise<void> {
    await Promise.all(this.#spares.processes.map((spare) => spare.ready))
  }

  /** Never rejects for a bot's failure. Errors: 503 when no executor is available. */
  async run(
    run: BotRun,
    host: Host,
    signal: AbortSignal,
    onIdle: ActiveRun['onIdle'] = () => {},
  ): Promise<RunResult> {
    const active: ActiveRun = {
      run,
      host,
      signal,
      deadline: undefined,
      isIdle: false,
      onIdle,
      end: () => {},
    }
    let isQuarantined = this.#quarantine.holds(run)
    for (let repeats = 0; ; repeats++) {
      if (signal.aborted) return this.#failed(active, 'cancelled')
      const ended = await (isQuarantined ? this.#quarantine.run(active) : this.#runInTenant(active))
      if (signal.aborted) return this.#failed(active, 'cancelled')
      if (ended === undefined) {
        if (active.deadline === undefined) throw unavailable('Bot executor')
        return this.#failed(active, 'crash')
      }
      if (ended.t === 'done') return toRunResult(run, ended)
      const failure = this.#decideFailure(
        active,
        ended.death,
        isQuarantined || ended.isGuilty,
        repeats,
      )
      if (failure) return this.#failed(active, failure)
      isQuarantined = ended.isGuilty === undefined || this.#quarantine.holds(run)
    }
  }

  /** Runs the bot version alone from now on: it may have killed executors. */
  suspect(version: Pick<BotRun, 'botKey' | 'codeHash'>): void {
    this.#quarantine.hold(version)
  }

  /** Free places for runs; few while the current runs exceed their expected memory. */
  get room(): number {
    if (this.#ownMb > this.#memoryMb * TOO_MUCH) return FEWEST_RUNS
    return runsWithin(this.#memoryMb)
  }

  stats() {
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

  /** Decides the outcome of a run whose process died; undefined: try again. */
  #decideFailure(
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
    if (active.host.hasWritten) return 'interrupted'
    const mayRepeat = repeats < MAX_REPEATS && remainingMs(active) > SHORTEST_REPEAT_MS
    if (mayRepeat) return undefined
    return isGuilty === false ? 'interrupted' : 'crash'
  }

  #failed(active: ActiveRun, failure: RunFailure): RunResult {
    const { run, deadline } = active
    const wallMs = deadline === undefined ? 0 : Date.now() - (deadline - run.limits.wallMs)
    return failed(run, failure, { wallMs })
  }

  async #runInTenant(active: ActiveRun): Promise<Ended | undefined> {
    const { projectId } = active.run
    const tenant =
      this.#tenants.get(projectId) ??
      new Tenant(this.#options.runsPerExecutor ?? runsWithin(this.#memoryMb))
    this.#tenants.delete(projectId)
    this.#tenants.set(projectId, tenant)
    const ended = tenant.run(active)
    if (!tenant.executor?.isAlive) void this.#bind(tenant)
    const end = await ended
    if (tenant.isIdle) this.#bindWaiting()
    return end
  }

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

  #bindWaiting(): void {
    if (this.#isStartingEnough) return
    const missing = this.#missing()
    missing.sort((a, b) => (a.missesSince ?? 0) - (b.missesSince ?? 0))
    for (const tenant of missing) void this.#bind(tenant)
  }

  /** Returns tenants waiting for an executor; one whose start is under way has its turn, however slow. */
  #missing(): Tenant[] {
    return [...this.#tenants.values()].filter(
      (tenant) => tenant.missesSince !== undefined && !this.#binding.has(tenant),
    )
  }

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
   * With more busy projects than executors, retires the executor bound longest, after its runs. One retirement per
   * start.
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

  /** Retires bloated executors, the one idle longest first. */
  #shed(): void {
    this.#ownMb = this.#processes().reduce((sum, process) => sum + process.ownMb, 0)
    if (this.#ownMb <= this.#memoryMb - WORKER_MB) return
    const bound = this.#bound()
    if (bound.length > FEWEST_EXECUTORS) bound.find(({ isIdle }) => isIdle)?.retire()
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
      if (isLate) process.resetHeartbeat()
      process.check()
    }
    this.#rotate()
    this.#shed()
    const since = Date.now() - (this.#options.idleMs ?? IDLE_MS)
    for (const [project, tenant] of this.#tenants) {
      const stuckRun = tenant.executor?.stuckRun
      if (stuckRun) {
        this.#quarantine.recordKill(stuckRun)
        tenant.retire()
      }
      if (!tenant.isIdle || tenant.lastUsedAt > since) continue
      tenant.retire()
      if (tenant.draining.size === 0) this.#tenants.delete(project)
    }
  }
}

// Quarantine: runs repeated after an unexplained crash, and bot versions that have killed executors, each in a separate
// process.

const KILLS = 2
const KILLS_WITHIN_MS = 10 * 60_000
const MAX_PROCESSES = 2
const MAX_VERSIONS = 10_000

class Quarantine {
  readonly processes = new Set<ExecutorProcess>()
  readonly #spares: Spares
  readonly #kills = new Cache<string, number[]>({ name: 'kills', max: MAX_VERSIONS })
  readonly #places = pLimit(MAX_PROCESSES)

  constructor(spares: Spares) {
    this.#spares = spares
  }

  /** True for a bot version that killed two executors in 10 minutes; a new version starts clean. */
  holds(run: BotRun): boolean {
    return (this.#kills.get(versionKey(run))?.length ?? 0) >= KILLS
  }

  get heldVersions(): number {
    return [...this.#kills.values()].filter(({ length }) => length >= KILLS).length
  }

  recordKill(run: BotRun): void {
    const since = Date.now() - KILLS_WITHIN_MS
    const before = this.#kills.get(versionKey(run)) ?? []
    if (before.length >= KILLS) return
    const recent = before.filter((at) => at > since)
    this.#kills.set(versionKey(run), [...recent, Date.now()])
  }

  hold(version: Pick<BotRun, 'botKey' | 'codeHash'>): void {
    this.#kills.set(versionKey(version), Array(KILLS).fill(Date.now()))
  }

  /** Runs alone in a separate process; undefined when it was cancelled or out of time before. */
  run(active: ActiveRun): Promise<Ended | undefined> {
    return this.#places(() => this.#runAlone(active))
  }

  async #runAlone(active: ActiveRun): Promise<Ended | undefined> {
    let process: ExecutorProcess | undefined
    try {
      process = await this.#spares.take()
      this.processes.add(process)
      if (active.signal.aborted || remainingMs(active) <= 0) return undefined
      return await process.start(active)
    } finally {
      if (process) this.processes.delete(process)
      process?.kill({ cause: 'closed' })
    }
  }
}

function versionKey({ botKey, codeHash }: Pick<BotRun, 'botKey' | 'codeHash'>): string {
  return `${botKey} ${codeHash}`
}
