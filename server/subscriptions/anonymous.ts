/**
 * Web sockets that have shown no token yet. An address has some of them at most, each for some time, so that nobody
 * uses up the memory of the process without an account.
 */
import type { WebSocket } from 'ws'
import type { Config } from '../../shared/config/config.ts'
import { CLOSE } from './socket.ts'

export interface Anonymous {
  isFull(network: string): boolean
  /** Answers what to call when the socket has shown a token. Without one it is closed in time. */
  add(network: string, webSocket: WebSocket): () => void
}

export function createAnonymous({
  anonymousSocketsMax,
  requestIdleSeconds,
}: Pick<Config, 'anonymousSocketsMax' | 'requestIdleSeconds'>): Anonymous {
  const sockets = new Map<string, Set<WebSocket>>()
  return {
    isFull: (network) => (sockets.get(network)?.size ?? 0) >= anonymousSocketsMax,
    add(network, webSocket) {
      const own = sockets.get(network) ?? new Set()
      sockets.set(network, own.add(webSocket))
      const end = () => webSocket.close(CLOSE.policy, 'No token was shown')
      const timer = setTimeout(end, requestIdleSeconds * 1000)
      const leave = () => {
        clearTimeout(timer)
        own.delete(webSocket)
        if (own.size === 0 && sockets.get(network) === own) sockets.delete(network)
      }
      webSocket.once('close', leave)
      return leave
    },
  }
}
