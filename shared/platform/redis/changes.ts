/**
 * Changes of which caches of all processes must hear: the process that made one hears of it when it is committed, the
 * others through Redis. After a gap, during which some may have been missed, everything counts as changed. Caches are
 * read anew after some seconds all the same.
 */
import { randomUUID } from 'node:crypto'
import type { Config } from '../../config/config.ts'
import type { Logger } from '../../log.ts'
import { openRedis, type Redis, untilReady } from './redis.ts'

export interface Change {
  /** A resource type. */
  readonly type: string
  readonly id: string
  /** The Project among whose rows it lies, by number; the registry has one of its own. */
  readonly number: number
  /** Id of the Project that it belongs to. */
  readonly home: string | undefined
}

/** Hears of changes, or of `everything`. */
export type ChangeListener = (changes: readonly Change[] | 'everything') => void

export interface Changes {
  /** Resolves when Redis has passed it on, or cannot: then everything is passed on once it can. */
  report(change: Change): Promise<void>
  follow(hear: ChangeListener): void
  close(): void
}

interface Message {
  readonly origin: string
  readonly changes: readonly Change[] | 'everything'
}

/** Messages of Redis reach all of its numbered databases. */
const channelOf = ({ options: { db = 0 } }: Redis) => `botica:changes:${db}`

/** `redis` publishes. Waits for a connection that listens. Errors: 30 s without Redis. */
export async function openChanges(config: Config, redis: Redis, log: Logger): Promise<Changes> {
  const origin = randomUUID()
  const listeners: ChangeListener[] = []
  const hear: ChangeListener = (changes) => {
    for (const listener of listeners) listener(changes)
  }
  const subscriber = openRedis(config, 'subscribe', log)
  await untilReady(subscriber, log)
  subscriber.on('message', (_channel, text: string) => {
    // Published by `send` only.
    const message = JSON.parse(text) as Message
    if (message.origin !== origin) hear(message.changes)
  })
  const channel = channelOf(subscriber)
  await subscriber.subscribe(channel)
  // Whatever was published while the connection was away is lost.
  subscriber.on('ready', () => {
    subscriber.subscribe(channel).then(
      () => hear('everything'),
      () => undefined,
    )
  })
  const send = sender(redis, origin)
  return {
    async report(change) {
      hear([change])
      await send(change)
    },
    follow: (listener) => void listeners.push(listener),
    close: () => subscriber.disconnect(),
  }
}

/** Changes that come while a message is on its way go together in the next one. */
function sender(redis: Redis, origin: string): (change: Change) => Promise<void> {
  let waiting: Change[] = []
  let isBehind = false
  let sending: Promise<void> | undefined
  const send = async () => {
    while (waiting.length > 0 || isBehind) {
      const changes = isBehind ? 'everything' : waiting
      waiting = []
      const message: Message = { origin, changes }
      isBehind = await redis.publish(channelOf(redis), JSON.stringify(message)).then(
        () => false,
        () => true,
      )
      if (isBehind) return
    }
  }
  const start = () => {
    sending ??= send().finally(() => {
      sending = undefined
    })
    return sending
  }
  redis.on('ready', () => void (isBehind && start()))
  return (change) => {
    waiting.push(change)
    return start()
  }
}
