/**
 * The scripts that Redis runs in one step, and their keys. Times are Redis' own, in ms. A channel beside them
 * wakes the workers when the outbox has got something.
 */
import { createHash } from 'node:crypto'
import type { Config } from '../../config/config.ts'
import type { Logger } from '../../log.ts'
import { openRedis, type Redis } from '../redis/redis.ts'

/** Prefix of every key and of BullMQ's. */
export const PREFIX = 'botica'

export const keys = {
  /** Sorted set of run ids that are waiting or running; the score is the end of their lease. */
  flight: (queue: string, projectId: string) => `${PREFIX}:flight:${queue}:${projectId}`,
  /** The lane that the project's next run gets, while it has many. */
  lane: (queue: string, projectId: string) => `${PREFIX}:lane:${queue}:${projectId}`,
  /** Sorted set of workers that take jobs of a queue; the score is when to forget them. */
  workers: (queue: string) => `${PREFIX}:workers:${queue}`,
  /** There while a worker has taken jobs of the queue in the last minute. */
  seen: (queue: string) => `${PREFIX}:seen:${queue}`,
  input: (runId: string) => `${PREFIX}:input:${runId}`,
  body: (runId: string) => `${PREFIX}:body:${runId}`,
  /** The reply, kept for a web process that may have missed it on its channel. */
  reply: (runId: string) => `${PREFIX}:reply:${runId}`,
  /** Set when the caller was sent away with a status URL: the result belongs to the AsyncJob. */
  late: (runId: string) => `${PREFIX}:late:${runId}`,
  /** Set before the first write of a run: it must not be repeated. */
  journal: (runId: string) => `${PREFIX}:journal:${runId}`,
  /** Made once and lost with all else: who finds another one knows that Redis was emptied. */
  born: `${PREFIX}:born`,
  /** BullMQ's own: there while a worker has the job, with the token of that worker. */
  lock: (queue: string, runId: string) => `${PREFIX}:${queue}:${runId}:lock`,
  /** How far the clock of a worker is behind, in ms; there while it is off. */
  clock: (workerId: string) => `${PREFIX}:clock:${workerId}`,
  metrics: (workerId: string) => `${PREFIX}:metrics:${workerId}`,
} as const

export const CANCEL_CHANNEL = `${PREFIX}:cancel`

export interface Script {
  readonly text: string
  readonly sha: string
}

/** Redis runs it by its hash. */
export function script(text: string): Script {
  return { text, sha: createHash('sha1').update(text).digest('hex') }
}

/** Lua: `now` in ms. */
export const NOW = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)`

/**
 * KEYS flight, workers, lane, seen; ARGV most in flight, durable (1: they may wait for a worker, however long it
 * takes to come), then runId and lease ms of each run. Answers the lanes of the runs, -1 for one that comes when
 * too many of the project are in flight, and for all of them -2 when there was no worker for a minute.
 *
 * Lanes are fairness between projects: BullMQ takes lane 0 first, and a project with 8, 16, 32, …
 * runs in flight adds to lane 1, 2, 3, …, behind projects with fewer. Inside a lane it is first come,
 * first served; the plain number in flight as priority would let late runs overtake earlier ones of
 * their own project whenever some finish. For the same reason a project leaves a lane only at half
 * of what brought it there.
 */
export const ADMIT = script(`${NOW}
local lanes = {}
local isDead = ARGV[2] == '0' and redis.call('ZCOUNT', KEYS[2], now, '+inf') == 0
  and redis.call('EXISTS', KEYS[4]) == 0
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local count = redis.call('ZCARD', KEYS[1])
local before = tonumber(redis.call('GET', KEYS[3]) or 0)
local lane = before
for i = 3, #ARGV, 2 do
  if isDead then table.insert(lanes, -2)
  elseif count >= tonumber(ARGV[1]) then table.insert(lanes, -1)
  else
    if count == 0 then lane = 0 end
    while count >= 8 * 2 ^ lane do lane = lane + 1 end
    while lane > 0 and count < 8 * 2 ^ (lane - 2) do lane = lane - 1 end
    count = count + redis.call('ZADD', KEYS[1], now + tonumber(ARGV[i + 1]), ARGV[i])
    table.insert(lanes, lane)
  end
end
if lane > 0 then redis.call('SET', KEYS[3], lane, 'PX', 60000)
elseif before > 0 then redis.call('UNLINK', KEYS[3]) end
return lanes`)

/**
 * KEYS flight, reply, late, input; ARGV runId, channel, message, keep (1: store the reply
 * even if somebody heard it). Answers the late mark, nil without one. The reply is published here,
 * before BullMQ completes the job: a worker that dies in between has answered its caller.
 */
export const FINISH = script(`
redis.call('ZREM', KEYS[1], ARGV[1])
local heard = 0
if ARGV[2] ~= '' then heard = redis.call('PUBLISH', ARGV[2], ARGV[3]) end
if ARGV[2] ~= '' and (heard == 0 or ARGV[4] == '1') then
  redis.call('SET', KEYS[2], ARGV[3], 'PX', 60000)
end
redis.call('UNLINK', KEYS[4])
return redis.call('GET', KEYS[3])`)

/**
 * KEYS journal, the lock of the job; ARGV token of the lock, ms to keep the mark. Answers 1 for the one attempt that
 * may change something, 0 where another one may, -1 where Redis knows neither.
 */
export const MARK = script(`
local marked = redis.call('GET', KEYS[1])
if marked then return marked == ARGV[1] and 1 or 0 end
local lock = redis.call('GET', KEYS[2])
if not lock then return -1 end
if lock ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)

/**
 * KEYS reply, late; ARGV ms to keep the mark. Answers the reply when the run has ended, else sets
 * the late mark, so that either this caller or the worker writes the AsyncJob, never neither.
 */
export const LATE = script(`
local reply = redis.call('GET', KEYS[1])
if reply then return reply end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[1])
return false`)

/** KEYS born; ARGV a new name. Answers the name of this memory of Redis. */
export const BORN = script(`
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])`)

/** KEYS workers, seen; ARGV worker id, ms to live. Answers how many workers are alive. */
export const HEARTBEAT = script(`${NOW}
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('SET', KEYS[2], '1', 'PX', 60000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZCARD', KEYS[1])`)

/** KEYS workers. Answers the ids of the workers that are alive. */
export const ALIVE = script(`${NOW}
return redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')`)

/** Runs by hash; a restarted Redis has forgotten the text and gets it again. */
export async function runScript(
  redis: Redis,
  { text, sha }: Script,
  keyNames: readonly string[],
  values: readonly (string | number)[],
): Promise<unknown> {
  try {
    return await redis.evalsha(sha, keyNames.length, ...keyNames, ...values)
  } catch (error) {
    if (!(error instanceof Error && error.message.startsWith('NOSCRIPT'))) throw error
    return redis.eval(text, keyNames.length, ...keyNames, ...values)
  }
}

/*
 * Wakes the workers when the outbox has got something. A wake carries nothing and may be lost: workers
 * look by themselves, too, only later.
 */

const CHANNEL = `${PREFIX}:changes`
/** Changes so close together wake once. */
const TOGETHER_MS = 2

/** Wakes at once, then at most every 2 ms. */
export function createAnnouncer(redis: Redis): () => void {
  let timer: NodeJS.Timeout | undefined
  let isDue = false
  const publish = () => {
    redis.publish(CHANNEL, '').catch(() => undefined)
  }
  const next = () => {
    timer = undefined
    if (!isDue) return
    isDue = false
    timer = setTimeout(next, TOGETHER_MS)
    publish()
  }
  return () => {
    if (timer !== undefined) {
      isDue = true
      return
    }
    timer = setTimeout(next, TOGETHER_MS)
    publish()
  }
}

/** Calls `wake` for every announcement until it is closed. */
export function listenForChanges(config: Config, log: Logger, wake: () => void): { close(): void } {
  const redis = openRedis(config, 'subscribe', log)
  redis.on('message', wake)
  // Announcements are lost while the connection is away.
  redis.on('ready', wake)
  redis.subscribe(CHANNEL).catch((cause: unknown) => {
    log.warn({ cause }, 'Changes are not listened for')
  })
  return { close: () => redis.disconnect() }
}
