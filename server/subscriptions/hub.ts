/**
 * The bindings of this process: forwards notifications from Redis to their sockets, and renews the bindings in Redis
 * and PostgreSQL while they last.
 */

import type { Services } from '../../shared/request/services.ts'
import {
  forgetSocketSubscriptions,
  SOCKET_MESSAGES,
  type SocketMessage,
  type SocketNotification,
  type SocketSubscription,
} from '../../shared/subscriptions/socket-subscriptions.ts'
import {
  heldTexts,
  renewSubscriptions,
  watch,
} from '../../shared/subscriptions/store-socket-subscriptions.ts'
import { CLOSE } from '../http/web-sockets.ts'
import { type Binding, notificationFor } from './binding.ts'

export interface Listener {
  readonly binding: Binding
  send(text: string): void
  /** The Subscription or the login has ended; `code` closes a socket without other bindings. */
  end(code: number): void
  /** The socket is too slow, or notifications may have been lost. */
  overflow(): void
}

interface Bound {
  readonly listeners: Set<Listener>
  readonly listening: Promise<{ close(): Promise<void> }>
}

const RENEW_MS = 30_000
/** Tolerates two failed renewals. */
const LIVES_MS = 90_000
const MOST_WAITING = 1000

export class Hub {
  #bindings = 0
  #hasGap = false
  /** Milliseconds of this process. */
  #renewedAt = performance.now()
  readonly #services: Services
  readonly #bound = new Map<string, Bound>()
  readonly #gaps: { close(): void }
  readonly #timer: NodeJS.Timeout

  constructor(services: Services) {
    this.#services = services
    // Redis does not keep messages published during a gap.
    this.#gaps = services.bus.onGap(() => this.#overflowAll())
    this.#timer = setInterval(() => this.#renewAll(), RENEW_MS)
  }

  get bindings(): number {
    return this.#bindings
  }

  /**
   * Adds a listener, which gets all later changes. Returns false for a Subscription deleted meanwhile. Errors: those of
   * Redis and PostgreSQL. In both cases nothing is added.
   */
  async add(listener: Listener): Promise<boolean> {
    const { id, text } = listener.binding.subscription
    const bound = this.#bound.get(id) ?? this.#listen(id)
    bound.listeners.add(listener)
    this.#bindings += 1
    try {
      // Listening starts before the registration, so that no notification is lost in between.
      await bound.listening
      // The message of an earlier deletion was missed, and a renewal would restore the Subscription.
      const [held] = await heldTexts(this.#services.redis, [id])
      if (held !== text) {
        await this.#drop(listener)
        return false
      }
      await this.#renew([listener.binding])
      return true
    } catch (error) {
      await this.#drop(listener)
      throw error
    }
  }

  /**
   * Removes the listeners, and the Subscriptions that no socket of any process is bound to. A socket bound after the
   * count is closed, so that its client creates the Subscription again.
   */
  async remove(leaving: readonly Listener[]): Promise<void> {
    const ended: SocketSubscription[] = []
    await Promise.all(
      leaving.map(async (listener) => {
        const closed = this.#drop(listener)
        if (closed === undefined) return
        await closed
        const { subscription } = listener.binding
        const others = await this.#services.bus.publish(SOCKET_MESSAGES, 'left', subscription.id)
        if (others === 0) ended.push(subscription)
      }),
    )
    if (ended.length > 0) await forgetSocketSubscriptions(this.#services, ended, 'gap')
  }

  close(): void {
    clearInterval(this.#timer)
    this.#gaps.close()
  }

  #listen(id: string): Bound {
    const listeners = new Set<Listener>()
    const forward = (message: SocketMessage) => {
      if (message === 'left') return
      for (const listener of listeners) {
        if (message === 'end') listener.end(CLOSE.tryAgainLater)
        else if (message === 'gap') listener.overflow()
        else this.#notify(listener, message)
      }
    }
    const bound = {
      listeners,
      listening: this.#services.bus.listen(SOCKET_MESSAGES, forward, id),
    }
    this.#bound.set(id, bound)
    return bound
  }

  /** Closes all sockets; clients bind again and request missed notifications. */
  #overflowAll(): void {
    this.#hasGap = false
    for (const { listeners } of this.#bound.values()) {
      for (const listener of listeners) listener.overflow()
    }
  }

  #notify(listener: Listener, notification: SocketNotification): void {
    const { binding } = listener
    if (binding.waiting >= MOST_WAITING) {
      listener.overflow()
      return
    }
    binding.waiting += 1
    binding.last = binding.last.then(async () => {
      try {
        const text = await notificationFor(this.#services, binding, notification)
        if (text === 'ended') listener.end(CLOSE.policy)
        else if (text !== undefined) listener.send(text)
      } catch (error) {
        const reason = error instanceof Error ? error.message : 'unknown'
        const subscription = binding.subscription.id
        this.#services.log.warn({ subscription, reason }, 'A notification was lost')
        listener.overflow()
      } finally {
        binding.waiting -= 1
      }
    })
  }

  /** Removes a listener. The last one here of its Subscription ends the listening to Redis. */
  #drop(listener: Listener): Promise<void> | undefined {
    const { id } = listener.binding.subscription
    const bound = this.#bound.get(id)
    if (!bound?.listeners.delete(listener)) return undefined
    this.#bindings -= 1
    if (bound.listeners.size > 0) return undefined
    this.#bound.delete(id)
    return bound.listening.then((listening) => listening.close()).catch(() => undefined)
  }

  /** Workers ignore bindings not renewed in time. */
  #renewAll(): void {
    const startedAt = performance.now()
    if (startedAt - this.#renewedAt > LIVES_MS) this.#hasGap = true
    const bound = [...this.#bound.values()].flatMap(
      ({ listeners: [first] }) => first?.binding ?? [],
    )
    // The connections log outages of Redis and PostgreSQL.
    this.#renew(bound)
      .then(() => {
        this.#renewedAt = startedAt
        if (this.#hasGap && this.#services.bus.isReady) this.#overflowAll()
      })
      .catch((error: Error) => {
        const { log } = this.#services
        log.debug({ reason: error.message }, 'Bindings of web sockets were not renewed')
      })
  }

  async #renew(bound: readonly Binding[]): Promise<void> {
    const { redis, repository } = this.#services
    const subscriptions = bound.map(({ subscription }) => subscription)
    const watches = bound.map(({ watch }) => watch)
    await Promise.all([
      renewSubscriptions(redis, subscriptions, LIVES_MS),
      repository.withStore(({ connection }) => watch(connection, watches, LIVES_MS)),
    ])
  }
}
