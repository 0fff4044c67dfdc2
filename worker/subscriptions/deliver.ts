/** Matches changes with Subscriptions, leases pending deliveries, makes them, and settles attempts in PostgreSQL. */

import { setTimeout as delay } from 'node:timers/promises'
import { resolveAuthorSession } from '../../shared/bots/bot.ts'
import { isUnavailable } from '../../shared/core/errors.ts'
import { nextTurn } from '../../shared/core/yielding.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { backoffMs, type Loop, startLoop } from '../../shared/jobs/loop.ts'
import { deleteLeased, renewLeases } from '../../shared/postgres/leases.ts'
import { listenForWakes } from '../../shared/redis/wakes.ts'
import type { Services } from '../../shared/request/services.ts'
import {
  DELIVERIES,
  type Delivery,
  deliveryLease,
  releaseDelivery,
  retryDelivery,
} from '../../shared/subscriptions/deliveries.ts'
import { leaseDue, type MatchOptions, matchEvents } from '../../shared/subscriptions/events.ts'
import { deliveryFailed, deliveryOrphaned, type Receipt } from '../../shared/subscriptions/state.ts'
import { addHeartbeats } from '../../shared/subscriptions/store-topic-events.ts'
import type { Runner } from '../bots/runner.ts'
import { type Attempted, attemptDelivery, endOverdue, endSubscription } from './attempt.ts'
import { auditAttempt, createReportedAlone, type EventMetrics, reportSuccesses } from './audit.ts'
import { createPaceReader } from './pace.ts'
import type { SocketHooks } from './sockets.ts'

/** Concurrent external deliveries. */
const HOOKS = 100
const SWEEP_MS = 1000
const FIRST_DELAY_MS = 1000
const JITTER = 0.2
const MOST_FAULTS = 19
const FAULT_DELAY_MS = 1000
const LONGEST_FAULT_DELAY_MS = 60_000
const AWAY_MS = 1000
/** For the handshake of an author without an active membership. */
const ASK_AGAIN_MS = 5000
const LONGEST_ASK_MS = 24 * 3_600_000

class Deliverer {
  readonly #services: Services
  readonly #runner: Runner
  readonly #metrics: EventMetrics
  readonly #active = new Map<string, Promise<void>>()
  readonly #held = new Map<string, Delivery>()
  readonly #receipts = createReceipts()
  readonly #isReportedAlone = createReportedAlone()
  readonly #stopping = new AbortController()
  readonly #underWay = { hooks: 0, bots: 0 }
  readonly #loop: Loop
  readonly #holding: Loop
  #isClosing = false

  constructor(services: Services, runner: Runner, metrics: EventMetrics) {
    this.#services = services
    this.#runner = runner
    this.#metrics = metrics
    const { log, database } = services
    this.#loop = startLoop(
      { log, name: 'The take of deliveries', everyMs: SWEEP_MS, level: 'error' },
      () => this.#take(),
    )
    this.#holding = startLoop(
      { log, name: 'The lease of deliveries', everyMs: DELIVERIES.leaseMs / 3, level: 'error' },
      async () => {
        const leases = [...this.#held.values()].map(deliveryLease)
        await renewLeases(database, DELIVERIES, leases)
        return false
      },
    )
  }

  /** Wakes the loop: something may be due. */
  wake(): void {
    this.#loop.wake()
  }

  /** Stops taking work; current work has `graceMs` and is then released. */
  async stop(graceMs: number): Promise<void> {
    this.#isClosing = true
    const all = Promise.all(this.#active.values())
    await Promise.race([all, new Promise((resolve) => setTimeout(resolve, graceMs).unref())])
    this.#stopping.abort()
    await all
    await Promise.all([this.#loop.stop(), this.#holding.stop()])
  }

  async #take(): Promise<boolean> {
    const { repository, config } = this.#services
    // Batches attempts that end in one turn of the event loop.
    await nextTurn()
    const { hooks, bots } = this.#underWay
    const room = this.#isClosing
      ? { hooks: 0, bots: 0 }
      : { hooks: HOOKS - hooks, bots: config.workerConcurrency - bots }
    const taken = await this.#receipts.settle(
      (received) => repository.withStore((store) => leaseDue(store, room, received)),
      this.#isClosing,
    )
    for (const delivery of taken) this.#start(delivery)
    return false
  }

  #start(delivery: Delivery): void {
    const key = `${delivery.id}/${delivery.token}`
    const done = this.#deliver(delivery)
      .catch((error: unknown) => this.#report(error, 'A delivery could not be settled'))
      .finally(() => {
        this.#active.delete(key)
        this.#held.delete(key)
      })
    this.#active.set(key, done)
    this.#held.set(key, delivery)
  }

  async #deliver(delivery: Delivery): Promise<void> {
    const startedAt = new Date()
    const room = delivery.target.startsWith('Bot/') ? 'bots' : 'hooks'
    this.#underWay[room]++
    const attempted = await attemptDelivery(
      this.#services,
      this.#runner,
      delivery,
      this.#stopping.signal,
    ).catch((error: unknown): Attempted => {
      this.#report(error, 'An event could not be delivered', delivery)
      const text = error instanceof Error ? error.message : 'fault'
      return {
        sent: { kind: 'fault', text },
        subscription: undefined,
        terms: undefined,
        reference: '',
      }
    })
    this.#underWay[room]--
    this.#metrics.attempted(delivery, attempted.sent, startedAt)
    await this.#insist(() => this.#settle(delivery, attempted, startedAt))
    // The take itself settles receipts.
    if (attempted.sent.kind !== 'received') this.#loop.wake()
  }

  /** Retries while PostgreSQL is unavailable. */
  async #insist(settle: () => Promise<void>): Promise<void> {
    try {
      await settle()
    } catch (error) {
      if (!isUnavailable(error) || this.#isClosing) throw error
      await delay(AWAY_MS)
      await this.#insist(settle)
    }
  }

  async #settle(delivery: Delivery, attempted: Attempted, startedAt: Date): Promise<void> {
    const { sent, terms } = attempted
    const { id, token } = delivery
    const { database } = this.#services
    const isStopping = this.#stopping.signal.aborted && sent.kind === 'failed'
    if (sent.kind === 'back' || isStopping) {
      await releaseDelivery(database, delivery, sent.kind === 'back' ? sent.delayMs : 0)
      return
    }
    const isStored = terms?.audit.has('resource') !== false
    const unreported = sent.kind === 'received' && isStored && !this.#isReportedAlone(delivery)
    // Heartbeats would fill the Project with AuditEvents.
    const isBeat = delivery.notice === 'heartbeat' && sent.kind === 'received'
    if (!unreported && !isBeat) await audit(this.#services, delivery, attempted, startedAt)
    switch (sent.kind) {
      case 'received': {
        const settled = this.#receipts.add({ id, token, unreported: unreported && !isBeat })
        this.#loop.wake()
        return settled
      }
      case 'stopped':
        return afterStop(this.#services, delivery, attempted)
      case 'fault':
        return afterFault(this.#services, delivery, sent.text)
      case 'failed': {
        if (delivery.notice === 'heartbeat' || delivery.attempt >= (terms?.attempts ?? 1)) {
          return afterLast(this.#services, delivery, attempted, sent.text)
        }
        const delayMs = sent.after ?? delayAfter(delivery.attempt)
        await retryDelivery(database, delivery, { delayMs, error: sent.text, fault: false })
        return this.#loop.wakeIn(delayMs)
      }
      default:
        return sent satisfies never
    }
  }

  #report(error: unknown, text: string, delivery?: Delivery): void {
    this.#services.log[isUnavailable(error) ? 'debug' : 'error'](
      { cause: error, delivery: delivery?.id },
      text,
    )
  }
}

async function afterLast(
  services: Services,
  delivery: Delivery,
  attempted: Attempted,
  text: string,
) {
  if (delivery.notice !== undefined) return await afterNotice(services, delivery, attempted, text)
  const isDead = await deliveryFailed(services.database, delivery, text)
  if (!isDead || attempted.subscription === undefined) return
  await endSubscription(services, attempted.subscription, {
    status: 'error',
    error: `Every delivery has failed for three days, the last one: ${text}`,
  })
}

/** A failed notice does not become a dead letter: only its Subscription could send it again. */
async function afterNotice(
  services: Services,
  delivery: Delivery,
  { subscription }: Attempted,
  text: string,
): Promise<void> {
  if (delivery.notice === 'handshake' && subscription !== undefined) {
    const error = `The receiver did not accept the handshake: ${text}`
    await endSubscription(services, subscription, { status: 'error', error, from: 'requested' })
  }
  await deleteLeased(services.database, DELIVERIES, deliveryLease(delivery))
}

async function afterStop(
  services: Services,
  delivery: Delivery,
  { sent, subscription }: Attempted,
): Promise<void> {
  if (sent.kind !== 'stopped' || sent.reason !== 'author' || subscription === undefined) {
    await deleteLeased(services.database, DELIVERIES, deliveryLease(delivery))
    return
  }
  if (delivery.notice === 'handshake') return askLater(services, delivery, subscription)
  if (!(await deliveryOrphaned(services.database, delivery))) return
  await endSubscription(services, subscription, {
    status: 'error',
    error: 'Its author has had no active membership for a day',
  })
}

/** Without its handshake the Subscription would stay `requested`. */
async function askLater(services: Services, delivery: Delivery, subscription: Resource) {
  const age = waitedMs(delivery)
  if (age < LONGEST_ASK_MS) {
    await releaseDelivery(services.database, delivery, Math.max(ASK_AGAIN_MS, age / 10))
    return
  }
  const error = 'Its author has had no active membership for a day'
  await endSubscription(services, subscription, { status: 'error', error, from: 'requested' })
  await deleteLeased(services.database, DELIVERIES, deliveryLease(delivery))
}

const waitedMs = ({ since }: Delivery) => Date.now() - since.getTime()

async function afterFault(services: Services, delivery: Delivery, text: string): Promise<void> {
  const { faults, notice } = delivery
  const asksAgain = notice === 'handshake' && waitedMs(delivery) < LONGEST_ASK_MS
  if (faults >= MOST_FAULTS && !asksAgain) {
    await deliveryFailed(services.database, delivery, text)
    return
  }
  const delayMs = backoffMs(faults + 1, FAULT_DELAY_MS, LONGEST_FAULT_DELAY_MS)
  await retryDelivery(services.database, delivery, { delayMs, error: text, fault: true })
}

async function audit(
  services: Services,
  delivery: Delivery,
  attempted: Attempted,
  startedAt: Date,
): Promise<void> {
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
    destinations: terms?.audit ?? new Set(['resource']),
  })
}

/** 1, 2, 4 … s, ±20 %. */
function delayAfter(attempts: number): number {
  const jitter = 1 - JITTER + Math.random() * 2 * JITTER
  return backoffMs(attempts, FIRST_DELAY_MS) * jitter
}

interface Receipts {
  add(receipt: Receipt): Promise<void>
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

// Events in the worker: matching and delivery

const END_MS = 5000
const BATCH = 100

export async function startEvents(
  services: Services,
  runner: Runner,
  metrics: EventMetrics,
  hooks: SocketHooks,
): Promise<{ stop(graceMs: number): Promise<void> }> {
  const { repository, bus, log } = services
  const deliveries = new Deliverer(services, runner, metrics)
  const options: MatchOptions = {
    ...hooks,
    author: async (subscription, project) =>
      (await resolveAuthorSession(services, subscription, project))?.principal,
    pace: createPaceReader(services),
    skipped(subscription, error) {
      const reason = error instanceof Error ? error.message : 'unknown'
      metrics.skipped()
      log.warn({ subscription, reason }, 'A Subscription could not be matched')
    },
    compared(subscription, { type, id, ver, change, cause }, isPending) {
      const { requestId, traceId } = cause
      const about = { subscription, resource: `${type}/${id}`, version: ver, interaction: change }
      log.info({ ...about, isPending, requestId, traceId }, 'A Subscription was matched')
    },
  }
  const matching = startLoop(
    { log, name: 'The match of changes', everyMs: SWEEP_MS, level: 'error' },
    async () => {
      await hooks.announceGaps()
      const matched = await repository.withStore((store) => matchEvents(store, BATCH, options))
      metrics.matched(matched)
      if (matched.deliveries.length > 0) deliveries.wake()
      return matched.hasMore
    },
  )
  const ending = startLoop(
    { log, name: 'The end of Subscriptions', everyMs: END_MS, level: 'debug' },
    async () => {
      const beats = addHeartbeats(services.database)
      await Promise.all([endOverdue(services), reportSuccesses(services), beats])
      if ((await beats) > 0) deliveries.wake()
      return false
    },
  )
  const listening = await listenForWakes(bus, 'change', matching.wake)
  return {
    async stop(graceMs) {
      listening.close()
      await Promise.all([matching.stop(), ending.stop()])
      await deliveries.stop(graceMs)
    },
  }
}
