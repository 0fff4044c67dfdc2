/** The messages of an agent, as JSON text frames. */
import { isObject, nonEmptyText } from '../../shared/fhir/resource.ts'
import { parseMessage } from '../http/web-sockets.ts'

export interface ConnectFrame {
  readonly kind: 'connect'
  readonly accessToken: string | undefined
  readonly agentId: string | undefined
}

export interface TransmitFrame {
  readonly kind: 'transmit'
  readonly accessToken: string | undefined
  readonly channel: string | undefined
  /** Address of the sender, as the agent saw it. */
  readonly remote: string
  readonly contentType: string
  readonly body: string | undefined
  readonly callback: string | undefined
}

export type Frame =
  | ConnectFrame
  | TransmitFrame
  | { readonly kind: 'beat' }
  | { readonly kind: 'alive'; readonly version: string | undefined }
  /** An answer to a request of the service. */
  | {
      readonly kind: 'answer'
      readonly callback: string | undefined
      readonly answer: Readonly<Record<string, unknown>> & { readonly type: string }
    }
  | { readonly kind: 'unknown'; readonly type: string; readonly callback: string | undefined }

const ANSWERS: ReadonlySet<string> = new Set([
  'agent:transmit:response',
  'agent:reloadconfig:response',
  'agent:upgrade:response',
  'agent:logs:response',
  'agent:stats:response',
  'agent:error',
])
const LONGEST_TYPE = 64
const LONGEST_VERSION = 64

/** Returns undefined for text that is not a JSON object. */
export function readFrame(text: string): Frame | undefined {
  const frame = parseMessage(text)
  if (!isObject(frame)) return undefined
  const { type } = frame
  const accessToken = nonEmptyText(frame.accessToken)
  const callback = nonEmptyText(frame.callback)
  switch (type) {
    case 'agent:connect:request':
    case 'connect':
      return { kind: 'connect', accessToken, agentId: nonEmptyText(frame.agentId) }
    case 'agent:transmit:request':
    case 'transmit':
      return {
        kind: 'transmit',
        accessToken,
        channel: nonEmptyText(frame.channel),
        remote: nonEmptyText(frame.remote) ?? '',
        contentType: nonEmptyText(frame.contentType) ?? 'text/plain',
        body: nonEmptyText(frame.body),
        callback,
      }
    case 'agent:heartbeat:request':
      return { kind: 'beat' }
    case 'agent:heartbeat:response':
      return { kind: 'alive', version: nonEmptyText(frame.version)?.slice(0, LONGEST_VERSION) }
    default:
      if (typeof type === 'string' && ANSWERS.has(type)) {
        return { kind: 'answer', callback, answer: { ...frame, type } }
      }
      return { kind: 'unknown', type: describeType(type), callback }
  }
}

/** A type that is not a string may be an object without `toString`, so it is named by its own type. */
function describeType(type: unknown): string {
  return typeof type === 'string' ? type.slice(0, LONGEST_TYPE) : typeof type
}
