/** The Prometheus registry of the web process. https://prometheus.io/docs/instrumenting/exposition_formats/ */

import { hostname } from 'node:os'
import {
  AggregatorRegistry,
  Counter,
  collectDefaultMetrics,
  Gauge,
  Histogram,
  Registry,
} from 'prom-client'
import { readAllLanes } from '../../shared/bots/stats.ts'
import { cacheStats } from '../../shared/core/cache.ts'
import { NO_PARTS, waitingParts } from '../../shared/export/rows/parts.ts'
import { queueDepths } from '../../shared/jobs/upkeep/upkeep.ts'
import type { Services } from '../../shared/request/services.ts'
import { NO_BACKLOG, readDeliveryBacklog } from '../../shared/subscriptions/deliveries.ts'

export interface Metrics {
  readonly contentType: string
  /** This process, the service as a whole, and all workers; without Redis, the first two. */
  text(): Promise<string>
  /** The same as values, without histograms' buckets. */
  values(): Promise<readonly MetricValues[]>
  /** One answered request; `route` is a pattern, never a path with ids. */
  request(method: string, route: string, status: number, seconds: number): void
  /** How many web sockets there are, and what is bound to them. */
  watchSockets(read: () => Readonly<Record<'sockets' | 'bindings', number>>): void
  /** 1 for each part of the service that is there, 0 for one that is away. */
  watchParts(read: () => Promise<Readonly<Record<string, number>>>): void
  /** One message to a web socket. */
  message(kind: 'pong' | 'handshake' | 'heartbeat' | 'event-notification' | 'refusal'): void
}

interface MetricValues {
  readonly name: string
  readonly help: string
  readonly values: readonly { readonly labels: object; readonly value: number }[]
}

type Watched = Pick<Services, 'database' | 'queues' | 'redis' | 'storage' | 'replicas'>

const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]

export function createMetrics(services: Watched): Metrics {
  // A router leads a scraper to any of the web processes: their own counts name the process.
  const registry = new Registry()
  registry.setDefaultLabels({ process: `${hostname()}:${process.pid}` })
  const service = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  const requests = new Counter({
    name: 'http_requests_total',
    help: 'Answered requests',
    labelNames: ['method', 'route', 'status'],
    registers,
  })
  const durations = new Histogram({
    name: 'http_request_duration_seconds',
    help: 'Time from the first byte of a request to the last of its answer',
    labelNames: ['method', 'route'],
    buckets: BUCKETS,
    registers,
  })
  const messages = new Counter({
    name: 'socket_messages_total',
    help: 'Messages to web sockets',
    labelNames: ['kind'],
    registers,
  })
  watchDatabase(registry, services)
  watchCaches(registry)
  watchStorage(registry, services.storage)
  watchReplicas(registry, services.replicas)
  watchQueues(service, services)
  watchProjects(service, services)
  watchExports(service, services)
  const readBacklog = watchEvents(service, services)
  const registries = async () => {
    await readBacklog()
    const published = await services.queues.workerMetrics().catch(() => [])
    const workers = AggregatorRegistry.aggregate(published.map((text) => JSON.parse(text)))
    return [registry, service, workers]
  }
  return {
    contentType: registry.contentType,
    async text() {
      const all = await registries()
      return (await Promise.all(all.map((one) => one.metrics()))).join('\n')
    },
    async values() {
      const all = await registries()
      const found = await Promise.all(all.map((one) => one.getMetricsAsJSON()))
      return found.flat().map(withoutBuckets)
    },
    request(method, route, status, seconds) {
      requests.inc({ method, route, status })
      durations.observe({ method, route }, seconds)
    },
    watchSockets: (read) => watchSockets(registry, read),
    watchParts: (read) => watchParts(registry, read),
    message: (kind) => messages.inc({ kind }),
  }
}

function watchDatabase(registry: Registry, { database }: Watched): void {
  const registers = [registry]
  new Gauge({
    name: 'database_pool_connections',
    help: 'Connections of the pool by state',
    labelNames: ['state'],
    registers,
    collect() {
      const pool: unknown = database.knex.client.pool
      for (const [state, count] of poolStates(pool)) this.set({ state }, count)
    },
  })
  new Gauge({
    name: 'database_statements_total',
    help: 'Statements sent since the process started',
    registers,
    collect() {
      this.set(database.statements)
    },
  })
}

function watchCaches(registry: Registry): void {
  const registers = [registry]
  new Gauge({
    name: 'cache_entries',
    help: 'Entries of each cache',
    labelNames: ['cache'],
    registers,
    collect() {
      for (const { name, entries } of cacheStats()) this.set({ cache: name }, entries)
    },
  })
  new Gauge({
    name: 'cache_lookups_total',
    help: 'Lookups in each cache by result since the process started',
    labelNames: ['cache', 'result'],
    registers,
    collect() {
      for (const { name, hits, misses } of cacheStats()) {
        this.set({ cache: name, result: 'hit' }, hits)
        this.set({ cache: name, result: 'miss' }, misses)
      }
    },
  })
}

function watchReplicas(registry: Registry, replicas: Services['replicas']): void {
  if (replicas === undefined) return
  new Gauge({
    name: 'database_replica_lag_seconds',
    help: 'How long each read replica has been behind what is written',
    labelNames: ['replica'],
    registers: [registry],
    collect() {
      for (const [replica, seconds] of replicas.lags()) this.set({ replica }, seconds)
    },
  })
}

function watchStorage(registry: Registry, storage: Services['storage']): void {
  const registers = [registry]
  new Counter({
    name: 'storage_errors_total',
    help: 'Calls of the storage that have failed',
    registers,
    collect() {
      this.reset()
      this.inc(storage.failures ?? 0)
    },
  })
}

function watchQueues(registry: Registry, { queues }: Watched): void {
  const registers = [registry]
  new Gauge({
    name: 'queue_jobs',
    help: 'Jobs by queue and state',
    labelNames: ['queue', 'state'],
    registers,
    async collect() {
      this.reset()
      const depths = await queues.depths().catch(() => ({}))
      for (const [queue, states] of Object.entries(depths)) {
        for (const [state, count] of Object.entries(states)) this.set({ queue, state }, count)
      }
    },
  })
  new Gauge({
    name: 'queue_oldest_seconds',
    help: 'How long the longest waiting job of each queue waits',
    labelNames: ['queue'],
    registers,
    async collect() {
      this.reset()
      const since = await queues.waitingSince().catch(() => ({}))
      for (const [queue, at] of Object.entries(since)) {
        this.set({ queue }, Math.max(0, Date.now() - at) / 1000)
      }
    },
  })
  new Gauge({
    name: 'redis_round_trip_seconds',
    help: 'Time of one PING; nothing while Redis is away',
    registers,
    async collect() {
      this.reset()
      const ms = await queues.ping().catch(() => undefined)
      if (ms !== undefined) this.set(ms / 1000)
    },
  })
}

function watchExports(registry: Registry, { database }: Watched): void {
  const registers = [registry]
  new Gauge({
    name: 'export_parts',
    help: 'Parts of exports that are to be done, by state',
    labelNames: ['state'],
    registers,
    async collect() {
      this.reset()
      const { waiting, active } = await waitingParts(database).catch(() => NO_PARTS)
      this.set({ state: 'waiting' }, waiting)
      this.set({ state: 'active' }, active)
    },
  })
  new Gauge({
    name: 'export_oldest_seconds',
    help: 'How long the oldest export that has not ended is there',
    registers,
    async collect() {
      const { oldestSeconds } = await waitingParts(database).catch(() => NO_PARTS)
      this.set(oldestSeconds)
    },
  })
}

/** Returns the function that reads the three of them in one statement, before the registry is printed. */
function watchEvents(registry: Registry, { database }: Watched): () => Promise<void> {
  const registers = [registry]
  const waiting = new Gauge({
    name: 'event_deliveries_waiting',
    help: 'Events that are to be delivered to Subscriptions',
    registers,
  })
  const oldest = new Gauge({
    name: 'event_oldest_seconds',
    help: 'Age of the oldest event that nobody has tried to deliver yet',
    registers,
  })
  const paused = new Gauge({
    name: 'event_circuits_open',
    help: 'Subscriptions whose deliveries pause',
    registers,
  })
  return async () => {
    const backlog = await readDeliveryBacklog(database).catch(() => NO_BACKLOG)
    waiting.set(backlog.waiting)
    oldest.set(backlog.oldestSeconds)
    paused.set(backlog.paused)
  }
}

function watchParts(
  registry: Registry,
  read: () => Promise<Readonly<Record<string, number>>>,
): void {
  const registers = [registry]
  new Gauge({
    name: 'service_up',
    help: 'Whether a part that the service stands on is there',
    labelNames: ['part'],
    registers,
    async collect() {
      for (const [part, up] of Object.entries(await read())) this.set({ part }, up)
    },
  })
}

function watchSockets(
  registry: Registry,
  read: () => Readonly<Record<'sockets' | 'bindings', number>>,
): void {
  const registers = [registry]
  new Gauge({
    name: 'sockets_open',
    help: 'Open web sockets',
    registers,
    collect() {
      this.set(read().sockets)
    },
  })
  new Gauge({
    name: 'socket_bindings',
    help: 'Subscriptions bound to web sockets',
    registers,
    collect() {
      this.set(read().bindings)
    },
  })
}

/** knex does not type its pool; these four methods are tarn's. */
function poolStates(pool: unknown): [string, number][] {
  const counts = pool as Record<string, (() => number) | undefined> | undefined
  return [
    ['used', counts?.numUsed?.() ?? 0],
    ['free', counts?.numFree?.() ?? 0],
    ['waiting', counts?.numPendingAcquires?.() ?? 0],
  ]
}

/** Projects beyond this number are counted as one, so that the text stays short. */
const MOST_PROJECTS = 500
const OTHERS = 'other'

interface Depth {
  readonly queue: string
  readonly project: string
  readonly states: Readonly<Record<string, number>>
  readonly oldestSeconds: number
}

/** Bots count their runs as `flight`: waiting or running. */
function watchProjects(registry: Registry, services: Watched): void {
  const registers = [registry]
  const oldest = new Gauge({
    name: 'queue_project_oldest_seconds',
    help: 'How long the longest waiting job of a Project waits',
    labelNames: ['queue', 'project'],
    registers,
  })
  new Gauge({
    name: 'queue_project_jobs',
    help: 'Jobs of a Project by queue and state',
    labelNames: ['queue', 'project', 'state'],
    registers,
    async collect() {
      const depths = await readDepths(services).catch(() => [])
      this.reset()
      oldest.reset()
      for (const { queue, project, states, oldestSeconds } of shortened(depths)) {
        for (const [state, count] of Object.entries(states)) {
          if (count > 0) this.inc({ queue, project, state }, count)
        }
        if (oldestSeconds > 0) oldest.set({ queue, project }, oldestSeconds)
      }
    },
  })
}

async function readDepths(services: Watched): Promise<readonly Depth[]> {
  const [jobs, lanes] = await Promise.all([queueDepths(services.database), readAllLanes(services)])
  return [
    ...jobs.map(({ queue, project, waiting, active, failed, oldestMs }) => ({
      queue,
      project,
      states: { waiting, active, failed },
      oldestSeconds: (oldestMs ?? 0) / 1000,
    })),
    ...lanes.map(({ queue, project, inFlight, oldestWaitingSeconds }) => ({
      queue,
      project,
      states: { flight: inFlight },
      oldestSeconds: oldestWaitingSeconds,
    })),
  ]
}

function shortened(depths: readonly Depth[]): readonly Depth[] {
  const sizes = new Map<string, number>()
  for (const { project, states } of depths) {
    const size = Object.values(states).reduce((sum, count) => sum + count, 0)
    sizes.set(project, (sizes.get(project) ?? 0) + size)
  }
  if (sizes.size <= MOST_PROJECTS) return depths
  const largest = [...sizes].toSorted(([, a], [, b]) => b - a).slice(0, MOST_PROJECTS)
  const named = new Set(largest.map(([project]) => project))
  return depths.map((depth) => (named.has(depth.project) ? depth : { ...depth, project: OTHERS }))
}

type Counted = Awaited<ReturnType<Registry['getMetricsAsJSON']>>[number]

function withoutBuckets({ name, help, values }: Counted) {
  const sums = values.filter(({ labels }) => labels.le === undefined)
  return { name, help, values: sums.map(({ labels, value }) => ({ labels, value })) }
}
