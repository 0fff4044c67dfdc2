/**
 * One bot run from job to reply: who and what, the sandbox, the reply, then the AsyncJob and the
 * AuditEvent. A run that may have had an effect is never made twice; the journal in Redis outlives
 * this process, the bridge's own note is enough inside it.
 */

import { askerKey } from '../../shared/access/principal.ts'
import type { RunTaking } from '../../shared/access/run-taking.ts'
import { HttpError, RunLost } from '../../shared/errors.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/platform/queue/jobs.ts'
import type { Queues } from '../../shared/platform/queue/queue.ts'
import { interrupted } from '../../shared/platform/queue/replies.ts'
import { Forgotten, type Runs } from '../../shared/platform/queue/runs.ts'
import type { Stats } from '../../shared/platform/queue/stats.ts'
import type { Services } from '../../shared/services.ts'
import { createBridge } from './bridge.ts'
import { eventText, withRunId } from './event.ts'
import type { Executors } from './executors/executors.ts'
import { createLoader } from './load.ts'
import { tellBegun } from './mark-started.ts'
import type { RunMetrics } from './metrics.ts'
import { createOwnership, LeftToUpkeep, noteEffect, type Owned } from './ownership.ts'
import { type Attempt, cancelled, type Done, refusal } from './refusal.ts'
import { Again, retryAfterMs } from './retries.ts'
import type { Telling } from './run-reports.ts'
import { isKilled } from './run-result.ts'
import { createSettling } from './settle.ts'
import { createSlots, Deferred, type Hold } from './slots.ts'
import { createRunToken } from './token.ts'

export interface RunnerOptions {
  readonly services: Services
  readonly runs: Runs
  readonly executors: Executors
  readonly telling: Telling
  readonly metrics: RunMetrics
  readonly stats: Stats
}

/** Thrown at shutdown for a run that had no effect: its job goes back to the queue. */
export class HandedBack extends Error {}

/** Called when the run begins and ends to wait without using the processor. */
type OnRest = (isResting: boolean) => void

export interface Runner {
  /** Resolves when the job may be acknowledged. Errors: HandedBack, Deferred, Again, LeftToUpkeep. */
  process(job: ExecuteJob, attempt: Attempt, onRest: OnRest): Promise<void>
  /** Runs a job that PostgreSQL holds, for its outcome. Errors: HandedBack, Deferred. */
  deliver(job: ExecuteJob, attempt: number, taking: RunTaking): Promise<Done>
  /** Answers for a job that BullMQ gave up; one that is poison has ended its worker twice. */
  giveUp(job: ExecuteJob, isPoison: boolean): Promise<void>
  /** Ends every run in hand; see HandedBack. */
  abandonAll(): void
  /** Waits for results that are on their way. */
  close(): Promise<void>
  readonly active: number
}

const SHUTDOWN = new Error('The worker stops')

/** The run ends although nobody has asked for its end; what a bot makes of a refused write is no result. */
function isCutOff({ aborted, reason }: AbortSignal, failure: Done['failure']): boolean {
  if (!aborted) return false
  if (reason === SHUTDOWN) return failure === 'cancelled'
  return reason instanceof RunLost || reason instanceof Forgotten
}

export function createRunner(options: RunnerOptions): Runner {
  const { runs, executors, telling, metrics, stats } = options
  const active = new Map<string, AbortController>()
  const services: Services = { ...options.services, queues: nested(options.services.queues) }
  const { config } = services
  const ownership = createOwnership(services)
  const loader = createLoader(services)
  const settling = createSettling(services, runs)
  const slots = createSlots({
    liveWorkers: () => runs.liveWorkers,
    perQueue: config.workerConcurrency,
    room: () => executors.room,
  })

  metrics.showHeld(() => slots.held())
  runs.onCancel((runId) => active.get(runId)?.abort(new Error('The run was cancelled')))

  const stopRun =
    ({ runId }: ExecuteJob) =>
    (why: RunLost) =>
      active.get(runId)?.abort(why)

  /**
   * A bot that calls a bot keeps its slot, so the called one runs at once in the same slot: waiting
   * in the queue could wait for ever, with every slot held by a caller.
   */
  function nested(queues: Queues): Queues {
    return {
      ...queues,
      get commands() {
        return queues.commands
      },
      async execute(job, { signal }) {
        const controller = new AbortController()
        const stop = () => controller.abort(signal?.reason)
        signal?.addEventListener('abort', stop, { once: true })
        try {
          const done = await run(
            job,
            { number: 1, isRepeat: false, taking: job.taking },
            controller,
            () => {},
            undefined,
          )
          return done.reply
        } finally {
          signal?.removeEventListener('abort', stop)
        }
      },
    }
  }

  async function run(
    job: ExecuteJob,
    attempt: Attempt,
    controller: AbortController,
    onRest: OnRest,
    hold: Hold | undefined,
  ): Promise<Done> {
    const { runId } = job
    const { signal } = controller
    const [loaded, session, input] = await Promise.all([
      loader.bot(job),
      loader.session(job),
      runs.input(job),
    ])
    const secrets = await loader.secrets(job, loaded.bot, session)
    await using token = createRunToken(services, session, loaded.limits.wallMs)
    const accessToken = loaded.wantsToken ? await token.take() : undefined
    const bridge = createBridge({
      services,
      session: { ...session, principal: { ...session.principal, taking: attempt.taking } },
      job,
      signal,
      markWrite: async () => {
        try {
          if (attempt.taking !== undefined) await noteEffect(services, attempt.taking)
          else if (attempt.token !== undefined) await runs.markWrite(job, attempt.token)
        } catch (error) {
          if (error instanceof RunLost || error instanceof Forgotten) controller.abort(error)
          throw error
        }
      },
      mintToken: token.take,
    })
    const number = attempt.number + (job.scheduled?.attempt ?? 1) - 1
    const times = { attempt: number, deadline: Date.now() + loaded.limits.wallMs }
    const startedAt = new Date()
    const started = { job, bot: loaded.bot, session, input, startedAt, attempt: number, hold }
    const told = telling.start(started, secrets.values)
    const result = await executors.run(
      {
        runId,
        projectId: session.principal.project.id,
        botKey: botKey(job),
        depth: job.depth,
        asker: askerKey(session.principal),
        code: loaded.code,
        codeHash: loaded.codeHash,
        format: loaded.format,
        file: loaded.file,
        libraries: loaded.libraries,
        limits: loaded.limits,
        fresh: loaded.fresh,
        concurrent: loaded.concurrent,
        event: eventText(job, loaded, session, secrets.text, times, config.baseUrl, accessToken),
        inputKind: job.inputKind,
        input,
        onLog: told.onLog,
      },
      (call) => {
        metrics.hostCall(call.kind)
        return bridge.answer(call)
      },
      signal,
      onRest,
    )
    bridge.end()
    // Calls of such a run end with it.
    if (isKilled(result.failure)) controller.abort()
    metrics.used(result)
    const isStopped = isCutOff(signal, result.failure)
    if (isStopped && signal.reason === SHUTDOWN && !bridge.hasWritten) throw new HandedBack()
    const { kind } = result
    const failure = isStopped ? 'interrupted' : result.failure
    const status = failure === 'interrupted' ? failure : result.status
    const audited = told.end(result, failure)
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

  async function runInSlot(
    job: ExecuteJob,
    attempt: Attempt,
    controller: AbortController,
    onRest: OnRest,
  ): Promise<Done> {
    const refused = await refusal(runs, job, attempt)
    if (refused !== undefined) return refused
    const [{ maxConcurrency }, projectConcurrency] = await Promise.all([
      loader.bot(job),
      loader.projectConcurrency(job),
    ])
    const taken = slots.take({
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
      return await run(job, attempt, controller, rest, hold).finally(tellBegun(services, job))
    } finally {
      slot.free()
    }
  }

  async function runOrFail(job: ExecuteJob, attempt: Attempt, onRest: OnRest): Promise<Done> {
    const controller = new AbortController()
    active.set(job.runId, controller)
    try {
      return await runInSlot(job, attempt, controller, onRest)
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
      services.log.error({ runId, cause: error }, 'A bot run could not start')
      return { reply: { runId, status: 'unavailable', kind: 'outcome' }, failure: 'unavailable' }
    } finally {
      active.delete(job.runId)
    }
  }

  async function runCounted(
    job: ExecuteJob,
    attempt: Attempt,
    onRest: OnRest,
  ): Promise<Done & { readonly ranMs: number }> {
    const startedAt = Date.now()
    const queuedMs = startedAt - job.added
    const ended = metrics.started(job)
    const done = await runOrFail(job, attempt, onRest).catch((error: unknown) => {
      ended('put-off', queuedMs, 0)
      throw error
    })
    const outcome = done.failure ?? 'ok'
    const ranMs = Date.now() - startedAt
    ended(outcome, queuedMs, ranMs)
    stats.run(job, outcome, queuedMs, ranMs)
    return { ...done, ranMs }
  }

  /** The reply first, then what nobody waits for. */
  async function finish(job: ExecuteJob, reply: ExecuteReply, ranMs: number): Promise<void> {
    if (job.asynchronous && reply.status === 'unavailable') {
      throw new LeftToUpkeep(`Run ${job.runId} is left to upkeep`)
    }
    await settling.finish(job, reply, ranMs)
  }

  /** Errors: Again, when the bot asks for another attempt. */
  async function retry(job: ExecuteJob, failure: Done['failure']): Promise<void> {
    const loaded = await loader.bot(job).catch(() => undefined)
    const delayMs = retryAfterMs(job, failure, loaded?.maxAttempts ?? 1)
    if (delayMs === undefined) return
    throw new Again(delayMs)
  }

  async function take(
    job: ExecuteJob,
    attempt: Attempt,
    { taking, hadEffect, attempt: number = attempt.number }: Owned,
    onRest: OnRest,
  ): Promise<void> {
    const own = taking?.owner === 'r' ? { number, hadEffect } : {}
    const taken = { ...attempt, ...own, taking }
    const { reply, failure, audited, ranMs, isLost } = await runCounted(job, taken, onRest)
    if (isLost === true) {
      // The worker that has it now ends it, too.
      services.log.warn({ runId: job.runId }, 'A bot run was lost to another worker')
      return
    }
    if (job.asynchronous && failure !== undefined) await retry(job, failure)
    await finish(taking === undefined ? job : { ...job, taking }, reply, ranMs)
    if (job.asynchronous) {
      onRest(true)
      await audited
    }
  }

  return {
    get active() {
      return active.size
    },
    process: (job, attempt, onRest) => {
      const token = job.asynchronous ? undefined : attempt.token
      return runs.whileKnown(job.runId, token, () =>
        ownership.whileOwned(job, attempt.isRepeat, stopRun(job), (owned) =>
          take(job, attempt, owned, onRest),
        ),
      )
    },
    async deliver(job, number, taking) {
      const deadline = job.deadline - Date.now() + runs.now()
      const attempt = { number, isRepeat: false, taking }
      const done = await runCounted({ ...job, deadline }, attempt, () => {})
      if (done.failure === 'interrupted') throw new HandedBack()
      return done
    },
    async giveUp(job, isPoison) {
      if (isPoison) {
        const { codeHash } = await loader.bot(job)
        executors.suspect({ botKey: botKey(job), codeHash })
      }
      await ownership.whileOwned(job, true, stopRun(job), async () => {
        stats.run(job, isPoison ? 'poison' : 'interrupted', 0, 0)
        await finish(job, interrupted(job.runId), 0)
      })
    },
    abandonAll() {
      for (const controller of active.values()) controller.abort(SHUTDOWN)
    },
    async close() {
      await Promise.all([settling.close(), ownership.stop()])
    },
  }
}

/**
 * An executor takes a few runs of a key at a time. Each depth has its own key: a called bot waits for
 * places that only deeper calls hold, so calls that wait for each other in a ring cannot be.
 */
function botKey({ botId, botVersion, depth }: ExecuteJob): string {
  return depth === 0 ? `${botId}/${botVersion}` : `${botId}/${botVersion}/${depth}`
}
