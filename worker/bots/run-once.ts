/** One attempt at a run, from its loaded code to its end; and the runs of bots that it calls. */
import { callerKey } from '../../shared/access/principal.ts'
import type { Stats } from '../../shared/bots/stats.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Queues } from '../../shared/queue/queue.ts'
import type { Runs } from '../../shared/queue/runs.ts'
import type { Services } from '../../shared/request/services.ts'
import type { AnswerStreams } from './answer-stream.ts'
import { Bridge } from './bridge.ts'
import type { Executors } from './executors.ts'
import type { FetchRecorder } from './fetch-recording.ts'
import { codeKey, createRunToken, eventText, type Loader, NO_TOKEN } from './load.ts'
import type { RunMetrics } from './metrics.ts'
import { endAttempt } from './run-life.ts'
import type { RunReport, RunReports } from './run-reports.ts'
import { type Attempt, type Attempted, isKilled } from './run-result.ts'
import type { Hold } from './slots.ts'

export interface RunnerOptions {
  readonly services: Services
  readonly runs: Runs
  readonly executors: Executors
  readonly streams: AnswerStreams
  readonly reports: RunReports
  readonly metrics: RunMetrics
  readonly stats: Stats
}

/** Called when the run starts or stops waiting without CPU. */
export type OnIdle = (isIdle: boolean) => void

export interface Running {
  readonly job: ExecuteJob
  readonly attempt: Attempt
  readonly onIdle: OnIdle
  readonly controller: AbortController
  readonly hold?: Hold | undefined
  readonly dryRun?: DryRun
}

/** A run without effects: its replacements of services, fetches and records. */
export interface DryRun {
  readonly services: Services
  readonly player: FetchRecorder
  /** Notes a call that was not made. */
  note(text: string): void
  /** Records nothing; keeps the end of the run itself, not of one that it calls. */
  report(job: ExecuteJob, startedAt: Date, secrets: readonly string[]): RunReport
}

/** The queues of the services run called bots in the slot of the caller. */
export interface RunParts extends RunnerOptions {
  readonly loader: Loader
  /** Errors: LeaseLost, which ends the run. */
  markWrite(running: Running): Promise<void>
}

/** Runs the code of a job that has its slot, and records the run. A dry run records nothing. */
export async function runOnce(parts: RunParts, running: Running): Promise<Attempted> {
  const { runs, executors, reports, metrics } = parts
  const { job, attempt, controller, hold, dryRun } = running
  const { services } = dryRun ?? parts
  const [run, input] = await Promise.all([parts.loader.run(job), runs.input(job)])
  const { session, declared, secrets, context, ...loaded } = run
  const { bot, limits } = loaded
  const isDry = dryRun !== undefined
  await using token = isDry ? NO_TOKEN : createRunToken(services, session, declared, limits.wallMs)
  const accessToken = loaded.wantsToken ? await token.take() : undefined
  const recorder = isDry ? dryRun.player : reports.recorder(session)
  const caller = { ...session, principal: { ...session.principal, lease: attempt.lease, declared } }
  const bridge = openBridge(parts, running, {
    session: caller,
    recorder,
    mintToken: token.take,
    resultBytes: limits.resultBytes,
  })
  const number = attempt.number + (job.scheduled?.attempt ?? 1) - 1
  const times = { attempt: number, deadline: Date.now() + limits.wallMs }
  const startedAt = new Date(runs.presence.now())
  const started = { job, bot, session, input, startedAt, attempt: number, hold, recorder }
  const report = isDry
    ? dryRun.report(job, startedAt, secrets.values)
    : reports.start(started, secrets.values)
  const result = await executors.run(
    {
      ...loaded,
      // Another run must not see the globals of a dry run.
      ...(isDry ? { fresh: true, concurrent: false } : {}),
      runId: job.runId,
      projectId: session.principal.project.id,
      botKey: botKey(job),
      depth: job.depth,
      identity: callerKey(session.principal),
      inputKind: job.inputKind,
      event: eventText({ job, bot, secrets: secrets.text, context, times, accessToken }),
      input,
      onLog: report.onLog,
    },
    bridge,
    controller.signal,
    running.onIdle,
  )
  bridge.end()
  if (isKilled(result.failure)) controller.abort()
  metrics.used(result)
  return endAttempt({ job, signal: controller.signal, bridge, report, result })
}

interface Called {
  readonly session: Session
  readonly recorder: FetchRecorder | undefined
  readonly resultBytes: number
  mintToken(): Promise<string>
}

function openBridge(
  parts: RunParts,
  running: Running,
  { session, recorder, resultBytes, mintToken }: Called,
): Bridge {
  const { job, controller, dryRun } = running
  return new Bridge({
    services: (dryRun ?? parts).services,
    metrics: parts.metrics,
    session,
    job,
    signal: controller.signal,
    markWrite: dryRun === undefined ? () => parts.markWrite(running) : async () => {},
    recorder,
    noteMuted: dryRun?.note,
    mintToken,
    openStream: (markWrite) => {
      const stop = (reason: Error) => controller.abort(reason)
      return parts.streams.open({ job, maxBytes: resultBytes, markWrite, stop })
    },
  })
}

/** A nested bot runs at once in its caller's slot: with every slot held by a caller, the queue would deadlock. */
export function nestedExecute(run: (running: Running) => Promise<Attempted>): Queues['execute'] {
  return async (job, { signal }) => {
    const controller = new AbortController()
    const stop = () => controller.abort(signal?.reason)
    signal?.addEventListener('abort', stop, { once: true })
    try {
      const attempt = { number: 1, isRepeat: false, lease: job.lease }
      const done = await run({ job, attempt, controller, onIdle: () => {} })
      if (done.kind === 'done') return done.reply
      return { runId: job.runId, status: 'unavailable', kind: 'outcome' }
    } finally {
      signal?.removeEventListener('abort', stop)
    }
  }
}

/**
 * An executor limits concurrent runs per key. Each depth has its own key, which prevents deadlock: a called bot waits
 * only for places held by deeper calls.
 */
export function botKey(job: ExecuteJob): string {
  return job.depth === 0 ? codeKey(job) : `${codeKey(job)}/${job.depth}`
}
