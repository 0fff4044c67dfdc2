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
import { gauges, readPssBytes } from '../../shared/core/gauges.ts'
import { NO_PARTS, waitingParts } from '../../shared/export/rows/parts.ts'
import { queueDepths } from '../../shared/jobs/upkeep/upkeep.ts'
import { rawPool } from '../../shared/postgres/pool.ts'
import type { Services } from '../../shared/request/services.ts'
import { requestDepth } from '../../shared/store/write/requests.ts'
import { countDeadLetters, DEAD_KINDS, NO_DEAD } from '../../shared/subscriptions/dead-letters.ts'
import { NO_BACKLOG, readDeliveryBacklog } from '../../shared/subscriptions/deliveries.ts'

interface SocketMetrics {
  /** Registers the gauge of web sockets. */
  watchSockets(read: () => number): void
  /** Registers the gauge of Subscriptions bound to web sockets. */
  watchBindings(read: () => number): void
  /** Registers the gauge of connected agents. */
  watchAgents(read: () => number): void
  message(kind: 'pong' | 'handshake' | 'heartbeat' | 'event-notification' | 'refusal'): void
  /** Counts a message that an agent transmitted, by the status code of its answer. */
  transmitted(status: 200 | 400, seconds: number): void
}

export interface Metrics extends SocketMetrics {
  readonly contentType: string
  /** Metrics of this process, the service and all workers; without Redis, only the first two. */
  text(): Promise<string>
  /** Returns the same metrics as values, without histogram buckets. */
  values(): Promise<readonly MetricValues[]>
  /** Counts a request; `route` is a pattern, never a path with ids. */
  request(method: string, route: string, status: number, seconds: number): void
  /** Registers a gauge per dependency: 1 if available, otherwise 0. */
  watchParts(read: () => Promise<Readonly<Record<string, number>>>): void
}

interface MetricValues {
  readonly name: string
  readonly help: string
  readonly values: readonly { readonly labels: object; readonly value: number }[]
}

type Watched = Pick<Services, 'database' | 'queues' | 'redis' | 'storage' | 'replicas'>

const PSS =
  'Memory of the process in which shared pages count once among their processes; 0 outside Linux'
const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]

export function createMetrics(services: Watched): Metrics {
  // A router may lead the scraper to any web process, so its own metrics carry its name.
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
  gauges(registry)('process_pss_bytes', PSS, [], () => readPssBytes() ?? 0)
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
    ...createSocketMetrics(registry),
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
    watchParts: (read) => watchParts(registry, read),
  }
}

function watchDatabase(registry: Registry, { database }: Watched): void {
  const gauge = gauges(registry)
  gauge('database_pool_connections', 'Connections of the pool by state', ['state'], () => {
    const { pool } = rawPool(database.knex)
    return [
      [{ state: 'used' }, pool?.numUsed() ?? 0],
      [{ state: 'free' }, pool?.numFree() ?? 0],
      [{ state: 'waiting' }, pool?.numPendingAcquires() ?? 0],
    ]
  })
  gauge(
    'database_statements_total',
    'Statements sent since the process started',
    [],
    () => database.statements,
  )
}

function watchCaches(registry: Registry): void {
  const gauge = gauges(registry)
  gauge('cache_entries', 'Entries of each cache', ['cache'], () =>
    cacheStats().map(({ name, entries }) => [{ cache: name }, entries]),
  )
  gauge(
    'cache_lookups_total',
    'Lookups in each cache by result since the process started',
    ['cache', 'result'],
    () =>
      cacheStats().flatMap(({ name, hits, misses }) => [
        [{ cache: name, result: 'hit' }, hits] as const,
        [{ cache: name, result: 'miss' }, misses] as const,
      ]),
  )
}

function watchReplicas(registry: Registry, replicas: Services['replicas']): void {
  if (replicas === undefined) return
  const gauge = gauges(registry)
  gauge('database_replica_lag_seconds', 'Replication lag of each read replica', ['replica'], () =>
    [...replicas.lags()].map(([replica, seconds]) => [{ replica }, seconds]),
  )
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

function watchQueues(registry: Registry, { queues, database }: Watched): void {
  const gauge = gauges(registry)
  gauge('queue_jobs', 'Jobs by queue and state', ['queue', 'state'], async () => {
    const depths = await queues.depths().catch(() => ({}))
    const requests = await requestDepth(database).catch(() => undefined)
    const { waiting = 0, active = 0 } = requests ?? {}
    const all = { ...depths, ...(requests && { requests: { waiting, active } }) }
    return Object.entries(all).flatMap(([queue, states]) =>
      Object.entries(states).map(([state, count]) => [{ queue, state }, count] as const),
    )
  })
  gauge(
    'queue_oldest_seconds',
    'How long the longest waiting job of each queue waits',
    ['queue'],
    async () => {
      const since = await queues.waitingSince().catch(() => ({}))
      const { oldestMs = null } = (await requestDepth(database).catch(() => undefined)) ?? {}
      const oldest = Object.entries(since).map(
        ([queue, at]) => [{ queue }, Math.max(0, Date.now() - at) / 1000] as const,
      )
      return oldestMs === null ? oldest : [...oldest, [{ queue: 'requests' }, oldestMs / 1000]]
    },
  )
  gauge(
    'redis_round_trip_seconds',
    'Time of one PING; 0 while Redis is unavailable',
    [],
    async () => {
      return (await queues.ping().catch(() => 0)) / 1000
    },
  )
}

function watchExports(registry: Registry, { database }: Watched): void {
  const gauge = gauges(registry)
  const read = () => waitingParts(database).catch(() => NO_PARTS)
  gauge('export_parts', 'Unfinished parts of exports by state', ['state'], async () => {
    const { waiting, active } = await read()
    return [
      [{ state: 'waiting' }, waiting],
      [{ state: 'active' }, active],
    ]
  })
  gauge('export_oldest_seconds', 'Age of the oldest unfinished export', [], async () => {
    return (await read()).oldestSeconds
  })
}

function watchParts(
  registry: Registry,
  read: () => Promise<Readonly<Record<string, number>>>,
): void {
  const gauge = gauges(registry)
  gauge('service_up', '1 if the dependency is available, otherwise 0', ['part'], async () =>
    Object.entries(await read()).map(([part, up]) => [{ part }, up]),
  )
}

/** Projects above this number share one label, which bounds the text. */
const MOST_PROJECTS = 500
const OTHERS = 'other'

interface Depth {
  readonly queue: string
  readonly project: string
  readonly states: Readonly<Record<string, number>>
  readonly oldestSeconds: number
}

/** Counts a bot's runs, waiting or running, as `flight`. */
function watchProjects(registry: Registry, services: Watched): void {
  const oldest = new Gauge({
    name: 'queue_project_oldest_seconds',
    help: 'How long the longest waiting job of a Project waits',
    labelNames: ['queue', 'project'],
    registers: [registry],
  })
  const gauge = gauges(registry)
  gauge(
    'queue_project_jobs',
    'Jobs of a Project by queue and state',
    ['queue', 'project', 'state'],
    async () => {
      const depths = shortened(await readDepths(services).catch(() => []))
      oldest.reset()
      for (const { queue, project, oldestSeconds } of depths) {
        if (oldestSeconds > 0) oldest.set({ queue, project }, oldestSeconds)
      }
      return depths.flatMap(({ queue, project, states }) =>
        Object.entries(states).flatMap(([state, count]) =>
          count > 0 ? [[{ queue, project, state }, count] as const] : [],
        ),
      )
    },
  )
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

/** Registers the gauges; returns the function that reads three of them in one statement before each scrape. */
function watchEvents(
  registry: Registry,
  { database }: Pick<Services, 'database'>,
): () => Promise<void> {
  const gauge = gauges(registry)
  gauge(
    'dead_letters',
    'Deliveries and runs whose attempts have ended in failure, until they are replayed or discarded',
    ['kind'],
    async () => {
      const counts = await countDeadLetters(database).catch(() => NO_DEAD)
      return DEAD_KINDS.map((kind) => [{ kind }, counts[kind]])
    },
  )
  let backlog = NO_BACKLOG
  gauge(
    'event_deliveries_waiting',
    'Events waiting for delivery to Subscriptions',
    [],
    () => backlog.waiting,
  )
  gauge(
    'event_oldest_seconds',
    'Age of the oldest event without a delivery attempt',
    [],
    () => backlog.oldestSeconds,
  )
  gauge(
    'event_circuits_open',
    'Subscriptions whose deliveries are paused',
    [],
    () => backlog.paused,
  )
  return async () => {
    backlog = await readDeliveryBacklog(database).catch(() => NO_BACKLOG)
  }
}

const AGENT_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 110]

function createSocketMetrics(registry: Registry): SocketMetrics {
  const registers = [registry]
  const messages = new Counter({
    name: 'socket_messages_total',
    help: 'Messages to web sockets',
    labelNames: ['kind'],
    registers,
  })
  const transmitted = new Histogram({
    name: 'agent_message_duration_seconds',
    help: 'Time from a message of an agent to its answer',
    labelNames: ['status'],
    buckets: AGENT_BUCKETS,
    registers,
  })
  const gauge = gauges(registry)
  return {
    watchSockets: (read) => gauge('sockets_open', 'Open web sockets', [], read),
    watchBindings: (read) =>
      gauge('socket_bindings', 'Subscriptions bound to web sockets', [], read),
    watchAgents: (read) => gauge('agents_connected', 'Connected agents', [], read),
    message: (kind) => messages.inc({ kind }),
    transmitted: (status, seconds) => transmitted.observe({ status }, seconds),
  }
}
