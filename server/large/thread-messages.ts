/** The messages between web and its thread for large bodies. */
import type { Config } from '../../shared/config/config.ts'
import type { Metrics } from '../metrics.ts'

export interface ThreadData {
  readonly config: Config
  /** Each request shows it. */
  readonly secret: string
}

export type ToThread = 'send away' | 'stop'

export type FromThread =
  | { readonly kind: 'ready'; readonly port: number }
  | { readonly kind: 'request'; readonly request: Parameters<Metrics['request']> }

export const SECRET_HEADER = 'x-botica-thread'
/** The address of the caller's connection. */
export const PEER_HEADER = 'x-botica-peer'
