/**
 * Runs one bot from job to reply, AsyncJob and AuditEvent. A run with a possible effect never runs twice: the journal
 * in Redis survives this process, and the bridge tracks effects inside it.
 */
import { callerKey, type RunLease } from '../../shared/access/principal.ts'
import type { Stats } from '../../shared/bots/stats.ts'
import { HttpError, RunLeaseLost } from '../../shared/core/errors.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import type { Queues } from '../../shared/queue/queue.ts'
import { interrupted } from '../../shared/queue/replies.ts'
import type { Runs } from '../../shared/queue/runs.ts'
import type { JobEnd, TakenJob } from '../../shared/queue/worker.ts'
import type { Services } from '../../shared/request/services.ts'
import { Bridge } from './bridge.ts'
import type { Executors } from './executors.ts'
import {
  createLoader,
  createRunToken,
  eventText,
  type LoadedBot,
  type Loader,
  withRunId,
} from './load.ts'
import type { RunMetrics } from './metrics.ts'
import { retryAfterMs } from './retries.ts'
import { BACK, endOf, SHUTDOWN, unavailable } from './run-end.ts'
import { createRunLives, type RunLives } from './run-life.ts'
import type { RunReports } from './run-reports.ts'
import {
  type Attempt,
  type Attempted,
  cancelled,
  type Done,
  isKilled,
  noteFailure,
  refusal,
} from './run-result.ts'
import { createSettling, markActive, type Settling } from './settle.ts'
import { type Hold, Slots } from './slots.ts'

interface RunnerOptions {
  readonly services: Services
  readonly runs: Runs
  readonly executors: Executors
  readonly reports: RunReports
  readonly metrics: RunMetrics
  readonly stats: Stats
}

/** Called when the run starts or stops waiting without CPU. */
type OnRest = (isResting: boolean) => void

interface InHand {
  readonly job: ExecuteJob
  readonly attempt: Attempt
  readonly onRest: OnRest
}

type Counted = (Done & { readonly ranMs: number }) | Exclude<Attempted, Done>

interface Running extends InHand {
  readonly controller: AbortController
}

const DONE: JobEnd = { kind: 'done' }

export class Runner {
  readonly #options: RunnerOptions
  readonly #services: Services
  readonly #active = new Map<string, AbortController>()
  readonly #lives: RunLives
  readonly #loader: Loader
  readonly #settling: Settling
  readonly #slots: Slots

  constructor(options: RunnerOptions) {
    const { runs, executors, metrics } = options
    this.#options = options
    this.#services = { ...options.services, queues: this.#nested(options.services.queues) }
    this.#lives = createRunLives(this.#services, runs)
    this.#loader = createLoader(this.#services)
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
    const leasing = await this.#lives.lease(taken, this.#stopRun(job))
    if (leasing.state !== 'leased') return DONE
    const { run } = leasing
    // A run whose end could not be settled is free for another attempt.
    let end: JobEnd = BACK
    try {
      end = await this.#take({ job, attempt: run.attempt, onRest })
      return end
    } finally {
      await run.leave(end)
    }
  }

  /** Runs a delivery job, whose queue is PostgreSQL, and returns its outcome. */
  async deliver(job: ExecuteJob, number: number, lease: RunLease): Promise<Attempted> {
    const deadline = job.deadline - Date.now() + this.#options.runs.presence.now()
    const attempt = { number, isRepeat: false, lease }
    const done = await this.#runCounted({ job: { ...job, deadline }, attempt, onRest: () => {} })
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
    const leasing = await this.#lives.lease(taken, this.#stopRun(job))
    if (leasing.state !== 'leased') return
    noteFailure(this.#services.log, job, 'interrupted', 0)
    stats.run(job, isPoison ? 'poison' : 'interrupted', 0, 0)
    const { run } = leasing
    await this.#finish({ job, attempt: run.attempt }, interrupted(job.runId), 0).finally(() =>
      run.leave(DONE),
    )
  }

  abandonAll(): void {
    for (const controller of this.#active.values()) controller.abort(SHUTDOWN)
  }

  async close(): Promise<void> {
    await Promise.all([this.#settling.close(), this.#lives.stop()])
  }

  #stopRun({ runId }: ExecuteJob): () => void {
    return () => this.#active.get(runId)?.abort(new RunLeaseLost())
  }

  /** A nested bot runs at once in its caller's slot: with every slot held by a caller, the queue would deadlock. */
  #nested(queues: Queues): Queues {
    return {
      ...queues,
      execute: async (job, { signal }) => {
        const controller = new AbortController()
        const stop = () => controller.abort(signal?.reason)
        signal?.addEventListener('abort', stop, { once: true })
        try {
          const attempt = { number: 1, isRepeat: false, lease: job.lease }
          const done = await this.#run({ job, attempt, controller, onRest: () => {} }, undefined)
          if (done.kind === 'done') return done.reply
          return { runId: job.runId, status: 'unavailable', kind: 'outcome' }
        } finally {
          signal?.removeEventListener('abort', stop)
        }
      },
    }
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
    stats.run(job, outcome, queuedMs, ranMs)
    return { ...done, ranMs }
  }

  async #runOrFail({ job, attempt, onRest }: InHand): Promise<Attempted> {
    const controller = new AbortController()
    const { runId } = job
    this.#active.set(runId, controller)
    try {
      return await this.#runInSlot({ job, attempt, onRest, controller })
    } catch (error) {
      if (error === SHUTDOWN) return BACK
      if (error instanceof RunLeaseLost) {
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
      queue: job.asynchronous || job.delivery ? 'bots-async' : 'bots-sync',
      added: job.added,
      signal: controller.signal,
      onHold: onRest,
    })
    const slot = await taken
    if (slot.kind === 'back') return slot
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

  async #run(running: Running, hold: Hold | undefined): Promise<Attempted> {
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
    const startedAt = new Date(runs.presence.now())
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
    if (isKilled(result.failure)) controller.abort()
    metrics.used(result)
    return endOf({ job, signal: controller.signal }, bridge, report, result)
  }

  /** Errors: RunLost, which ends the run. */
  async #markWrite({ job, attempt, controller }: Running): Promise<void> {
    if ((await this.#lives.noteWrite(job, attempt)) === 'wrote') return
    const lost = new RunLeaseLost()
    controller.abort(lost)
    throw lost
  }
}

function sandboxOf(job: ExecuteJob, loaded: LoadedBot, { principal }: Session) {
  return {
    runId: job.runId,
    projectId: principal.project.id,
    botKey: botKey(job),
    depth: job.depth,
    asker: callerKey(principal),
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

/**
 * An executor limits concurrent runs per key. Each depth has its own key, which prevents deadlock: a called bot waits
 * only for places held by deeper calls.
 */
function botKey({ botId, botVersion, depth }: ExecuteJob): string {
  return depth === 0 ? `${botId}/${botVersion}` : `${botId}/${botVersion}/${depth}`
}
