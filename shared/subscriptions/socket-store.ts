/**
 * Subscriptions of web sockets, which web processes and workers share: each is a text in Redis that
 * expires unless a process with a bound socket renews it, and a channel of notifications.
 */
import { NOW, PREFIX, runScript, script } from '../platform/queue/scripts.ts'
import type { Redis } from '../platform/redis/redis.ts'

/** The message of a channel whose changes may have passed by: its sockets are closed, so that clients bind again. */
export const GAP = 'gap'
/** Without a binding. */
export const UNBOUND_MS = 300_000
/** At a time. */
export const MOST_SOCKET_SUBSCRIPTIONS = { member: 500, project: 10_000 } as const

/** One that is held, and what it is counted by. */
export interface HeldSubscription {
  readonly id: string
  readonly projectId: string
  readonly membershipId: string
  readonly text: string
}

export type Refusal = keyof typeof MOST_SOCKET_SUBSCRIPTIONS

const keys = {
  text: (id: string) => `${PREFIX}:socket-subscription:${id}`,
  /** Sorted sets of ids; the score is when they expire. */
  ofMember: (id: string) => `${PREFIX}:socket-subscriptions:member:${id}`,
  ofProject: (id: string) => `${PREFIX}:socket-subscriptions:project:${id}`,
} as const

/** The channel of a Subscription's notifications, of its gaps and of its end. */
export function socketChannel(id: string): string {
  return `${PREFIX}:socket:${id}`
}

/**
 * KEYS text, sets of member and Project; ARGV id, text, ms to live, limits of the sets (0: it is
 * renewed). Answers which set is full, from 1, or 0.
 */
const HOLD = script(`${NOW}
local expires = now + tonumber(ARGV[3])
for i = 2, 3 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now)
  local limit = tonumber(ARGV[i + 2])
  if limit > 0 and redis.call('ZCARD', KEYS[i]) >= limit then return i - 1 end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
for i = 2, 3 do
  redis.call('ZADD', KEYS[i], expires, ARGV[1])
  redis.call('PEXPIRE', KEYS[i], ${UNBOUND_MS}, 'GT')
  if redis.call('PTTL', KEYS[i]) < 0 then redis.call('PEXPIRE', KEYS[i], ${UNBOUND_MS}) end
end
return 0`)

/** Undefined when it is held; else whose limit it would exceed. */
export async function holdSubscription(
  redis: Redis,
  held: HeldSubscription,
): Promise<Refusal | undefined> {
  const { member, project } = MOST_SOCKET_SUBSCRIPTIONS
  const full = await hold(redis, held, UNBOUND_MS, [member, project])
  return full === 0 ? undefined : full === 1 ? 'member' : 'project'
}

/** Also what Redis has lost meanwhile. */
export async function renewSubscriptions(
  redis: Redis,
  held: readonly HeldSubscription[],
  forMs: number,
): Promise<void> {
  await Promise.all(held.map((item) => hold(redis, item, forMs, [0, 0])))
}

async function hold(
  redis: Redis,
  { id, projectId, membershipId, text }: HeldSubscription,
  forMs: number,
  limits: readonly [number, number],
): Promise<number> {
  const names = [keys.text(id), keys.ofMember(membershipId), keys.ofProject(projectId)]
  return Number(await runScript(redis, HOLD, names, [id, text, forMs, ...limits]))
}

/** In the order asked; undefined for those that are gone. */
export async function heldTexts(
  redis: Redis,
  ids: readonly string[],
): Promise<readonly (string | undefined)[]> {
  if (ids.length === 0) return []
  const texts = await redis.mget(ids.map(keys.text))
  return texts.map((text) => text ?? undefined)
}

/** Notifies the sockets that are bound to them; an empty message is the end. */
export async function dropSubscriptions(
  redis: Redis,
  held: readonly Omit<HeldSubscription, 'text'>[],
): Promise<void> {
  await Promise.all(
    held.flatMap(({ id, projectId, membershipId }) => [
      redis.unlink(keys.text(id)),
      redis.zrem(keys.ofMember(membershipId), id),
      redis.zrem(keys.ofProject(projectId), id),
      redis.publish(socketChannel(id), ''),
    ]),
  )
}
