/**
 * Pub/sub between processes, delivered at most once; listeners learn of possible gaps after a reconnect. Channel names
 * include the database number, since Redis publishes across databases.
 */
import type { Config } from '../core/config/config.ts'
import { timings } from '../core/config/waits.ts'
import type { Logger } from '../core/log.ts'
import { openRedis, type Redis, untilReady } from './redis.ts'
import { PREFIX } from './script.ts'

/** A message kind and its content type. One file defines and publishes each kind. */
interface MessageKind<Message> {
  readonly name: string
  /** Type-level only. */
  readonly message?: Message
}

export function messageKind<Message>(name: string): MessageKind<Message> {
  return { name }
}

type Address = string | undefined

export interface Bus {
  /** Resolves with the number of listening processes. Errors: those of Redis. */
  publish<Message>(kind: MessageKind<Message>, message: Message, address?: Address): Promise<number>
  /** Resolves when subscribed; waits for Redis. `close` ends the subscription. */
  listen<Message>(
    kind: MessageKind<Message>,
    listener: (message: Message) => void,
    address?: Address,
  ): Promise<{ close(): Promise<void> }>
  /** Calls `missed` after each possible gap, once delivery works again, until `close`. */
  onGap(missed: () => void): { close(): void }
  readonly isReady: boolean
  /** The channel name for scripts that publish a message as JSON. */
  channel<Message>(kind: MessageKind<Message>, address?: Address): string
  close(): void
}

/** `redis` publishes. Waits for the subscriber connection. Errors: 30 s without Redis. */
export async function openBus(config: Config, redis: Redis, log: Logger): Promise<Bus> {
  const subscriber = openRedis(config, 'subscribe', log)
  await untilReady(subscriber, log)
  return createBus(redis, subscriber)
}

type Listener = (message: never) => void

/** Both connections must use the same database. */
export function createBus(publisher: Redis, subscriber: Redis): Bus {
  const { db = 0 } = publisher.options
  const listeners = new Map<string, Set<Listener>>()
  const gapListeners = new Set<() => void>()
  const channel = ({ name }: MessageKind<unknown>, address: Address) =>
    [PREFIX, db, name, ...(address === undefined ? [] : [address])].join(':')

  subscriber.on('message', (channelName: string, text: string) => {
    for (const listener of listeners.get(channelName) ?? []) {
      // Published by `publish` or by an equivalent script.
      listener(JSON.parse(text) as never)
    }
  })
  subscriber.on('ready', () => {
    const channels = [...listeners.keys()]
    const subscribed = channels.length === 0 ? undefined : subscriber.subscribe(...channels)
    Promise.resolve(subscribed).then(
      () => {
        for (const missed of gapListeners) missed()
      },
      () => undefined,
    )
  })

  const beat = startBeat(subscriber)
  return {
    async publish(kind, message, address) {
      return await publisher.publish(channel(kind, address), JSON.stringify(message))
    },
    async listen(kind, listener, address) {
      const name = channel(kind, address)
      const known = listeners.get(name) ?? new Set()
      listeners.set(name, known.add(listener as Listener))
      const close = async () => {
        known.delete(listener as Listener)
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
    close() {
      clearInterval(beat)
      subscriber.disconnect()
    },
  }
}

/** A dead connection is only detected while it waits for a reply, and a subscriber sends no other command. */
function startBeat(subscriber: Redis): NodeJS.Timeout {
  const ping = () => {
    if (subscriber.status === 'ready') subscriber.ping().catch(() => undefined)
  }
  return setInterval(ping, timings.redisSilenceMs / 2).unref()
}
