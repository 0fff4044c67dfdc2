/**
 * Runs one bot from job to reply, AsyncJob and AuditEvent. A run with a possible effect never runs twice: the journal
 * in Redis survives this process, and the bridge tracks effects inside it.
 */
import type { RunLease } from '../../shared/access/principal.ts'
import { HttpError, LeaseLost } from '../../shared/core/errors.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import { interrupted } from '../../shared/queue/replies.ts'
import type { JobEnd, TakenJob } from '../../shared/queue/worker.ts'
import type { Services } from '../../shared/request/services.ts'
import { runDry } from './dry-run.ts'
import { createLoader, type Loader, withRunId } from './load.ts'
import { awaitStart, leaveLines, paceHold } from './pacing.ts'
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
  type OnRest,
  type RunnerOptions,
  type Running,
  type RunParts,
  runOnce,
} from './run-once.ts'
import { type Attempted, cancelled, type Done, noteFailure, refusal } from './run-result.ts'
import { Slots } from './slots.ts'

type InHand = Omit<Running, 'controller'>

type Counted = (Done & { readonly ranMs: number }) | Exclude<Attempted, Done>

const DONE: JobEnd = { kind: 'done' }

export class Runner {
  readonly #options: RunnerOptions
  readonly #services: Services
  readonly #parts: RunParts
  readonly #active = new Map<string, AbortController>()
  readonly #lives: RunLives
  readonly #loader: Loader
  readonly #settling: Settling
  readonly #slots: Slots

  constructor(options: RunnerOptions) {
    const { runs, executors, metrics } = options
    this.#options = options
    const { queues } = options.services
    const execute = nestedExecute((running) => runOnce(this.#parts, running))
    this.#services = { ...options.services, queues: queues.withExecute(execute) }
    this.#lives = createRunLives(this.#services, runs)
    this.#loader = createLoader(this.#services)
    this.#parts = {
      options,
      services: this.#services,
      loader: this.#loader,
      markWrite: (running) => this.#markWrite(running),
    }
    this.#settling = createSettling(this.#services, runs)
    this.#slots = new Slots({
      liveWorkers: () => runs.presence.liveWorkers(),
      perQueue: this.#services.config.workerConcurrency,
      room: () => executors.room,
    })
    metrics.showHeld(() => this.#slots.held())
    runs.onCancel((runId) => this.#active.get(runId)?.abort(new Error('The run was cancelled')))
  }

  get active(): number {
    return this.#active.size
  }

  async process(taken: TakenJob, onRest: OnRest): Promise<JobEnd> {
    const { job } = taken
    const delayMs = await awaitStart(this.#services, this.#options.runs, job)
    if (delayMs > 0) return { kind: 'back', delayMs }
    const run = await this.#lives.lease(taken, this.#stopRun(job))
    if (run === undefined) return DONE
    // A run whose end could not be settled is free for another attempt.
    let end: JobEnd = BACK
    try {
      end = await this.#take({ job, attempt: run.attempt, onRest })
      return end
    } finally {
      await run.leave(end)
      if (end.kind === 'done') await leaveLines(this.#services, job)
    }
  }

  /** Runs a delivery job, whose queue is PostgreSQL, and returns its outcome. */
  async deliver(job: ExecuteJob, number: number, lease: RunLease): Promise<Attempted> {
    const deadline = job.deadline - Date.now() + this.#options.runs.presence.now()
    const timed = { ...job, deadline }
    const delayMs = await awaitStart(this.#services, this.#options.runs, timed)
    if (delayMs > 0) return { kind: 'back', delayMs }
    const attempt = { number, isRepeat: false, lease }
    // PostgreSQL keeps the order of a key's deliveries, also between attempts.
    const done = await this.#runCounted({ job: timed, attempt, onRest: () => {} }).finally(() =>
      leaveLines(this.#services, job),
    )
    return done.kind === 'done' && done.failure === 'interrupted' ? BACK : done
  }

  /** Replies for a job that BullMQ gave up; a poison job has killed its worker twice. */
  async giveUp(job: ExecuteJob, isPoison: boolean): Promise<void> {
    const { executors, stats } = this.#options
    if (isPoison) {
      const { codeHash } = await this.#loader.bot(job)
      executors.suspect({ botKey: botKey(job), codeHash })
    }
    const taken = { job, number: 1, isRepeat: true }
    const run = await this.#lives.lease(taken, this.#stopRun(job))
    if (run === undefined) return
    noteFailure(this.#services.log, job, 'interrupted', 0)
    const ended = { outcome: isPoison ? 'poison' : 'interrupted', queuedMs: 0, ranMs: 0 }
    if (job.dryRunOf === undefined) stats.run(job, await this.#version(job), ended)
    await this.#finish({ job, attempt: run.attempt }, interrupted(job.runId), 0).finally(() =>
      run.leave(DONE),
    )
    await leaveLines(this.#services, job)
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

  async #take(inHand: InHand): Promise<JobEnd> {
    const { job, onRest } = inHand
    const { log } = this.#services
    const done = await this.#runCounted(inHand)
    if (done.kind === 'back') return done
    const { reply, failure, audited, ranMs, isLost } = done
    if (isLost === true) {
      log.warn({ runId: job.runId }, 'A bot run was lost to another worker')
      return DONE
    }
    if (job.asynchronous && failure !== undefined) {
      const delayMs = await this.#retryAfter(job, failure)
      if (delayMs !== undefined) return { kind: 'again', delayMs }
    }
    if (job.asynchronous && reply.status === 'unavailable') {
      log.error({ runId: job.runId }, 'A bot run is left to upkeep')
      return DONE
    }
    await this.#finish(inHand, reply, ranMs)
    if (job.asynchronous) {
      onRest(true)
      await audited
    }
    return DONE
  }

  async #retryAfter(job: ExecuteJob, failure: Done['failure']): Promise<number | undefined> {
    const loaded = await this.#loader.bot(job).catch(() => undefined)
    return retryAfterMs(job, failure, loaded?.maxAttempts ?? 1)
  }

  /** Publishes the reply before the remaining work. */
  async #finish(
    { job, attempt: { id, isRepeat, lease } }: Pick<InHand, 'job' | 'attempt'>,
    reply: ExecuteReply,
    ranMs: number,
  ): Promise<void> {
    const end = { ranMs, attempt: isRepeat ? id : undefined }
    await this.#settling.finish(lease ? { ...job, lease } : job, reply, end)
  }

  async #runCounted(inHand: InHand): Promise<Counted> {
    const { metrics, stats } = this.#options
    const { job } = inHand
    if (job.dryRunOf !== undefined) {
      const done = await this.#runOrFail(inHand)
      return done.kind === 'back' ? done : { ...done, ranMs: 0 }
    }
    const startedAt = Date.now()
    const queuedMs = startedAt - job.added
    const ended = metrics.started(job)
    const done = await this.#runOrFail(inHand)
    if (done.kind === 'back') {
      ended('put-off', queuedMs, 0)
      return done
    }
    const outcome = done.failure ?? 'ok'
    const ranMs = Date.now() - startedAt
    noteFailure(this.#services.log, job, done.failure, ranMs)
    ended(outcome, queuedMs, ranMs)
    stats.run(job, await this.#version(job), { outcome, queuedMs, ranMs })
    return { ...done, ranMs }
  }

  /** Undefined if the code cannot be loaded. */
  async #version(job: ExecuteJob): Promise<string | undefined> {
    const loaded = await this.#loader.bot(job).catch(() => undefined)
    return loaded?.version
  }

  async #runOrFail({ job, attempt, onRest }: InHand): Promise<Attempted> {
    const controller = new AbortController()
    const { runId } = job
    this.#active.set(runId, controller)
    try {
      return await this.#runInSlot({ job, attempt, onRest, controller })
    } catch (error) {
      if (error === SHUTDOWN) return BACK
      if (error instanceof LeaseLost) {
        const reply = interrupted(runId)
        return { kind: 'done', reply, failure: 'interrupted', isLost: true }
      }
      if (controller.signal.aborted && error === controller.signal.reason) return cancelled(runId)
      if (error instanceof HttpError && error.status < 500) {
        const body = withRunId(JSON.stringify(error.outcome), runId)
        const reply = { runId, status: 'error', kind: 'outcome', body } as const
        return { kind: 'done', reply, failure: 'thrown' }
      }
      this.#services.log.error({ runId, cause: error }, 'A bot run could not start')
      return unavailable(runId)
    } finally {
      this.#active.delete(runId)
    }
  }

  async #runInSlot(running: Running): Promise<Attempted> {
    const { runs, metrics, stats } = this.#options
    const { job, attempt, controller, onRest } = running
    const refused = await refusal(runs, job, attempt)
    if (refused !== undefined) return refused
    const [{ maxConcurrency }, projectConcurrency] = await Promise.all([
      this.#loader.bot(job),
      this.#loader.projectConcurrency(job),
    ])
    const taken = this.#slots.take({
      bot: { id: job.botId, cap: maxConcurrency },
      project: { id: job.projectId, cap: projectConcurrency },
      queue: job.asynchronous || job.delivery || job.dryRunOf ? 'bots-async' : 'bots-sync',
      added: job.added,
      signal: controller.signal,
      onHold: onRest,
    })
    const slot = await taken
    if (slot.kind === 'back') return slot
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
      const rest = (isResting: boolean) => {
        slot.rest(isResting)
        onRest(isResting)
      }
      const begun = { job, attempt, controller, onRest: rest, hold }
      const run = (job.dryRunOf === undefined ? runOnce : runDry)(this.#parts, begun)
      return await run.finally(markActive(this.#services, job))
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
