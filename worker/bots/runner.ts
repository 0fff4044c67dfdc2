/**
 * Runs one bot from job to reply, AsyncJob and AuditEvent. A run with a possible effect never runs twice: the journal
 * in Redis survives this process, and the bridge tracks effects inside it.
 */
import type { RunLease } from '../../shared/access/principal.ts'
import { HttpError, LeaseLost } from '../../shared/core/errors.ts'
import { botAddress, type ExecuteJob, type ExecuteReply } from '../../shared/queue/jobs.ts'
import { interrupted } from '../../shared/queue/replies.ts'
import type { JobEnd, TakenJob } from '../../shared/queue/worker.ts'
import { hasDelivery } from '../../shared/subscriptions/deliveries.ts'
import { runDry } from './dry-run.ts'
import { createLoader, type LoadedBot, withRunId } from './load.ts'
import {
  BACK,
  createRunLives,
  createSettling,
  markActive,
  type RunLives,
  retryAfterMs,
  type Settling,
  SHUTDOWN,
  unavailable,
} from './run-life.ts'
import {
  botKey,
  nestedExecute,
  type OnIdle,
  type RunnerOptions,
  type Running,
  type RunParts,
  runOnce,
} from './run-once.ts'
import { type Attempted, cancelled, noteFailure, refusal } from './run-result.ts'
import { type Hold, Slots } from './slots.ts'

type LeasedJob = Omit<Running, 'controller'>

const DONE: JobEnd = { kind: 'done' }
/** Until a run looks again whether it may start, after a failure of Redis. */
const REDIS_AWAY_MS = 1000

export class Runner {
  readonly #parts: RunParts
  readonly #active = new Map<string, AbortController>()
  readonly #lives: RunLives
  readonly #settling: Settling
  readonly #slots: Slots

  constructor(options: RunnerOptions) {
    const { runs, executors, metrics } = options
    const queues = options.services.queues.withExecute(
      nestedExecute((running) => runOnce(this.#parts, running)),
    )
    const services = { ...options.services, queues }
    this.#lives = createRunLives(services, runs)
    this.#parts = {
      ...options,
      services,
      loader: createLoader(services),
      markWrite: (running) => this.#markWrite(running),
    }
    this.#settling = createSettling(services, runs)
    this.#slots = new Slots({
      liveWorkers: () => runs.presence.liveWorkers(),
      perQueue: services.config.workerConcurrency,
      room: () => executors.room,
    })
    metrics.showHeld(() => this.#slots.held())
    runs.onCancel((runId) => this.#active.get(runId)?.abort(new Error('The run was cancelled')))
  }

  get active(): number {
    return this.#active.size
  }

  async process(taken: TakenJob, onIdle: OnIdle): Promise<JobEnd> {
    const { job } = taken
    const delayMs = await this.#msUntilStart(job)
    if (delayMs > 0) return { kind: 'back', delayMs }
    const run = await this.#lives.lease(taken, this.#stopRun(job))
    if (run === undefined) return DONE
    // A run whose end could not be settled is free for another attempt.
    let end: JobEnd = BACK
    try {
      end = await this.#runToEnd({ job, attempt: run.attempt, onIdle })
      return end
    } finally {
      await run.leave(end)
      if (end.kind === 'done') await this.#leaveLines(job)
    }
  }

  /** Runs a delivery job, whose queue is PostgreSQL, and returns its outcome. */
  async deliver(job: ExecuteJob, number: number, lease: RunLease): Promise<Attempted> {
    const deadline = job.deadline - Date.now() + this.#parts.runs.presence.now()
    const timed = { ...job, deadline }
    const delayMs = await this.#msUntilStart(timed)
    if (delayMs > 0) return { kind: 'back', delayMs }
    const attempt = { number, isRepeat: false, lease }
    // PostgreSQL keeps the order of a key's deliveries, also between attempts.
    const done = await this.#runCounted({ job: timed, attempt, onIdle: () => {} }).finally(() =>
      this.#leaveLines(job),
    )
    return done.kind === 'done' && done.failure === 'interrupted' ? BACK : done
  }

  /** Replies for a job that BullMQ gave up; a poison job has killed its worker twice. */
  async giveUp(job: ExecuteJob, isPoison: boolean): Promise<void> {
    const { executors, loader, stats } = this.#parts
    if (isPoison) {
      const { codeHash } = await loader.bot(job)
      executors.suspect({ botKey: botKey(job), codeHash })
    }
    const run = await this.#lives.lease({ job, number: 1, isRepeat: true }, this.#stopRun(job))
    if (run === undefined) return
    noteFailure(this.#parts.services.log, job, 'interrupted', 0)
    const ended = { outcome: isPoison ? 'poison' : 'interrupted', queuedMs: 0, ranMs: 0 }
    const loaded = await this.#loaded(job)
    if (job.dryRunOf === undefined) stats.run(job, loaded?.version, ended)
    await this.#finish({ job, attempt: run.attempt }, interrupted(job.runId), 0).finally(() =>
      run.leave(DONE),
    )
    await this.#leaveLines(job)
  }

  abandonAll(): void {
    for (const controller of this.#active.values()) controller.abort(SHUTDOWN)
  }

  async close(): Promise<void> {
    await Promise.all([this.#settling.close(), this.#lives.stop()])
  }

  #stopRun({ runId }: ExecuteJob): () => void {
    return () => this.#active.get(runId)?.abort(new LeaseLost())
  }

  /**
   * Returns ms until the run may look again whether its key and the rate of its bot let it start. A run that is no
   * longer wanted does not wait: its end makes room.
   */
  async #msUntilStart(job: ExecuteJob): Promise<number> {
    const { runs, services } = this.#parts
    const { queues, database, log } = services
    if (job.turn === undefined && job.rate === undefined) return 0
    if (runs.wasCancelled(job.runId) || runs.presence.now() > job.deadline) return 0
    try {
      return await queues.lines.start(job, (id) => hasDelivery(database, id))
    } catch (cause) {
      log.warn({ runId: job.runId, cause }, 'A run cannot look whether it may start')
      return REDIS_AWAY_MS
    }
  }

  /** After a failure the next run of the key finds that this one has ended. */
  async #leaveLines(job: ExecuteJob): Promise<void> {
    const { queues, log } = this.#parts.services
    await queues.lines.leave(job).catch((cause: unknown) => {
      log.warn({ runId: job.runId, cause }, 'The turn of a run could not be ended')
    })
  }

  async #runToEnd(leased: LeasedJob): Promise<JobEnd> {
    const { job, onIdle } = leased
    const { log } = this.#parts.services
    const startedAt = Date.now()
    const done = await this.#runCounted(leased)
    if (done.kind === 'back') return done
    const { reply, failure, audited, isLost } = done
    if (isLost === true) {
      log.warn({ runId: job.runId }, 'A bot run was lost to another worker')
      return DONE
    }
    if (job.asynchronous && failure !== undefined) {
      const loaded = await this.#loaded(job)
      const delayMs = retryAfterMs(job, failure, loaded?.maxAttempts ?? 1)
      if (delayMs !== undefined) return { kind: 'again', delayMs }
    }
    if (job.asynchronous && reply.status === 'unavailable') {
      log.error({ runId: job.runId }, 'A bot run is left to upkeep')
      return DONE
    }
    await this.#finish(leased, reply, Date.now() - startedAt)
    if (job.asynchronous) {
      onIdle(true)
      await audited
    }
    return DONE
  }

  /** Publishes the reply before the remaining work. */
  async #finish(
    { job, attempt: { id, isRepeat, lease } }: Pick<LeasedJob, 'job' | 'attempt'>,
    reply: ExecuteReply,
    ranMs: number,
  ): Promise<void> {
    const end = { ranMs, attempt: isRepeat ? id : undefined }
    await this.#settling.finish(lease ? { ...job, lease } : job, reply, end)
  }

  async #runCounted(leased: LeasedJob): Promise<Attempted> {
    const { metrics, stats, services } = this.#parts
    const { job } = leased
    if (job.dryRunOf !== undefined) return await this.#runOrFail(leased)
    const startedAt = Date.now()
    const queuedMs = startedAt - job.added
    const ended = metrics.started(job)
    const done = await this.#runOrFail(leased)
    if (done.kind === 'back') {
      ended('put-off', queuedMs, 0)
      return done
    }
    const outcome = done.failure ?? 'ok'
    const ranMs = Date.now() - startedAt
    noteFailure(services.log, job, done.failure, ranMs)
    ended(outcome, queuedMs, ranMs)
    const loaded = await this.#loaded(job)
    stats.run(job, loaded?.version, { outcome, queuedMs, ranMs })
    return done
  }

  /** Undefined if the code cannot be loaded. */
  async #loaded(job: ExecuteJob): Promise<LoadedBot | undefined> {
    return await this.#parts.loader.bot(job).catch(() => undefined)
  }

  async #runOrFail({ job, attempt, onIdle }: LeasedJob): Promise<Attempted> {
    const controller = new AbortController()
    const { runId } = job
    this.#active.set(runId, controller)
    try {
      return await this.#runInSlot({ job, attempt, onIdle, controller })
    } catch (error) {
      if (error instanceof HttpError && error.status < 500) {
        const body = withRunId(JSON.stringify(error.outcome), runId)
        const reply = { runId, status: 'error', kind: 'outcome', body } as const
        return { kind: 'done', reply, failure: 'thrown' }
      }
      this.#parts.services.log.error({ runId, cause: error }, 'A bot run could not start')
      return unavailable(runId)
    } finally {
      this.#active.delete(runId)
    }
  }

  async #runInSlot(running: Running): Promise<Attempted> {
    const { runs, loader, metrics, stats, services } = this.#parts
    const { job, attempt, controller, onIdle } = running
    const refused = await refusal(runs, job, attempt)
    if (refused !== undefined) return refused
    const [{ maxConcurrency }, projectConcurrency] = await Promise.all([
      loader.bot(job),
      loader.projectConcurrency(job),
    ])
    const taken = this.#slots.take({
      bot: { id: botAddress(job), cap: maxConcurrency },
      project: { id: job.projectId, cap: projectConcurrency },
      queue: job.asynchronous || job.delivery || job.dryRunOf ? 'bots-async' : 'bots-sync',
      added: job.added,
      signal: controller.signal,
      onHold: onIdle,
    })
    const slot = await taken
    if (slot.kind === 'back') return slot
    if (slot.kind === 'aborted') return stoppedWhileHeld(job.runId, controller.signal.reason)
    const hold = paceHold(job) ?? slot.hold
    if (hold !== undefined && job.dryRunOf === undefined) {
      metrics.held(hold.reason, hold.ms)
      stats.held(job, hold.reason, hold.ms)
    }
    if (job.replaced !== undefined && attempt.number === 1) {
      metrics.replaced(job.replaced)
      stats.replaced(job, job.replaced)
    }
    try {
      const late = taken === slot ? undefined : await refusal(runs, job, attempt)
      if (late !== undefined) return late
      const setIdle = (isIdle: boolean) => {
        slot.setIdle(isIdle)
        onIdle(isIdle)
      }
      const begun = { job, attempt, controller, onIdle: setIdle, hold }
      const run = (job.dryRunOf === undefined ? runOnce : runDry)(this.#parts, begun)
      return await run.finally(markActive(services, job))
    } finally {
      slot.free()
    }
  }

  /** Errors: LeaseLost, which ends the run. */
  async #markWrite({ job, attempt, controller }: Running): Promise<void> {
    if ((await this.#lives.noteWrite(job, attempt)) === 'wrote') return
    const lost = new LeaseLost()
    controller.abort(lost)
    throw lost
  }
}

/** Returns the end of a run that was stopped before it had a slot. */
function stoppedWhileHeld(runId: string, reason: unknown): Attempted {
  if (reason === SHUTDOWN) return BACK
  if (!(reason instanceof LeaseLost)) return cancelled(runId)
  return { kind: 'done', reply: interrupted(runId), failure: 'interrupted', isLost: true }
}

/** Returns the wait of a first attempt for its key or rate, before it got a slot. */
function paceHold({ waitsFor, failures, added }: ExecuteJob): Hold | undefined {
  if (waitsFor === undefined || failures !== undefined) return undefined
  return { reason: waitsFor, ms: Date.now() - added }
}
