/**
 * A worker says to Redis that a run is about to write, its reply, and the end of its job with the next one that it brings
 * along. All that is said in one turn of the event loop is one command, in that order, so a run whose job is gone has its
 * reply sent.
 */
import type { JobJson } from 'bullmq'
import type { Redis } from '../redis/redis.ts'
import { runScript, script, TAKE } from './scripts.ts'

export interface RunReply {
  /** Sorted set of the runs in flight. */
  readonly flight: string
  /** Where the reply is stored, the mark of a caller that was sent away, and the input: '' where there is none. */
  readonly keys: readonly [reply: string, late: string, input: string]
  readonly runId: string
  /** '' for a run that nobody waits for. */
  readonly channel: string
  readonly message: string
  /** Stores the reply even if somebody has heard it. */
  readonly keep: boolean
}

export interface EndedJob {
  readonly id: string
  readonly token: string
  readonly lockMs: number
  /** Takes the next job under the same token. */
  readonly takesNext: boolean
}

/** BullMQ's code of a job that cannot be completed, or what it is followed by. */
export type Completed = number | Next
export interface Next {
  readonly job: JobJson | undefined
  /** Epoch ms when the next delayed job is due; 0: there is none. */
  readonly dueAt: number
}

export interface WriteMark {
  readonly journal: string
  readonly lock: string
  /** Whoever holds the lock has put it there. */
  readonly token: string
  readonly keepMs: number
}

export interface RunCommands {
  /** 1 for the one attempt that may change something, 0 where another one may, -1 where Redis knows neither. */
  mark(mark: WriteMark): Promise<unknown>
  /** Publishes the reply and frees the run's place; resolves with true for a caller that was sent away. */
  reply(reply: RunReply): Promise<boolean>
  complete(job: EndedJob): Promise<Completed>
}

/**
 * KEYS wait, active, prioritized, delayed, meta, pc, marker, stalled of a queue; ARGV the beginning of the keys of its
 * jobs, the time, and then any number of
 *   'mark', journal, the lock of the job, its token, ms to keep the mark
 *   'reply', flight, reply, late, input, runId, channel, message, keep (1): answers the late mark
 *   'job', id, token, lock ms, takes the next (1): answers as BullMQ's moveToFinished, the next job by its fields
 * One that fails does not keep the others from theirs.
 */
const SAY = script(`${TAKE}
local queue = {wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], delayed = KEYS[4], meta = KEYS[5],
  counter = KEYS[6], marker = KEYS[7], prefix = ARGV[1], now = ARGV[2]}
local function mark(journal, lockKey, token, keepMs)
  local marked = redis.call('GET', journal)
  if marked then return marked == token and 1 or 0 end
  local lock = redis.call('GET', lockKey)
  if not lock then return -1 end
  if lock ~= token then return 0 end
  redis.call('SET', journal, token, 'PX', keepMs)
  return 1
end
local function reply(flight, reply, late, input, id, channel, message, keep)
  redis.call('ZREM', flight, id)
  if channel ~= '' then
    local heard = redis.call('PUBLISH', channel, message)
    if heard == 0 or keep == '1' then redis.call('SET', reply, message, 'PX', 60000) end
  end
  if input ~= '' then redis.call('UNLINK', input) end
  return redis.call('GET', late)
end
local function complete(id, token, lockMs, takesNext)
  local key = queue.prefix .. id
  local lock = redis.call('GET', key .. ':lock')
  if lock ~= token then
    if redis.call('EXISTS', key) == 0 then return -1 end
    return lock and -6 or -2
  end
  redis.call('SREM', KEYS[8], id)
  if redis.call('LREM', queue.active, -1, id) == 0 then return -3 end
  redis.call('DEL', key, key .. ':lock')
  if takesNext ~= '1' then return 0 end
  local next, due = take(queue, token, lockMs)
  if not next then return {0, due} end
  return {next, redis.call('HMGET', queue.prefix .. next, 'name', 'data', 'timestamp', 'priority', 'processedOn',
    'ats', 'atm', 'stc', 'defa')}
end
local kinds = {mark = {mark, 4}, reply = {reply, 8}, job = {complete, 4}}
local answers = {}
local at = 3
while at <= #ARGV do
  local run, length = unpack(kinds[ARGV[at]])
  local ok, answer = pcall(run, unpack(ARGV, at + 1, at + length))
  if not ok then answer = {err = tostring(type(answer) == 'table' and answer.err or answer)} end
  table.insert(answers, answer)
  at = at + length + 1
end
leave(queue)
return answers`)

const PARTS = ['wait', 'active', 'prioritized', 'delayed', 'meta', 'pc', 'marker', 'stalled']

interface Batch {
  readonly values: (string | number)[]
  size: number
  readonly answers: Promise<unknown>
}

const opened = new WeakMap<Redis, Map<string, RunCommands>>()

/** The ones of a queue on a connection; `queue` is the beginning of its keys, without the last colon. */
export function runCommandsOn(redis: Redis, queue: string): RunCommands {
  const known = opened.get(redis) ?? new Map<string, RunCommands>()
  opened.set(redis, known)
  const found = known.get(queue) ?? createRunCommands(redis, queue)
  known.set(queue, found)
  return found
}

function createRunCommands(redis: Redis, queue: string): RunCommands {
  const names = PARTS.map((part) => `${queue}:${part}`)
  let batch: Batch | undefined

  function open(): Batch {
    const { promise: sent, resolve: send } = Promise.withResolvers<void>()
    const values: (string | number)[] = [`${queue}:`, Date.now()]
    setImmediate(() => {
      batch = undefined
      send()
    })
    return { values, size: 0, answers: sent.then(() => runScript(redis, SAY, names, values)) }
  }

  async function say(...said: (string | number)[]): Promise<unknown> {
    batch ??= open()
    const place = batch.size++
    batch.values.push(...said)
    const answers = await batch.answers
    const answer: unknown = Array.isArray(answers) ? answers[place] : undefined
    if (answer instanceof Error) throw answer
    return answer
  }

  return {
    mark: ({ journal, lock, token, keepMs }) => say('mark', journal, lock, token, keepMs),
    async reply({ flight, keys, runId, channel, message, keep }) {
      const said = [flight, ...keys, runId, channel, message, keep ? 1 : 0]
      return (await say('reply', ...said)) !== null
    },
    async complete({ id, token, lockMs, takesNext }) {
      const answer = await say('job', id, token, lockMs, takesNext ? 1 : 0)
      return Array.isArray(answer) ? nextOf(answer) : Number(answer)
    },
  }
}

function nextOf([id, found]: readonly unknown[]): Next {
  if (!Array.isArray(found)) return { job: undefined, dueAt: Number(found) }
  const [name, data, timestamp, priority, processedOn, ats, atm, stc, defa] = found
  const job = {
    id: String(id),
    name: String(name),
    data: String(data),
    // Nobody reads them of a job that was taken.
    opts: {},
    progress: 0,
    priority: Number(priority),
    timestamp: Number(timestamp),
    processedOn: Number(processedOn),
    attemptsStarted: Number(ats ?? 0),
    attemptsMade: Number(atm ?? 0),
    stalledCounter: Number(stc ?? 0),
    ...(typeof defa === 'string' ? { deferredFailure: defa } : {}),
  }
  // BullMQ leaves out what a job has not yet, too; it would read an empty text as JSON, in vain.
  return { job: job as JobJson, dueAt: 0 }
}
