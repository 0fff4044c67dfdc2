/**
 * One bot run from job to reply, AsyncJob and AuditEvent. A run that may have had an effect is never made twice;
 * the journal in Redis outlives this process, the bridge's own note is enough inside it.
 */
import { askerKey, type RunLease } from '../../shared/access/principal.ts'
import { HttpError, RunLost } from '../../shared/errors.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/platform/queue/jobs.ts'
import type { Queues } from '../../shared/platform/queue/queue.ts'
import { interrupted } from '../../shared/platform/queue/replies.ts'
import { Forgotten, type Runs } from '../../shared/platform/queue/runs.ts'
import type { Stats } from '../../shared/platform/queue/stats.ts'
import type { Services } from '../../shared/services.ts'
import { Bridge } from './bridge.ts'
import { eventText, withRunId } from './event.ts'
import type { Executors } from './executors/executors.ts'
import { createLoader, createRunToken, type LoadedBot, type Loader } from './load.ts'
import type { RunMetrics } from './metrics.ts'
import {
  createOwnership,
  LeftToUpkeep,
  noteEffect,
  type Owned,
  type Ownership,
} from './ownership.ts'
import { Again, retryAfterMs } from './retries.ts'
import type { RunReport, RunReports } from './run-reports.ts'
import {
  type Attempt,
  cancelled,
  type Done,
  isKilled,
  noteFailure,
  type RunResult,
  refusal,
} from './run-result.ts'
import { createSettling, markActive, type Settling } from './settle.ts'
import { Deferred, type Hold, Slots } from './slots.ts'

export interface RunnerOptions {
  readonly services: Services
  readonly runs: Runs
  readonly executors: Executors
  readonly reports: RunReports
  readonly metrics: RunMetrics
  readonly stats: Stats
}

/** Thrown at shutdown for a run that had no effect: its job goes back to the queue. */
export class HandedBack extends Error {}

/** Called when the run begins and ends to wait without using the processor. */
type OnRest = (isResting: boolean) => void

interface InHand {
  readonly job: ExecuteJob
  readonly attempt: Attempt
  readonly onRest: OnRest
}

interface Running extends InHand {
  readonly controller: AbortController
}

const SHUTDOWN = new Error('The worker stops')

/** The run ends although nobody has asked for its end; what a bot makes of a refused write is no result. */
function isCutOff({ aborted, reason }: AbortSignal, failure: Done['failure']): boolean {
  if (!aborted) return false
  if (reason === SHUTDOWN) return failure === 'cancelled'
  return reason instanceof RunLost || reason instanceof Forgotten
}

export class Runner {
  readonly #options: RunnerOptions
  readonly #services: Services
  readonly #active = new Map<string, AbortController>()
  readonly #ownership: Ownership
  readonly #loader: Loader
  readonly #settling: Settling
  readonly #slots: Slots

  constructor(options: RunnerOptions) {
    const { runs, executors, metrics } = options
    this.#options = options
    this.#services = { ...options.services, queues: this.#nested(options.services.queues) }
    this.#ownership = createOwnership(this.#services)
    this.#loader = createLoader(this.#services)
    this.#settling = createSettling(this.#services, runs)
    this.#slots = new Slots({
      liveWorkers: () => runs.liveWorkers,
      perQueue: this.#services.config.workerConcurrency,
      room: () => executors.room,
    })
    metrics.showHeld(() => this.#slots.held())
    runs.onCancel((runId) => this.#active.get(runId)?.abort(new Error('The run was cancelled')))
  }

  get active(): number {
    return this.#active.size
  }

  /** Resolves when the job may be acknowledged. Errors: HandedBack, Deferred, Again, LeftToUpkeep. */
  process(job: ExecuteJob, attempt: Attempt, onRest: OnRest): Promise<void> {
    const token = job.asynchronous ? undefined : attempt.token
    return this.#options.runs.whileKnown(job.runId, token, () =>
      this.#ownership.whileOwned(job, attempt.isRepeat, this.#stopRun(job), (owned) =>
        this.#take({ job, attempt, onRest }, owned),
      ),
    )
  }

  /** Runs a job that PostgreSQL holds, for its outcome. Errors: HandedBack, Deferred. */
  async deliver(job: ExecuteJob, number: number, lease: RunLease): Promise<Done> {
    const deadline = job.deadline - Date.now() + this.#options.runs.now()
    const attempt = { number, isRepeat: false, lease }
    const done = await this.#runCounted({ job: { ...job, deadline }, attempt, onRest: () => {} })
    if (done.failure === 'interrupted') throw new HandedBack()
    return done
  }

  /** Answers for a job that BullMQ gave up; one that is poison has ended its worker twice. */
  async giveUp(job: ExecuteJob, isPoison: boolean): Promise<void> {
    const { executors, stats } = this.#options
    if (isPoison) {
      const { codeHash } = await this.#loader.bot(job)
      executors.suspect({ botKey: botKey(job), codeHash })
    }
    await this.#ownership.whileOwned(job, true, this.#stopRun(job), async ({ lease }) => {
      noteFailure(this.#services.log, job, 'interrupted', 0)
      stats.run(job, isPoison ? 'poison' : 'interrupted', 0, 0)
      await this.#finish(lease ? { ...job, lease } : job, interrupted(job.runId), 0)
    })
  }

  /** Ends every run in hand; see HandedBack. */
  abandonAll(): void {
    for (const controller of this.#active.values()) controller.abort(SHUTDOWN)
  }

  /** Waits for results that are on their way. */
  async close(): Promise<void> {
    await Promise.all([this.#settling.close(), this.#ownership.stop()])
  }

  #stopRun({ runId }: ExecuteJob): (why: RunLost) => void {
    return (why) => this.#active.get(runId)?.abort(why)
  }

  /**
   * A bot that calls a bot keeps its slot, so the called one runs at once in the same slot: waiting
   * in the queue could wait for ever, with every slot held by a caller.
   */
  #nested(queues: Queues): Queues {
    return {
      ...queues,
      get commands() {
        return queues.commands
      },
      execute: async (job, { signal }) => {
        const controller = new AbortController()
        const stop = () => controller.abort(signal?.reason)
        signal?.addEventListener('abort', stop, { once: true })
        try {
          const attempt = { number: 1, isRepeat: false, lease: job.lease }
          const done = await this.#run({ job, attempt, controller, onRest: () => {} }, undefined)
          return done.reply
        } finally {
          signal?.removeEventListener('abort', stop)
        }
      },
    }
  }

  async #take(
    { job, attempt, onRest }: InHand,
    { lease, hadEffect, attempt: number = attempt.number }: Owned,
  ): Promise<void> {
    const own = lease?.owner === 'r' ? { number, hadEffect } : {}
    const taken = { ...attempt, ...own, lease }
    const done = await this.#runCounted({ job, attempt: taken, onRest })
    const { reply, failure, audited, ranMs, isLost } = done
    if (isLost === true) {
      // The worker that has it now ends it, too.
      this.#services.log.warn({ runId: job.runId }, 'A bot run was lost to another worker')
      return
    }
    if (job.asynchronous && failure !== undefined) await this.#retry(job, failure)
    await this.#finish(lease ? { ...job, lease } : job, reply, ranMs)
    if (job.asynchronous) {
      onRest(true)
      await audited
    }
  }

  /** Errors: Again, when the bot asks for another attempt. */
  async #retry(job: ExecuteJob, failure: Done['failure']): Promise<void> {
    const loaded = await this.#loader.bot(job).catch(() => undefined)
    const delayMs = retryAfterMs(job, failure, loaded?.maxAttempts ?? 1)
    if (delayMs === undefined) return
    throw new Again(delayMs)
  }

  /** The reply first, then what nobody waits for. */
  async #finish(job: ExecuteJob, reply: ExecuteReply, ranMs: number): Promise<void> {
    if (job.asynchronous && reply.status === 'unavailable') {
      throw new LeftToUpkeep(`Run ${job.runId} is left to upkeep`)
    }
    await this.#settling.finish(job, reply, ranMs)
  }

  async #runCounted(inHand: InHand): Promise<Done & { readonly ranMs: number }> {
    const { metrics, stats } = this.#options
    const { job } = inHand
    const startedAt = Date.now()
    const queuedMs = startedAt - job.added
    const ended = metrics.started(job)
    const done = await this.#runOrFail(inHand).catch((error: unknown) => {
      ended('put-off', queuedMs, 0)
      throw error
    })
    const outcome = done.failure ?? 'ok'
    const ranMs = Date.now() - startedAt
    noteFailure(this.#services.log, job, done.failure, ranMs)
    ended(outcome, queuedMs, ranMs)
    stats.run(job, outcome, queuedMs, ranMs)
    return { ...done, ranMs }
  }

  async #runOrFail({ job, attempt, onRest }: InHand): Promise<Done> {
    const controller = new AbortController()
    this.#active.set(job.runId, controller)
    try {
      return await this.#runInSlot({ job, attempt, onRest, controller })
    } catch (error) {
      if (error instanceof HandedBack || error instanceof Deferred) throw error
      const { runId } = job
      if (error === SHUTDOWN) throw new HandedBack()
      if (error instanceof RunLost) {
        return { reply: interrupted(runId), failure: 'interrupted', isLost: true }
      }
      if (controller.signal.aborted && error === controller.signal.reason) return cancelled(runId)
      if (error instanceof HttpError && error.status < 500) {
        const body = withRunId(JSON.stringify(error.outcome), runId)
        return { reply: { runId, status: 'error', kind: 'outcome', body }, failure: 'thrown' }
      }
      this.#services.log.error({ runId, cause: error }, 'A bot run could not start')
      return { reply: { runId, status: 'unavailable', kind: 'outcome' }, failure: 'unavailable' }
    } finally {
      this.#active.delete(job.runId)
    }
  }

  async #runInSlot(running: Running): Promise<Done> {
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
      queue: job.asynchronous || job.delivery ? 'bots-async' : 'bots-sync',
      added: job.added,
      signal: controller.signal,
      onHold: onRest,
    })
    const slot = await taken
    const { hold } = slot
    if (hold !== undefined) {
      metrics.held(hold.reason, hold.ms)
      stats.held(job, hold.reason, hold.ms)
    }
    try {
      const late = taken === slot ? undefined : await refusal(runs, job, attempt)
      if (late !== undefined) return late
      const rest = (isResting: boolean) => {
        slot.rest(isResting)
        onRest(isResting)
      }
      const run = this.#run({ job, attempt, controller, onRest: rest }, hold)
      return await run.finally(markActive(this.#services, job))
    } finally {
      slot.free()
    }
  }

  async #run(running: Running, hold: Hold | undefined): Promise<Done> {
    const { runs, executors, reports, metrics } = this.#options
    const { job, attempt, controller } = running
    const services = this.#services
    const [loaded, session, input] = await Promise.all([
      this.#loader.bot(job),
      this.#loader.session(job),
      runs.input(job),
    ])
    const { bot, limits } = loaded
    const secrets = await this.#loader.secrets(job, bot, session)
    await using token = createRunToken(services, session, limits.wallMs)
    const accessToken = loaded.wantsToken ? await token.take() : undefined
    const bridge = new Bridge({
      services,
      session: { ...session, principal: { ...session.principal, lease: attempt.lease } },
      job,
      signal: controller.signal,
      markWrite: () => this.#markWrite(running),
      mintToken: token.take,
    })
    const number = attempt.number + (job.scheduled?.attempt ?? 1) - 1
    const times = { attempt: number, deadline: Date.now() + limits.wallMs }
    const startedAt = new Date(runs.now())
    const started = { job, bot, session, input, startedAt, attempt: number, hold }
    const report = reports.start(started, secrets.values)
    const { baseUrl } = services.config
    const result = await executors.run(
      {
        ...sandboxOf(job, loaded, session),
        event: eventText({ job, bot, session, secrets: secrets.text, times, baseUrl, accessToken }),
        input,
        onLog: report.onLog,
      },
      (call) => {
        metrics.hostCall(call.kind)
        return bridge.answer(call)
      },
      controller.signal,
      running.onRest,
    )
    bridge.end()
    // Calls of such a run end with it.
    if (isKilled(result.failure)) controller.abort()
    metrics.used(result)
    return doneOf(running, bridge, report, result)
  }

  async #markWrite({ job, attempt, controller }: Running): Promise<void> {
    try {
      if (attempt.lease !== undefined) await noteEffect(this.#services, attempt.lease)
      else if (attempt.token !== undefined) await this.#options.runs.markWrite(job, attempt.token)
    } catch (error) {
      if (error instanceof RunLost || error instanceof Forgotten) controller.abort(error)
      throw error
    }
  }
}

function sandboxOf(job: ExecuteJob, loaded: LoadedBot, { principal }: Session) {
  return {
    runId: job.runId,
    projectId: principal.project.id,
    botKey: botKey(job),
    depth: job.depth,
    asker: askerKey(principal),
    code: loaded.code,
    codeHash: loaded.codeHash,
    format: loaded.format,
    file: loaded.file,
    libraries: loaded.libraries,
    limits: loaded.limits,
    fresh: loaded.fresh,
    concurrent: loaded.concurrent,
    inputKind: job.inputKind,
  }
}

/** Reports how a run has ended, and makes its reply. Errors: HandedBack. */
function doneOf(
  { job, controller: { signal } }: Running,
  bridge: Bridge,
  report: RunReport,
  result: RunResult,
): Done {
  const { runId } = job
  const isStopped = isCutOff(signal, result.failure)
  if (isStopped && signal.reason === SHUTDOWN && !bridge.hasWritten) throw new HandedBack()
  const { kind } = result
  const failure = isStopped ? 'interrupted' : result.failure
  const status = failure === 'interrupted' ? failure : result.status
  const audited = report.end(result, failure, bridge.made)
  const isLost = signal.reason instanceof RunLost
  if (isStopped) return { reply: interrupted(runId), failure, audited, isLost }
  // The error that a bot makes of an outage is not its answer: who waits may ask again, or hears that it was cut off.
  if (failure === 'thrown' && bridge.wasRefused && !job.asynchronous) {
    const again: ExecuteReply = { runId, status: 'unavailable', kind }
    return { reply: bridge.hasWritten ? interrupted(runId) : again, failure, audited }
  }
  const body = status !== 'ok' ? withRunId(result.body, runId) : result.body
  return { reply: { runId, status, kind, body }, failure, audited }
}

/**
 * An executor takes a few runs of a key at a time. Each depth has its own key: a called bot waits for
 * places that only deeper calls hold, so calls that wait for each other in a ring cannot be.
 */
function botKey({ botId, botVersion, depth }: ExecuteJob): string {
  return depth === 0 ? `${botId}/${botVersion}` : `${botId}/${botVersion}/${depth}`
}
