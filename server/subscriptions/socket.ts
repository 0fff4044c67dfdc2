/** One web socket of a client: what it says, and what it is bound to. */

import type { WebSocket } from 'ws'
import type { Services } from '../../shared/services.ts'
import { createSocketSubscriptions } from '../../shared/subscriptions/store-socket-subscriptions.ts'
import type { Metrics } from '../metrics.ts'
import { bind } from './binding.ts'
import type { Hub, Listener } from './hub.ts'
import { handshake, heartbeat, PONG, readMessage, refusal } from './messages.ts'

const MOST_BINDINGS = 100
const MOST_MALFORMED = 20
/** Messages that are not answered yet. */
const MOST_WAITING = 200
const MOST_BUFFERED = 4 * 1024 * 1024
const BAD_TOKEN = 'Token failed to validate. Check token expiry.'

/** https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1 and the registry of close codes */
export const CLOSE = { goingAway: 1001, policy: 1008, tryAgainLater: 1013 } as const

export interface SocketOptions {
  readonly services: Services
  readonly metrics: Metrics
  readonly hub: Hub
  readonly webSocket: WebSocket
  /** Of the client. */
  readonly address: string
  /** Called when a token has bound the socket. */
  readonly proven: () => void
}

export interface Socket {
  /** Tells that all is well; a client that does not answer at all is given up at the next one. */
  beat(): void
  close(code: number): void
  terminate(): void
  /** Resolves when it is closed and nothing is left of it. */
  readonly closed: Promise<void>
}

export function createSocket({
  services,
  metrics,
  hub,
  webSocket,
  address,
  proven,
}: SocketOptions): Socket {
  const { log, tokens } = services
  const bound = new Map<string, Listener>()
  let malformed = 0
  let isAnswering = true
  let waiting = 0
  let working = Promise.resolve()

  const send = (kind: Parameters<Metrics['message']>[0], text: string) => {
    if (webSocket.readyState !== webSocket.OPEN) return
    webSocket.send(text)
    metrics.message(kind)
    if (webSocket.bufferedAmount > MOST_BUFFERED) webSocket.close(CLOSE.tryAgainLater)
  }

  async function unbind(id: string): Promise<void> {
    const listener = bound.get(id)
    if (listener === undefined) return
    bound.delete(id)
    await hub.remove([listener])
  }

  async function bindWith(token: string): Promise<void> {
    const claims = await tokens.verify(token)
    if (claims === undefined || claims === 'expired') return send('refusal', refusal(BAD_TOKEN))
    const { subscriptionId } = claims
    if (subscriptionId === undefined) {
      send('refusal', refusal('Token is of no subscription'))
      return webSocket.close(CLOSE.policy)
    }
    if (!bound.has(subscriptionId)) {
      if (bound.size >= MOST_BINDINGS) {
        return send('refusal', refusal(`A socket has at most ${MOST_BINDINGS} subscriptions`))
      }
      const binding = await bind(services, claims, subscriptionId, address)
      if (typeof binding === 'string') return send('refusal', refusal(binding))
      proven()
      const listener: Listener = {
        binding,
        send: (text) => send('event-notification', text),
        end: () => void next(() => unbind(subscriptionId)),
        overflow: () => webSocket.close(CLOSE.tryAgainLater),
      }
      await hub.add(listener)
      bound.set(subscriptionId, listener)
    }
    // Further messages need not wait for it.
    void services.repository
      .feature(createSocketSubscriptions)
      .watched()
      .then(() => {
        if (bound.has(subscriptionId)) send('handshake', handshake(subscriptionId))
      })
  }

  async function unbindWith(token: string): Promise<void> {
    const claims = await tokens.verify(token)
    if (typeof claims === 'object') await unbind(claims.subscriptionId ?? '')
    else send('refusal', refusal(BAD_TOKEN))
  }

  /** One after the other: a bind is done before the unbind that follows it, or the end of the socket. */
  function next(work: () => Promise<void>): Promise<void> {
    waiting += 1
    working = working
      .then(work)
      .catch((error: unknown) => {
        const reason = error instanceof Error ? error.message : 'unknown'
        log.warn({ reason }, 'A message of a web socket was not answered')
      })
      .finally(() => {
        waiting -= 1
      })
    return working
  }

  webSocket.on('message', (data, isBinary) => {
    isAnswering = true
    const message = isBinary ? undefined : readMessage(data.toString())
    if (message === undefined) {
      malformed += 1
      log.info({ malformed }, 'A message of a web socket is ignored')
      if (malformed >= MOST_MALFORMED) webSocket.close(CLOSE.policy)
    } else if (message.type === 'ping') send('pong', PONG)
    else if (waiting >= MOST_WAITING) webSocket.close(CLOSE.policy)
    else {
      const { type, token } = message
      void next(() => (type === 'bind-with-token' ? bindWith(token) : unbindWith(token)))
    }
  })
  webSocket.on('pong', () => {
    isAnswering = true
  })
  // What its protocol refuses closes it, with the code for that.
  webSocket.on('error', (error) => log.debug({ reason: error.message }, 'Web socket'))
  const closed = new Promise<void>((resolve) => webSocket.once('close', () => resolve())).then(() =>
    next(() => hub.remove([...bound.values()])),
  )

  return {
    beat() {
      if (!isAnswering) return webSocket.terminate()
      isAnswering = false
      webSocket.ping()
      if (bound.size > 0) send('heartbeat', heartbeat([...bound.keys()]))
    },
    close: (code) => webSocket.close(code),
    terminate: () => webSocket.terminate(),
    closed,
  }
}
