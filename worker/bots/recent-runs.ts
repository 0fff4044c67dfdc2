/** Rows of `Bot/$runs`: one a run, written in batches after the caller has its answer. */

import { settingOf } from '../../shared/access/project-context.ts'
import { keepInput, trimRuns } from '../../shared/bots/inputs.ts'
import {
  addBotRuns,
  type BotRunRecord,
  type BotRunRow,
  type InputArchive,
} from '../../shared/bots/run-records.ts'
import type { ExecuteJob } from '../../shared/platform/queue/jobs.ts'
import type { Services } from '../../shared/services.ts'
import { createBatches, logTail, type RunRecord } from './audit.ts'

export interface RecentRuns {
  add(record: RunRecord): void
  close(): Promise<void>
}

/** How often the runs of busy bots are cut to the latest. */
const TRIM_MS = 30_000
const MAX_ERROR = 1000
/** Inputs on their way to the storage; where it is slower than the runs, the others are not kept. */
const MAX_KEEPING = 50
const ARCHIVE = 'BOT_INPUT_ARCHIVE'

export function createRecentRuns(services: Services): RecentRuns {
  const { config, database, log, storage } = services
  const keeping = new Set<Promise<void>>()
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
    trimRuns(services, bots).catch((error: Error) => {
      log.debug({ reason: error.message }, 'Records of bot runs could not be trimmed')
    })
  }, TRIM_MS)

  function isKept({ session }: RunRecord): boolean {
    if (!config.botInputArchive || keeping.size >= MAX_KEEPING) return false
    return settingOf(session.project.setting, ARCHIVE)?.valueBoolean === true
  }

  async function keepAndAdd(record: RunRecord): Promise<void> {
    const { session, job, attempt, input } = record
    const { id } = session.principal.project
    const shown = input === undefined ? undefined : record.cleaned(input)
    const kept = { projectId: id, job, attempt, input, shown }
    const archive = await keepInput(storage, kept).catch((cause: unknown) => {
      log.warn({ runId: job.runId, cause }, 'The input of a bot run could not be kept')
      return undefined
    })
    void batches.add(rowOf(record, archive))
  }

  return {
    add(record) {
      grown.add(record.job.botId)
      // Nobody waits for it.
      if (!isKept(record)) {
        void batches.add(rowOf(record))
        return
      }
      const kept = keepAndAdd(record).finally(() => keeping.delete(kept))
      keeping.add(kept)
    },
    async close() {
      clearInterval(trimming)
      await Promise.all(keeping)
      await batches.close()
    },
  }
}

function rowOf(record: RunRecord, archive?: InputArchive): BotRunRow {
  const { job, session, failure, error, startedAt, endedAt, result, attempt, log } = record
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
      hold: record.hold,
      mode: modeOf(job),
      requester: job.requester,
      runAs: session.principal.profile,
      traceId: job.traceId,
      error: error?.slice(0, MAX_ERROR),
      log: logTail(log),
      ...record.made,
      archive,
    },
  }
}

function modeOf(job: ExecuteJob): BotRunRecord['mode'] {
  if (job.scheduled !== undefined) return 'schedule'
  if (job.subscription !== undefined) return 'event'
  return job.asynchronous === true ? 'async' : 'sync'
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100
}
