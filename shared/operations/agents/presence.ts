/** Redis keeps the connection of each agent, its status, and its last messages. */
import type { Resource } from '../../fhir/resource.ts'
import type { Redis } from '../../redis/redis.ts'
import { NOW, PREFIX, runScript, script } from '../../redis/script.ts'

const agentKey = (address: string) => `${PREFIX}:agent:${address}`
const messagesKey = (address: string) => `${PREFIX}:agent-messages:${address}`

/**
 * Names an Agent, with platform meta, by its Project and its id as stored: Projects may have Agents with the same id, and
 * a path may spell an id in upper case.
 */
export function agentAddress({ id, meta }: Resource): string {
  return `${meta?.project}/${id}`
}

/** Two missed heartbeats, and some seconds. */
const LIVES_MS = 25_000
const KEEP_MS = 7 * 24 * 3_600_000
const MOST_MESSAGES = 50

/** KEYS agent; ARGV connection, ms to live, ms to keep. Makes it the agent's connection; returns the one before. */
const ENTER = script(`${NOW}
local before = redis.call('HGET', KEYS[1], 'connection')
redis.call('HSET', KEYS[1], 'connection', ARGV[1], 'alive', now + tonumber(ARGV[2]), 'updated', now)
redis.call('HDEL', KEYS[1], 'version')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return before`)

/** KEYS agent; ARGV connection, ms to live, ms to keep, version. Returns 0 if the agent has another connection. */
const RENEW = script(`${NOW}
local held = redis.call('HGET', KEYS[1], 'connection')
if held and held ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'connection', ARGV[1], 'alive', now + tonumber(ARGV[2]), 'updated', now)
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'version', ARGV[4]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1`)

/** KEYS agent; ARGV connection. Unless the agent has another connection. */
const LEAVE = script(`${NOW}
if redis.call('HGET', KEYS[1], 'connection') ~= ARGV[1] then return end
redis.call('HSET', KEYS[1], 'updated', now)
redis.call('HDEL', KEYS[1], 'connection', 'alive')`)

/** KEYS agent. Returns connection ('' without a live one), version and the time of the last change. */
const READ = script(`${NOW}
local found = redis.call('HMGET', KEYS[1], 'connection', 'alive', 'version', 'updated')
local connection = found[1] or ''
if tonumber(found[2] or 0) < now then connection = '' end
return { connection, found[3] or '', found[4] or '' }`)

interface AgentState {
  readonly status: 'connected' | 'disconnected' | 'unknown'
  /** Address of the connection on the bus, if there is one. */
  readonly connection: string | undefined
  /** Reported by the agent. */
  readonly version: string | undefined
  readonly lastUpdated: Date | undefined
}

/** Makes `connection` the agent's; returns the connection that it replaces. Errors: those of Redis. */
export async function enterAgent(
  redis: Redis,
  agent: string,
  connection: string,
): Promise<string | undefined> {
  const values = [connection, LIVES_MS, KEEP_MS]
  const before = await runScript(redis, ENTER, [agentKey(agent)], values)
  return typeof before === 'string' && before !== connection ? before : undefined
}

/** False if another connection has replaced this one. Errors: those of Redis. */
export async function renewAgent(
  redis: Redis,
  agent: string,
  connection: string,
  version: string | undefined,
): Promise<boolean> {
  const values = [connection, LIVES_MS, KEEP_MS, version ?? '']
  return (await runScript(redis, RENEW, [agentKey(agent)], values)) === 1
}

export async function leaveAgent(redis: Redis, agent: string, connection: string): Promise<void> {
  await runScript(redis, LEAVE, [agentKey(agent)], [connection])
}

/** Errors: those of Redis. */
export async function readAgentState(redis: Redis, agent: string): Promise<AgentState> {
  const found = await runScript(redis, READ, [agentKey(agent)], [])
  const [connection = '', version = '', updated = ''] = Array.isArray(found)
    ? found.map(String)
    : []
  const status = connection !== '' ? 'connected' : updated === '' ? 'unknown' : 'disconnected'
  return {
    status,
    connection: connection || undefined,
    version: version || undefined,
    lastUpdated: updated === '' ? undefined : new Date(Number(updated)),
  }
}

/** A message without its content, which may be about a patient. */
export interface AgentMessageRecord {
  /** Epoch ms. */
  readonly at: number
  /** `in`: from the agent to a bot; `out`: from the service to a device. */
  readonly direction: 'in' | 'out'
  readonly channel: string | undefined
  readonly remote: string
  readonly contentType: string
  readonly bytes: number
  readonly statusCode: number | undefined
  readonly durationMs: number
  readonly bot: string | undefined
  readonly runId: string | undefined
}

/** Keeps the last 50 for a week. Errors are ignored: the list only informs. */
export function recordAgentMessage(redis: Redis, agent: string, message: AgentMessageRecord): void {
  const key = messagesKey(agent)
  redis
    .pipeline()
    .lpush(key, JSON.stringify(message))
    .ltrim(key, 0, MOST_MESSAGES - 1)
    .pexpire(key, KEEP_MS)
    .exec()
    .catch(() => undefined)
}

/** Newest first. Errors: those of Redis. */
export async function readAgentMessages(
  redis: Redis,
  agent: string,
): Promise<readonly AgentMessageRecord[]> {
  const texts = await redis.lrange(messagesKey(agent), 0, -1)
  return texts.map((text) => JSON.parse(text) as AgentMessageRecord)
}
