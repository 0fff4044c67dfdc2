/** The scripts that Redis runs in one step, and their keys. Times are Redis' own, in ms. */
import { createHash } from 'node:crypto'
import type { Redis } from '../redis/redis.ts'

/** Prefix of every key and of BullMQ's. */
export const PREFIX = 'botica'

export const keys = {
  /** Sorted set of run ids that are waiting or running; the score is the end of their lease. */
  flight: (queue: string, projectId: string) => `${PREFIX}:flight:${queue}:${projectId}`,
  /** The lane that the project's next run gets, while it has many. */
  lane: (queue: string, projectId: string) => `${PREFIX}:lane:${queue}:${projectId}`,
  /** Sorted set of workers that take jobs of a queue; the score is when to forget them. */
  workers: (queue: string) => `${PREFIX}:workers:${queue}`,
  /** BullMQ's keys of a queue; '' is the beginning of those of its jobs. */
  queue: (queue: string, part: string) => `${PREFIX}:${queue}:${part}`,
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
 * KEYS flight, workers, lane, seen, and of BullMQ wait, prioritized, pc, marker; ARGV most in flight, durable (1: they
 * may wait for a worker, however long it takes to come), the beginning of the keys of jobs, the time, then runId, lease
 * ms and data of each run. Answers the lanes of the runs, -1 for one that comes when too many of the project are in
 * flight, and for all of them -2 when there was no worker for a minute. One that is admitted and has data is added as
 * BullMQ would: not a second time, since a command may be sent again after a break.
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
local isAdded = false
for i = 5, #ARGV, 3 do
  if isDead then table.insert(lanes, -2)
  elseif count >= tonumber(ARGV[1]) then table.insert(lanes, -1)
  else
    if count == 0 then lane = 0 end
    while count >= 8 * 2 ^ lane do lane = lane + 1 end
    while lane > 0 and count < 8 * 2 ^ (lane - 2) do lane = lane - 1 end
    count = count + redis.call('ZADD', KEYS[1], now + tonumber(ARGV[i + 1]), ARGV[i])
    table.insert(lanes, lane)
    if ARGV[i + 2] ~= '' and redis.call('EXISTS', ARGV[3] .. ARGV[i]) == 0 then
      isAdded = true
      redis.call('HSET', ARGV[3] .. ARGV[i], 'name', 'execute', 'data', ARGV[i + 2], 'opts', '{}',
        'timestamp', ARGV[4], 'delay', 0, 'priority', lane)
      if lane == 0 then redis.call('LPUSH', KEYS[5], ARGV[i])
      else redis.call('ZADD', KEYS[6], lane * 0x100000000 + redis.call('INCR', KEYS[7]) % 0x100000000, ARGV[i]) end
    end
  end
end
if isAdded then redis.call('ZADD', KEYS[8], 0, '0') end
if lane > 0 then redis.call('SET', KEYS[3], lane, 'PX', 60000)
elseif before > 0 then redis.call('UNLINK', KEYS[3]) end
return lanes`)

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

// BullMQ's own scripts keep a stream of events, parents, rate limits and metrics; nobody reads or uses them here, and they
// are half of the commands of a run. These stand in their place: the same names, keys and arguments as those of BullMQ
// 6.7.0, whose other scripts work on the same keys. Another version asks for other names and gets its own.

const BULLMQ = '6.7.0'

/**
 * Lua: `take` moves the next job to the active ones, those first that are due by now, and locks it; none of a queue that
 * is paused. It answers its id, or nothing and when the next delayed one is due. `leave`, once after it, wakes another
 * worker where jobs are left.
 */
export const TAKE = `
local isOpen
local hasTaken = false
local function enter(queue)
  local soon = (queue.now + 1) * 0x1000 - 1
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue.delayed, 0, soon, 'LIMIT', 0, 1000)) do
    redis.call('ZREM', queue.delayed, id)
    local priority = tonumber(redis.call('HGET', queue.prefix .. id, 'priority')) or 0
    if priority == 0 then redis.call('LPUSH', queue.wait, id)
    else
      local place = priority * 0x100000000 + redis.call('INCR', queue.counter) % 0x100000000
      redis.call('ZADD', queue.prioritized, place, id)
    end
    redis.call('HSET', queue.prefix .. id, 'delay', 0)
  end
  return redis.call('HEXISTS', queue.meta, 'paused') == 0
end
local function take(queue, token, lockMs)
  if isOpen == nil then isOpen = enter(queue) end
  if not isOpen then return nil, 0 end
  local id = redis.call('RPOPLPUSH', queue.wait, queue.active)
  if not id then
    id = redis.call('ZPOPMIN', queue.prioritized)[1]
    if not id then
      local due = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')[2]
      return nil, due and due / 0x1000 or 0
    end
    redis.call('LPUSH', queue.active, id)
  end
  local key = queue.prefix .. id
  redis.call('SET', key .. ':lock', token, 'PX', lockMs)
  redis.call('HSET', key, 'processedOn', queue.now)
  redis.call('HINCRBY', key, 'ats', 1)
  hasTaken = true
  return id
end
local function leave(queue)
  if hasTaken and redis.call('EXISTS', queue.wait, queue.prioritized) > 0 then
    redis.call('ZADD', queue.marker, 0, '0')
  end
end
local function taken(queue, opts)
  local id, due = take(queue, opts.token, opts.lockDuration)
  leave(queue)
  if not id then return {0, 0, 0, due} end
  return {redis.call('HGETALL', queue.prefix .. id), id, 0, 0}
end`

/** Lua: `store` writes the job down, and is nil where it is known. */
const STORE = `
local args, opts = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[3])
local function store(counter)
  local id = args[2]
  if id == '' then id = redis.call('INCR', counter) .. '' end
  local key = args[1] .. id
  if redis.call('EXISTS', key) == 1 then return end
  redis.call('HSET', key, 'name', args[3], 'data', ARGV[2], 'opts', cjson.encode(opts), 'timestamp', args[4],
    'delay', 0, 'priority', opts.priority or 0)
  return id
end`

const LEAN: Readonly<Record<string, { readonly numberOfKeys: number; readonly lua: string }>> = {
  [`addStandardJob:${BULLMQ}`]: {
    numberOfKeys: 9,
    lua: `${STORE}
local id = store(KEYS[4])
if not id then return args[2] end
redis.call('LPUSH', KEYS[1], id)
redis.call('ZADD', KEYS[9], 0, '0')
return id`,
  },
  [`addPrioritizedJob:${BULLMQ}`]: {
    numberOfKeys: 9,
    lua: `${STORE}
local id = store(KEYS[3])
if not id then return args[2] end
redis.call('ZADD', KEYS[4], opts.priority * 0x100000000 + redis.call('INCR', KEYS[9]) % 0x100000000, id)
redis.call('ZADD', KEYS[1], 0, '0')
return id`,
  },
  [`moveToActive:${BULLMQ}`]: {
    numberOfKeys: 11,
    lua: `${TAKE}
return taken({wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], delayed = KEYS[7], meta = KEYS[9],
  counter = KEYS[10], marker = KEYS[11], prefix = ARGV[1], now = ARGV[2]}, cmsgpack.unpack(ARGV[3]))`,
  },
  [`moveToFinished:${BULLMQ}`]: {
    numberOfKeys: 14,
    lua: `${TAKE}
local opts = cmsgpack.unpack(ARGV[8])
local lock = redis.call('GET', KEYS[12] .. ':lock')
if lock ~= opts.token then
  if redis.call('EXISTS', KEYS[12]) == 0 then return -1 end
  return lock and -6 or -2
end
redis.call('SREM', KEYS[5], ARGV[1])
if redis.call('LREM', KEYS[2], -1, ARGV[1]) == 0 then return -3 end
redis.call('DEL', KEYS[12], KEYS[12] .. ':lock')
if ARGV[6] ~= '1' then return 0 end
return taken({wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], delayed = KEYS[7], meta = KEYS[9],
  counter = KEYS[10], marker = KEYS[14], prefix = ARGV[7], now = ARGV[2]}, opts)`,
  },
}

/** For a connection that BullMQ is given, and those that it makes of it; finished jobs are not kept. */
export function useLeanScripts(redis: Redis): void {
  redis.options.scripts = LEAN
  for (const [name, definition] of Object.entries(LEAN)) redis.defineCommand(name, definition)
}
