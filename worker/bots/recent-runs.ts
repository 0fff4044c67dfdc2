/** What `Bot/$runs` shows: a row a run, written in batches after the caller has its answer. */
import { isObject } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import { addBotRuns, type BotRunRow, trimBotRuns } from '../../shared/store/bot-runs.ts'
import { logTail, type RunRecord } from './audit.ts'
import { createBatches } from './batches.ts'

export interface RecentRuns {
  add(record: RunRecord): void
  close(): Promise<void>
}

/** How often the runs of busy bots are cut to the latest. */
const TRIM_MS = 30_000
const MAX_ERROR = 1000

export function createRecentRuns({ database, log }: Services): RecentRuns {
  let grown = new Set<string>()
  const batches = createBatches<BotRunRow>({
    log,
    what: 'Records of bot runs',
    async write(rows) {
      const failure = await addBotRuns(database, rows).then(
        () => undefined,
        (error: unknown) => error,
      )
      return rows.map(() => failure)
    },
  })

  const trimming = setInterval(() => {
    if (grown.size === 0) return
    const bots = [...grown]
    grown = new Set()
    trimBotRuns(database, bots).catch((error: Error) => {
      log.debug({ reason: error.message }, 'Records of bot runs could not be trimmed')
    })
  }, TRIM_MS)

  return {
    add(record) {
      grown.add(record.job.botId)
      // Nobody waits for it.
      void batches.add(rowOf(record))
    },
    async close() {
      clearInterval(trimming)
      await batches.close()
    },
  }
}

function rowOf(record: RunRecord): BotRunRow {
  const { job, session, failure, startedAt, endedAt, result, attempt, log } = record
  return {
    bot: job.botId,
    started: startedAt,
    id: job.runId,
    project: session.principal.project.number,
    record: {
      status: failure ?? 'ok',
      durationMs: endedAt.getTime() - startedAt.getTime(),
      cpuMs: rounded(result.cpuMs),
      memoryMb: result.memoryMb === undefined ? undefined : rounded(result.memoryMb),
      version: job.botVersion,
      attempt,
      asynchronous: job.asynchronous === true,
      requester: job.requester,
      runAs: session.principal.profile,
      traceId: job.traceId,
      error: failure === undefined ? undefined : errorOf(result.body),
      log: logTail(log),
    },
  }
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100
}

/** The text of an outcome, which may be one that the bot made. */
function errorOf(body: string): string | undefined {
  try {
    const outcome: unknown = JSON.parse(body)
    const [issue]: readonly unknown[] =
      isObject(outcome) && Array.isArray(outcome.issue) ? outcome.issue : []
    const details = isObject(issue) && isObject(issue.details) ? issue.details : {}
    return typeof details.text === 'string' ? details.text.slice(0, MAX_ERROR) : undefined
  } catch {
    return undefined
  }
}
