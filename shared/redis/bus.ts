/**
 * Messages between the processes of a service, on one connection of each process that listens. A message reaches those
 * who listen at that moment and nobody else; after a break of the connection listeners learn that some may be lost. Its
 * channel names the number of the database: Redis delivers to the services of all databases.
 */
import type { Config } from '../core/config/config.ts'
import type { Logger } from '../core/log.ts'
import { openRedis, type Redis, untilReady } from './redis.ts'
import { PREFIX } from './script.ts'

/** A kind of message, with the type of its content. One file defines and publishes each kind. */
interface MessageKind<Message> {
  readonly name: string
  /** For the type checker alone. */
  readonly message?: Message
}

export function messageKind<Message>(name: string): MessageKind<Message> {
  return { name }
}

/** Messages with an address reach the listeners of that address alone. */
type Address = string | undefined

export interface Bus {
  /** Resolves when Redis has passed the message on. Errors: those of Redis. */
  publish<Message>(kind: MessageKind<Message>, message: Message, address?: Address): Promise<void>
  /** Resolves when messages are delivered, until `close` of the answer; waits for Redis. */
  listen<Message>(
    kind: MessageKind<Message>,
    hear: (message: Message) => void,
    address?: Address,
  ): Promise<{ close(): Promise<void> }>
  /** Calls `missed` whenever messages may have been lost, once they are delivered again, until `close` of the answer. */
  onGap(missed: () => void): { close(): void }
  /** False while messages are lost. */
  readonly isReady: boolean
  /** The channel of messages, for a script that publishes one as JSON. */
  channel<Message>(kind: MessageKind<Message>, address?: Address): string
  close(): void
}

/** `redis` publishes. Waits for a connection that listens. Errors: 30 s without Redis. */
export async function openBus(config: Config, redis: Redis, log: Logger): Promise<Bus> {
  const subscriber = openRedis(config, 'subscribe', log)
  await untilReady(subscriber, log)
  return createBus(redis, subscriber)
}

type Hear = (message: never) => void

/** Both connections belong to the same database. */
export function createBus(publisher: Redis, subscriber: Redis): Bus {
  const { db = 0 } = publisher.options
  const listeners = new Map<string, Set<Hear>>()
  const gapListeners = new Set<() => void>()
  const channel = ({ name }: MessageKind<unknown>, address: Address) =>
    [PREFIX, db, name, ...(address === undefined ? [] : [address])].join(':')

  subscriber.on('message', (heard: string, text: string) => {
    for (const hear of listeners.get(heard) ?? []) {
      // Published by `publish`, or by a script in its place.
      hear(JSON.parse(text) as never)
    }
  })
  subscriber.on('ready', () => {
    const channels = [...listeners.keys()]
    const subscribed = channels.length === 0 ? undefined : subscriber.subscribe(...channels)
    Promise.resolve(subscribed).then(
      () => {
        for (const missed of gapListeners) missed()
      },
      // The connection broke again, and will be ready again.
      () => undefined,
    )
  })

  return {
    async publish(kind, message, address) {
      await publisher.publish(channel(kind, address), JSON.stringify(message))
    },
    async listen(kind, hear, address) {
      const name = channel(kind, address)
      const known = listeners.get(name) ?? new Set()
      listeners.set(name, known.add(hear as Hear))
      const close = async () => {
        known.delete(hear as Hear)
        if (known.size > 0 || listeners.get(name) !== known) return
        listeners.delete(name)
        await subscriber.unsubscribe(name)
      }
      await subscriber.subscribe(name).catch(async (error: unknown) => {
        await close().catch(() => undefined)
        throw error
      })
      return { close }
    },
    onGap(missed) {
      gapListeners.add(missed)
      return { close: () => void gapListeners.delete(missed) }
    },
    get isReady() {
      return subscriber.status === 'ready'
    },
    channel,
    close: () => subscriber.disconnect(),
  }
}
