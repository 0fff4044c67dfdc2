/** The common part of the web socket protocols, one per path. */
import type { WebSocket } from 'ws'
import { attempt } from '../../shared/core/errors.ts'

/** https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1 and the registry of close codes */
export const CLOSE = {
  goingAway: 1001,
  policy: 1008,
  internalError: 1011,
  tryAgainLater: 1013,
} as const

export interface OpenedSocket {
  readonly webSocket: WebSocket
  /** The client's address, behind a trusted proxy the one that it saw. */
  readonly address: string
  /** Header `X-Forwarded-For`, as sent. */
  readonly forwardedFor: string | undefined
  /** Header with the client certificate, as the proxy sent it. */
  readonly certificate: string | undefined
  /** Called when the socket has presented a valid token. Without one it is closed. */
  readonly proven: () => void
}

export interface Connection {
  /** Resolves when the socket is closed and its work has ended. */
  readonly closed: Promise<void>
  /** Sends a heartbeat; cuts off a client that did not answer the previous one. Called every 10 s. */
  beat(): void
  close(code: number): void
  terminate(): void
}

export interface SocketProtocol {
  /** Without a leading slash. */
  readonly path: string
  /** Largest message in bytes. */
  readonly mostBytes: number
  /** Time between `close` of the process and the cut of connections that are still open. */
  readonly patienceMs: number
  open(opened: OpenedSocket): Connection
  /** Called after all connections have closed. */
  close(): void
}

/** Returns undefined for text that is not JSON. */
export function parseMessage(text: string): unknown {
  return attempt(() => JSON.parse(text))
}
