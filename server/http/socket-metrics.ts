/** The metrics of web sockets and agents. */
import { Counter, Histogram, type Registry } from 'prom-client'
import { gauges } from '../../shared/core/gauges.ts'

export interface SocketMetrics {
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

const BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 110]

export function createSocketMetrics(registry: Registry): SocketMetrics {
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
    buckets: BUCKETS,
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
