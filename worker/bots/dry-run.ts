/**
 * The surroundings of a run without effects: writes are rolled back, fetches are answered from the record of a past run,
 * and other effects outside of the process are refused.
 */
import { Readable } from 'node:stream'
import { SUBSCRIPTION } from '../../shared/access/subscription.ts'
import type { AnsweredRun, DryRunReply } from '../../shared/bots/run-answers.ts'
import { findArchivedRun, readArchivedInput } from '../../shared/bots/run-records.ts'
import { REPORTED_TYPES } from '../../shared/core/cache.ts'
import { businessRule, notFound } from '../../shared/core/errors.ts'
import type { Storage } from '../../shared/outbound/storage/storage.ts'
import type { Database } from '../../shared/postgres/database.ts'
import type { Queues } from '../../shared/queue/queue.ts'
import type { Bus } from '../../shared/redis/bus.ts'
import type { Changes } from '../../shared/redis/changes.ts'
import type { Redis } from '../../shared/redis/redis.ts'
import type { Services } from '../../shared/request/services.ts'
import { rolledBack, rolledBackRepository } from '../../shared/store/rolled-back.ts'
import { createFetchPlayer } from './fetch-recording.ts'
import { type DryRun, nestedExecute, type Running, type RunParts, runOnce } from './run-once.ts'
import { redact } from './run-reports.ts'
import { type Attempted, toRunAnswer } from './run-result.ts'

const CACHED_TYPES: ReadonlySet<string> = new Set([...REPORTED_TYPES, SUBSCRIPTION])
const MOST_NOTES = 20
const MOST_NOTE = 500
const MOST_CONTENT = 20 * 1024 * 1024
/** Statuses of a run that has no answer, as when its worker stops. */
const STOPPED: ReadonlySet<string> = new Set(['interrupted', 'cancelled'])
/** The reason to stop a run whose locks others wait for. */
const GAVE_WAY = new Error('Others wait for a row of the dry run')

/** Runs a job with `dryRunOf`; the reply's body is a DryRunReply. Errors: 404 if the past run is no longer kept. */
export async function runDry(parts: RunParts, running: Running): Promise<Attempted> {
  const { job, controller } = running
  const { runId } = job
  const { storage, database } = parts.services
  const row = await findArchivedRun(database, job.botId, undefined, job.dryRunOf ?? '')
  if (row?.record.archive === undefined) throw notFound()
  const { fetches = [] } = await readArchivedInput(storage, row.record.archive)
  const notes: string[] = []
  const note = (text: string) => {
    if (notes.length < MOST_NOTES && !notes.includes(text)) notes.push(text)
  }
  let run: AnsweredRun | undefined
  /** Secrets of all its runs: a note may quote an address. */
  const allSecrets = new Set<string>()
  const report: DryRun['report'] = (one, startedAt, secrets) => {
    for (const secret of secrets) allSecrets.add(secret)
    const cleaned = (text: string) => redact(text, secrets)
    return {
      onLog: undefined,
      cleaned,
      async end(result, failure, { calls = [] }) {
        if (one.runId !== runId) return
        const answer = toRunAnswer(result, failure, cleaned)
        const [started, ended] = [startedAt.getTime(), startedAt.getTime() + result.wallMs]
        run = { runId, startedAt: started, endedAt: ended, answer, calls }
      },
    }
  }
  try {
    await rolledBack(
      database,
      () => controller.abort(GAVE_WAY),
      async (inside) => {
        const player = createFetchPlayer(fetches, note)
        const execute = nestedExecute((nested) => runOnce(parts, { ...nested, dryRun }))
        const services = mutedServices(parts.services, inside, { note, execute })
        const dryRun: DryRun = { services, player, note, report }
        return await runOnce(parts, { ...running, dryRun })
      },
    )
  } catch (error) {
    if (controller.signal.reason !== GAVE_WAY) throw error
  }
  const isStopped =
    controller.signal.reason === GAVE_WAY || STOPPED.has(run?.answer.status ?? 'interrupted')
  const secrets = [...allSecrets].sort((a, b) => b.length - a.length)
  const shown = notes.map((text) => redact(text, secrets).slice(0, MOST_NOTE))
  const reply: DryRunReply = { run: isStopped ? undefined : run, notes: shown }
  const body = JSON.stringify(reply)
  return {
    kind: 'done',
    reply: { runId, status: 'ok', kind: 'json', body },
    failure: undefined,
  }
}

function mutedServices(
  services: Services,
  database: Database,
  { note, execute }: Pick<DryRun, 'note'> & Pick<Queues, 'execute'>,
): Services {
  const refuse = (service: string) => {
    note(`${service}: not available to a dry run`)
    return businessRule(`A dry run has no access to ${service}`)
  }
  return {
    ...services,
    database,
    repository: rolledBackRepository(services.repository, database, CACHED_TYPES),
    replicas: undefined,
    storage: createMemoryStorage(services.storage),
    redis: refusing<Redis>(() => refuse('short-lived state')),
    bus: refusing<Bus>(() => refuse('messages between processes'), { publish: async () => 0 }),
    changes: refusing<Changes>(() => refuse('caches'), { report: async () => {} }),
    queues: refusing<Queues>(() => refuse('queues'), {
      home: services.queues.home,
      execute,
      // The rows of an asynchronous run are rolled back, and nothing starts it.
      enqueue: (_job, store) => store(),
    }),
  }
}

/** Has these members only, and throws at any use of others. */
function refusing<T extends object>(problem: () => Error, members: Partial<T> = {}): T {
  return new Proxy(members as T, {
    get(target, name, receiver) {
      if (name in target) return Reflect.get(target, name, receiver)
      throw problem()
    },
  })
}

/** Holds new content in memory. */
function createMemoryStorage(outer: Storage): Storage {
  const contents = new Map<string, Buffer>()
  let room = MOST_CONTENT
  return {
    ...outer,
    async put(key, source) {
      const chunks: Uint8Array[] = []
      for await (const chunk of source) {
        room -= chunk.length
        if (room < 0) throw businessRule('A dry run stores at most 20 MB of content')
        chunks.push(chunk)
      }
      contents.set(key, Buffer.concat(chunks))
    },
    async get(key, range) {
      const content = contents.get(key)
      if (content === undefined) return await outer.get(key, range)
      const part = range === undefined ? content : content.subarray(range.start, range.end + 1)
      return Readable.from([part], { objectMode: false })
    },
    async delete(key) {
      contents.delete(key)
    },
    removeAbandoned: async () => {},
  }
}
