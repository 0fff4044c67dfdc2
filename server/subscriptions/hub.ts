/**
 * The bindings of this process: notifications come in from Redis and go out on their sockets, and what
 * is bound is renewed in Redis and PostgreSQL for as long as it is.
 */

import { openRedis } from '../../shared/platform/redis/redis.ts'
import type { Services } from '../../shared/services.ts'
import { renewSubscriptions, socketChannel } from '../../shared/subscriptions/socket-store.ts'
import {
  forgetSocketSubscriptions,
  type SocketNotification,
} from '../../shared/subscriptions/socket-subscriptions.ts'
import { createSocketSubscriptions } from '../../shared/subscriptions/store-socket-subscriptions.ts'
import { type Binding, notificationFor } from './binding.ts'

/** One who is told, until `end`. */
export interface Listener {
  readonly binding: Binding
  send(text: string): void
  /** The binding has ended by itself. */
  end(): void
  /** More waits than the socket takes. */
  overflow(): void
}

export interface Hub {
  readonly bindings: number
  /** Changes from here on are told. Errors: those of Redis and PostgreSQL, and nothing is added. */
  add(listener: Listener): Promise<void>
  /** Ends them, and their Subscriptions where nobody else is bound to them here. */
  remove(listeners: readonly Listener[]): Promise<void>
  close(): Promise<void>
}

const RENEW_MS = 30_000
/** Two renewals may fail. */
const LIVES_MS = 90_000
const MOST_WAITING = 1000

export function openHub(services: Services): Hub {
  const { config, log, redis, repository } = services
  const subscriber = openRedis(config, 'subscribe', log)
  const listeners = new Map<string, Set<Listener>>()
  let bindings = 0

  subscriber.on('message', (channel: string, text: string) => {
    for (const listener of listeners.get(channel) ?? []) {
      if (text === '') listener.end()
      // Written by `publishNotifications`.
      else tell(listener, JSON.parse(text) as SocketNotification)
    }
  })

  function tell(listener: Listener, told: SocketNotification): void {
    const { binding } = listener
    if (binding.waiting >= MOST_WAITING) {
      listener.overflow()
      return
    }
    binding.waiting += 1
    binding.last = binding.last.then(async () => {
      try {
        const text = await notificationFor(services, binding, told)
        if (text === 'ended') listener.end()
        else if (text !== undefined) listener.send(text)
      } catch (error) {
        const reason = error instanceof Error ? error.message : 'unknown'
        log.warn({ subscription: binding.subscription.id, reason }, 'A notification was lost')
      } finally {
        binding.waiting -= 1
      }
    })
  }

  /** True when nobody else here is bound to its Subscription. */
  function drop(listener: Listener): boolean {
    const channel = socketChannel(listener.binding.subscription.id)
    const found = listeners.get(channel)
    if (!found?.delete(listener)) return false
    bindings -= 1
    if (found.size === 0) listeners.delete(channel)
    return found.size === 0
  }

  async function renew(bound: readonly Binding[]): Promise<void> {
    await Promise.all([
      renewSubscriptions(
        redis,
        bound.map(({ subscription }) => subscription),
        LIVES_MS,
      ),
      repository.feature(createSocketSubscriptions).watch(
        bound.map(({ watch }) => watch),
        LIVES_MS,
      ),
    ])
  }

  const timer = setInterval(() => {
    const bound = [...listeners.values()].flatMap(([first]) => first?.binding ?? [])
    // That Redis or PostgreSQL is away is said by their connections.
    renew(bound).catch((error: Error) => {
      log.debug({ reason: error.message }, 'Bindings of web sockets were not renewed')
    })
  }, RENEW_MS)

  return {
    get bindings() {
      return bindings
    },
    async add(listener) {
      const { id } = listener.binding.subscription
      const channel = socketChannel(id)
      const found = listeners.get(channel) ?? new Set()
      listeners.set(channel, found.add(listener))
      bindings += 1
      try {
        // First hear, then be told.
        await subscriber.subscribe(channel)
        await renew([listener.binding])
      } catch (error) {
        drop(listener)
        throw error
      }
    },
    async remove(leaving) {
      const ended = leaving.filter(drop).map(({ binding }) => binding.subscription)
      if (ended.length === 0) return
      await subscriber.unsubscribe(...ended.map(({ id }) => socketChannel(id)))
      await forgetSocketSubscriptions(services, ended)
    },
    async close() {
      clearInterval(timer)
      subscriber.disconnect()
    },
  }
}
