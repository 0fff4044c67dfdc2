/** Takes pending deliveries, makes them, and settles each attempt in PostgreSQL. */

import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises'
import type { Services } from '../../shared/services.ts'
import {
  type Delivery,
  endDeliveries,
  giveBackDelivery,
  holdDeliveries,
  LEASE_MS,
  repeatDelivery,
} from '../../shared/subscriptions/deliveries.ts'
import { createEvents } from '../../shared/subscriptions/events.ts'
import { deliveryFailed, deliveryOrphaned, type Receipt } from '../../shared/subscriptions/state.ts'
import type { Runner } from '../bots/run.ts'
import { backoffMs, isAway, startLoop } from '../loop.ts'
import { type Attempted, attempt } from './attempt.ts'
import { auditAttempt, createReportedAlone } from './audit.ts'
import type { EventMetrics } from './metrics.ts'
import { endSubscription } from './subscription-end.ts'

/** Addresses outside that are waited for at once. */
const HOOKS = 100
const SWEEP_MS = 1000
const FIRST_DELAY_MS = 1000
const JITTER = 0.2
const MOST_FAULTS = 19
const FAULT_DELAY_MS = 1000
const LONGEST_FAULT_DELAY_MS = 60_000
const AWAY_MS = 1000

export interface Deliverer {
  /** Something may be due. */
  wake(): void
  /** Takes no more; what is under way has `graceMs` and is given back. */
  stop(graceMs: number): Promise<void>
}

export function startDeliveries(
  services: Services,
  runner: Runner,
  metrics: EventMetrics,
): Deliverer {
  const { repository, database, log, config } = services
  const active = new Map<string, Promise<void>>()
  const held = new Map<string, Delivery>()
  const receipts = createReceipts()
  const isReportedAlone = createReportedAlone()
  const stopping = new AbortController()
  let isClosing = false
  const underWay = { hooks: 0, bots: 0 }

  const loop = startLoop(
    { log, name: 'The take of deliveries', everyMs: SWEEP_MS, level: 'error' },
    async () => {
      // Attempts that end in one turn of the event loop are settled together.
      await nextTurn()
      const room = isClosing
        ? { hooks: 0, bots: 0 }
        : { hooks: HOOKS - underWay.hooks, bots: config.workerConcurrency - underWay.bots }
      const taken = await receipts.settle(
        (received) => repository.feature(createEvents).take(room, received),
        isClosing,
      )
      for (const delivery of taken) start(delivery)
      return false
    },
  )

  function start(delivery: Delivery): void {
    const key = `${delivery.id}/${delivery.takes}`
    const done = deliver(delivery)
      .catch((error: unknown) => report(error, 'A delivery could not be settled'))
      .finally(() => {
        active.delete(key)
        held.delete(key)
      })
    active.set(key, done)
    held.set(key, delivery)
  }

  async function deliver(delivery: Delivery): Promise<void> {
    const startedAt = new Date()
    const room = delivery.target.startsWith('Bot/') ? 'bots' : 'hooks'
    underWay[room]++
    const attempted = await attempt(services, runner, delivery, stopping.signal).catch(
      (error: unknown): Attempted => {
        report(error, 'An event could not be delivered', delivery)
        const text = error instanceof Error ? error.message : 'fault'
        return {
          sent: { kind: 'fault', text },
          subscription: undefined,
          terms: undefined,
          reference: '',
        }
      },
    )
    underWay[room]--
    metrics.attempted(delivery, attempted.sent, startedAt)
    await insist(() => settle(delivery, attempted, startedAt))
    // The take itself settles what was received.
    if (attempted.sent.kind !== 'received') loop.wake()
  }

  /** How an attempt ended is not forgotten while PostgreSQL is away. */
  async function insist(settle: () => Promise<void>): Promise<void> {
    try {
      await settle()
    } catch (error) {
      if (!isAway(error) || isClosing) throw error
      await delay(AWAY_MS)
      await insist(settle)
    }
  }

  async function settle(delivery: Delivery, attempted: Attempted, startedAt: Date): Promise<void> {
    const { sent, terms } = attempted
    const { id } = delivery
    const isStopping = stopping.signal.aborted && sent.kind === 'failed'
    if (sent.kind === 'back' || isStopping) {
      return giveBackDelivery(database, delivery, sent.kind === 'back' ? sent.delayMs : 0)
    }
    const unreported = sent.kind === 'received' && !isReportedAlone(delivery.subscription)
    if (!unreported) await audit(delivery, attempted, startedAt)
    switch (sent.kind) {
      case 'received': {
        const settled = receipts.add({ id, unreported })
        loop.wake()
        return settled
      }
      case 'stopped':
        return afterStop(delivery, attempted)
      case 'fault':
        return afterFault(delivery, sent.text)
      case 'failed': {
        if (delivery.attempt >= (terms?.attempts ?? 1)) {
          return afterLast(delivery, attempted, sent.text)
        }
        const delayMs = sent.after ?? delayAfter(delivery.attempt)
        await repeatDelivery(database, delivery, delayMs, sent.text, false)
        return loop.wakeIn(delayMs)
      }
      default:
        return sent satisfies never
    }
  }

  async function afterLast(delivery: Delivery, attempted: Attempted, text: string) {
    const isDead = await deliveryFailed(database, delivery, text)
    if (!isDead || attempted.subscription === undefined) return
    await endSubscription(services, attempted.subscription, {
      status: 'error',
      error: `Every delivery has failed for three days, the last one: ${text}`,
    })
  }

  async function afterStop(delivery: Delivery, { sent, subscription }: Attempted): Promise<void> {
    if (sent.kind !== 'stopped' || sent.reason !== 'author' || subscription === undefined) {
      return endDeliveries(database, [delivery.id])
    }
    if (!(await deliveryOrphaned(database, delivery))) return
    await endSubscription(services, subscription, {
      status: 'error',
      error: 'Its author has had no active membership for a day',
    })
  }

  async function afterFault(delivery: Delivery, text: string): Promise<void> {
    const { faults } = delivery
    if (faults >= MOST_FAULTS) {
      await deliveryFailed(database, delivery, text)
      return
    }
    const delayMs = backoffMs(faults + 1, FAULT_DELAY_MS, LONGEST_FAULT_DELAY_MS)
    await repeatDelivery(database, delivery, delayMs, text, true)
  }

  async function audit(delivery: Delivery, attempted: Attempted, startedAt: Date): Promise<void> {
    const { sent, subscription, reference, terms } = attempted
    if (subscription === undefined || sent.kind === 'back' || sent.kind === 'fault') return
    if (sent.kind === 'stopped' && sent.text === undefined) return
    const isLast = delivery.attempt >= (terms?.attempts ?? 1)
    const isDropped = sent.kind === 'stopped' || isLast
    await auditAttempt(services, {
      subscription,
      reference,
      outcome: sent.kind === 'received' ? '0' : isDropped ? '8' : '4',
      text:
        sent.kind === 'stopped'
          ? (sent.text ?? '')
          : `Attempt ${delivery.attempt} received ${sent.text}`,
      startedAt,
      cause: delivery.cause,
    })
  }

  function report(error: unknown, text: string, delivery?: Delivery): void {
    log[isAway(error) ? 'debug' : 'error']({ cause: error, delivery: delivery?.id }, text)
  }

  const holding = startLoop(
    { log, name: 'The lease of deliveries', everyMs: LEASE_MS / 3, level: 'error' },
    async () => {
      await holdDeliveries(database, [...held.values()])
      return false
    },
  )

  return {
    wake: loop.wake,
    async stop(graceMs) {
      isClosing = true
      const all = Promise.all(active.values())
      await Promise.race([all, new Promise((resolve) => setTimeout(resolve, graceMs).unref())])
      stopping.abort()
      await all
      await Promise.all([loop.stop(), holding.stop()])
    },
  }
}

/** 1, 2, 4 … s, give or take a fifth. */
function delayAfter(attempts: number): number {
  const jitter = 1 - JITTER + Math.random() * 2 * JITTER
  return backoffMs(attempts, FIRST_DELAY_MS) * jitter
}

interface Receipts {
  /** Resolves when PostgreSQL knows. */
  add(receipt: Receipt): Promise<void>
  /** Hands all that wait to `settle`. Where that fails they wait on, or fail too when it `isLast`. */
  settle<T>(settle: (receipts: readonly Receipt[]) => Promise<T>, isLast: boolean): Promise<T>
}

interface Waiting {
  readonly receipt: Receipt
  readonly resolve: () => void
  readonly reject: (error: unknown) => void
}

function createReceipts(): Receipts {
  let queue: Waiting[] = []
  return {
    add: (receipt) =>
      new Promise((resolve, reject) => {
        queue.push({ receipt, resolve, reject })
      }),
    async settle(settle, isLast) {
      const batch = queue
      queue = []
      try {
        const result = await settle(batch.map(({ receipt }) => receipt))
        for (const { resolve } of batch) resolve()
        return result
      } catch (error) {
        if (!isLast) queue = [...batch, ...queue]
        else for (const { reject } of batch) reject(error)
        throw error
      }
    },
  }
}
