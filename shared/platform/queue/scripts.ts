/** The scripts that Redis runs in one step, and the keys that are ours. Times are Redis' own, in ms. BullMQ's keys are its own. */
import { NOW, PREFIX, script } from '../redis/script.ts'

export const keys = {
  /** Sorted set of run ids that are waiting or running; the score is when to forget them. */
  flight: (queue: string, projectId: string) => `${PREFIX}:flight:${queue}:${projectId}`,
  input: (runId: string) => `${PREFIX}:input:${runId}`,
  body: (runId: string) => `${PREFIX}:body:${runId}`,
  /** The reply, kept for a web process that may have missed it on its channel. */
  reply: (runId: string) => `${PREFIX}:reply:${runId}`,
  /** Set when the caller was sent away with a status URL: the result belongs to the AsyncJob. */
  late: (runId: string) => `${PREFIX}:late:${runId}`,
  /** The attempt that may write: set before its first write, or when a later attempt ends the run. */
  journal: (runId: string) => `${PREFIX}:journal:${runId}`,
} as const

/**
 * KEYS flight, workers, seen; ARGV most in flight, durable (1: they may wait for a worker, however long it takes to
 * come), then runId and ms to remember it of each run. Returns how many runs of the project are in flight with each run,
 * -1 for one that comes when too many are, and -2 for all of them when there was no worker for a minute.
 */
export const ADMIT = script(`${NOW}
local counts = {}
local isDead = ARGV[2] == '0' and redis.call('ZCOUNT', KEYS[2], now, '+inf') == 0
  and redis.call('EXISTS', KEYS[3]) == 0
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local count = redis.call('ZCARD', KEYS[1])
for i = 3, #ARGV, 2 do
  if isDead then table.insert(counts, -2)
  elseif count >= tonumber(ARGV[1]) then table.insert(counts, -1)
  else
    count = count + redis.call('ZADD', KEYS[1], now + tonumber(ARGV[i + 1]), ARGV[i])
    table.insert(counts, count)
  end
end
return counts`)

/** KEYS journal; ARGV the attempt, ms to keep the mark. Answers the attempt that may write: the first that has asked. */
export const MARK = script(`
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
return redis.call('GET', KEYS[1])`)

/**
 * KEYS flight, reply, late, input, journal; ARGV runId, channel ('': nobody waits), message, keep (1: stores the reply even
 * if somebody has heard it), attempt ('': no other attempt can be under way), ms to keep its mark. Frees the place of the
 * run, and publishes its reply. Answers the late mark.
 */
export const REPLY = script(`
redis.call('ZREM', KEYS[1], ARGV[1])
if ARGV[2] ~= '' then
  local heard = redis.call('PUBLISH', ARGV[2], ARGV[3])
  if heard == 0 or ARGV[4] == '1' then redis.call('SET', KEYS[2], ARGV[3], 'PX', 60000) end
end
redis.call('UNLINK', KEYS[4])
if ARGV[5] ~= '' then redis.call('SET', KEYS[5], ARGV[5], 'PX', ARGV[6], 'NX') end
return redis.call('GET', KEYS[3])`)

/**
 * KEYS reply, late; ARGV ms to keep the mark. Answers the reply when the run has ended, else sets
 * the late mark, so that either this caller or the worker writes the AsyncJob, never neither.
 */
export const LATE = script(`
local reply = redis.call('GET', KEYS[1])
if reply then return reply end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[1])
return false`)
