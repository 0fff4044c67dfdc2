/**
 * One bot run from job to reply: who and what, the sandbox, the reply, then the AsyncJob and the
 * AuditEvent. A run that may have had an effect is never made twice; the journal in Redis outlives
 * this process, the bridge's own note is enough inside it.
 */
import { settleAsyncJob } from '../../shared/api/async-jobs.ts'
import type { Followed } from '../../shared/bot-logs.ts'
import { HttpError } from '../../shared/errors.ts'
import { issue, outcome } from '../../shared/fhir/outcome.ts'
import type { Queues } from '../../shared/queue.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue-jobs.ts'
import { interrupted } from '../../shared/queue-replies.ts'
import type { Runs } from '../../shared/queue-runs.ts'
import type { Services } from '../../shared/services.ts'
import type { Audit } from './audit.ts'
import { createBridge } from './bridge.ts'
import { eventText, redact, withRunId } from './event.ts'
import type { Executors } from './executors.ts'
import { startLiveLog } from './live-logs.ts'
import { createLoader } from './load.ts'
import type { RunMetrics } from './metrics.ts'
import type { RecentRuns } from './recent-runs.ts'
import type { RunFailure } from './run-result.ts'
import { createSlots, Deferred } from './slots.ts'
import { mintToken } from './token.ts'

export interface RunnerOptions {
  readonly services: Services
  readonly runs: Runs
  readonly executors: Executors
  readonly audit: Audit
  readonly recent: RecentRuns
  readonly followed: Followed
  readonly metrics: RunMetrics
}

/** Thrown at shutdown for a run that had no effect: its job goes back to the queue. */
export class HandedBack extends Error {}

export interface Attempt {
  /** 1-based, as the bot sees it. */
  readonly number: number
  /** The job was started before, here or elsewhere. */
  readonly isRepeat: boolean
}

export interface Runner {
  /** Resolves when the job may be acknowledged. Errors: HandedBack, Deferred; others leave it to upkeep. */
  process(job: ExecuteJob, attempt: Attempt): Promise<void>
  /** Answers for a job that BullMQ gave up. */
  giveUp(job: ExecuteJob): Promise<void>
  /** Ends every run in hand; see HandedBack. */
  abandonAll(): void
  readonly active: number
}

interface Done {
  readonly reply: ExecuteReply
  readonly failure: RunFailure | 'unavailable' | undefined
}

/** Runs of one project at a time, over all workers. */
const PROJECT_CONCURRENCY = 20
const SETTLE_ATTEMPTS = 5
const SETTLE_PAUSE_MS = 500
const SHUTDOWN = new Error('The worker stops')

export function createRunner(options: RunnerOptions): Runner {
  const { runs, executors, audit, recent, followed, metrics } = options
  const active = new Map<string, AbortController>()
  const services: Services = { ...options.services, queues: nested(options.services.queues) }
  const { config } = services
  const loader = createLoader(services)
  const slots = createSlots(() => runs.liveWorkers)

  runs.onCancel((runId) => active.get(runId)?.abort(new Error('The run was cancelled')))

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
          const done = await run(job, { number: 1, isRepeat: false }, controller)
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
  ): Promise<Done> {
    const { runId } = job
    const { signal } = controller
    const startedAt = new Date()
    const [loaded, session, input] = await Promise.all([
      loader.bot(job),
      loader.session(job),
      runs.input(job),
    ])
    const secrets = await loader.secrets(job, loaded.bot, session)
    const bridge = createBridge({
      services,
      principal: session.principal,
      job,
      signal,
      markWrite: () => runs.markWrite(job),
      mintToken: () => mintToken(services, session, loaded.limits.wallMs),
    })
    const times = { attempt: attempt.number, deadline: Date.now() + loaded.limits.wallMs }
    const cleaned = (log: string) => redact(log, secrets.values)
    const { number } = session.principal.project
    const live = startLiveLog(followed, job, number, startedAt, attempt.number, cleaned)
    const result = await executors.run(
      {
        runId,
        projectId: session.principal.project.id,
        botKey: botKey(job),
        membershipId: job.membershipId,
        code: loaded.code,
        codeHash: loaded.codeHash,
        format: loaded.format,
        limits: loaded.limits,
        event: eventText(job, loaded, session, secrets.text, times, config.baseUrl),
        inputKind: job.inputKind,
        input,
        onLog: live.onLog,
      },
      (call) => bridge.answer(call),
      signal,
    )
    const isStopped = signal.aborted && signal.reason === SHUTDOWN && result.failure === 'cancelled'
    if (isStopped && !bridge.hasWritten) throw new HandedBack()
    const { status, kind } = result
    const failure = isStopped ? 'interrupted' : result.failure
    const record = {
      job,
      bot: loaded.bot,
      session,
      input,
      startedAt,
      endedAt: new Date(),
      failure,
      log: cleaned(result.log),
      attempt: attempt.number,
      result,
    }
    audit.add(record)
    recent.add(record)
    live.end(record)
    if (isStopped) return { reply: interrupted(runId), failure }
    const body = status === 'error' ? withRunId(result.body, runId) : result.body
    return { reply: { runId, status, kind, body }, failure }
  }

  /** Undefined when the run may start. */
  async function refusal(job: ExecuteJob, attempt: Attempt): Promise<Done | undefined> {
    const { runId } = job
    if (runs.wasCancelled(runId))
      return { reply: ended(runId, 'processing', 'Bot run cancelled'), failure: 'cancelled' }
    if (attempt.isRepeat && (await runs.hasWritten(runId))) {
      return { reply: interrupted(runId), failure: 'interrupted' }
    }
    const now = Date.now()
    const isUnwanted =
      job.waitUntil !== undefined && now > job.waitUntil && !(await runs.isLate(runId))
    if (now <= job.deadline && !isUnwanted) return undefined
    return {
      reply: ended(runId, 'timeout', 'Bot run waited too long for a worker'),
      failure: 'timeout',
    }
  }

  async function runInSlot(
    job: ExecuteJob,
    attempt: Attempt,
    controller: AbortController,
  ): Promise<Done> {
    const refused = await refusal(job, attempt)
    if (refused !== undefined) return refused
    const { maxConcurrency } = await loader.bot(job)
    const free = slots.take([
      { name: job.botId, cap: maxConcurrency },
      { name: job.projectId, cap: PROJECT_CONCURRENCY },
    ])
    try {
      return await run(job, attempt, controller)
    } finally {
      free()
    }
  }

  async function runOrFail(job: ExecuteJob, attempt: Attempt): Promise<Done> {
    const controller = new AbortController()
    active.set(job.runId, controller)
    try {
      return await runInSlot(job, attempt, controller)
    } catch (error) {
      if (error instanceof HandedBack || error instanceof Deferred) throw error
      const { runId } = job
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

  /** The reply first, then what nobody waits for. */
  async function finish(job: ExecuteJob, reply: ExecuteReply, ranMs: number): Promise<void> {
    if (job.asynchronous && reply.status === 'unavailable') {
      throw new Error(`Run ${job.runId} is left to upkeep`)
    }
    const isLate = await runs.finish(job, reply, ranMs)
    if (!isLate) return
    const final = reply.status === 'unavailable' ? interrupted(job.runId) : reply
    for (let attempt = 1; ; attempt++) {
      try {
        await settleAsyncJob(services, job, final)
        return
      } catch (error) {
        if (attempt === SETTLE_ATTEMPTS) throw error
        await new Promise((resolve) => setTimeout(resolve, attempt * SETTLE_PAUSE_MS))
      }
    }
  }

  return {
    get active() {
      return active.size
    },
    async process(job, attempt) {
      const startedAt = Date.now()
      const { reply, failure } = await runOrFail(job, attempt)
      const ranMs = Date.now() - startedAt
      await finish(job, reply, ranMs)
      const mode = job.asynchronous ? 'async' : 'sync'
      metrics.run(mode, failure ?? 'ok', startedAt - job.added, ranMs)
    },
    async giveUp(job) {
      await finish(job, interrupted(job.runId), 0)
    },
    abandonAll() {
      for (const controller of active.values()) controller.abort(SHUTDOWN)
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

function ended(runId: string, code: string, text: string): ExecuteReply {
  const body = outcome(undefined, issue('error', code, text, undefined, runId))
  return { runId, status: 'error', kind: 'outcome', body: JSON.stringify(body) }
}
