/** A run while an executor has it, and what it asks of the worker meanwhile. */
import type { CallMessage, DoneMessage, ReplyMessage } from '../executor/messages.ts'
import type { BotRun, HostCall } from './run-result.ts'

/** How an executor ended; `guilty` is the run that made it, where that is known. */
export type Death =
  | { readonly cause: 'exit' | 'heartbeat' | 'memory' | 'closed' }
  | { readonly cause: 'timeout' | 'memory' | 'cancelled'; readonly guilty: number }

export type Ended =
  | {
      readonly t: 'done'
      readonly message: DoneMessage
      readonly body: string
      readonly log: string
    }
  /** `isGuilty` is undefined when the fault may lie with any run of the process, or outside of it. */
  | { readonly t: 'died'; readonly death: Death; readonly isGuilty: boolean | undefined }

export type Host = (call: HostCall) => Promise<string>

export interface ActiveRun {
  readonly run: BotRun
  readonly host: Host
  readonly signal: AbortSignal
  /** When its wall limit ends, in epoch ms; set at its first start and kept when it is repeated. */
  deadline: number | undefined
  sideEffects: number
  isResting: boolean
  /** Called when `isResting` has changed; a run that ends stops resting first. */
  onRest: (isResting: boolean) => void
  /** Set by the process that has the run. */
  end: (ended: Ended) => void
}

/** The rest of the wall limit in ms. */
export function remainingMs({ run, deadline }: ActiveRun): number {
  return deadline === undefined ? run.limits.wallMs : deadline - Date.now()
}

const MAX_READ_LENGTH = 16_384
const MAX_MESSAGE = 2000

/** Hands the call to the host and its answer to the executor, unless the run ended meanwhile. */
export async function answerCall(
  run: ActiveRun,
  { run: id, call, kind }: CallMessage,
  payload: string,
  reply: (message: ReplyMessage, text: string) => void,
): Promise<void> {
  // Noted before it is done: the executor may die while it is under way.
  if (mayHaveEffect(kind, payload)) run.sideEffects++
  try {
    const text = await run.host({ kind, payload })
    reply({ t: 'reply', run: id, call, ok: true, mayBeginAnew: run.sideEffects === 0 }, text)
  } catch (error) {
    const text = error instanceof Error ? error.message : 'The call failed'
    const mayBeginAnew = run.sideEffects === 0
    reply({ t: 'reply', run: id, call, ok: false, mayBeginAnew }, text.slice(0, MAX_MESSAGE))
  }
}

// Requests that only read are small; a large one, or one that is not understood, counts as an effect: the
// price is one repeat less after a crash.
function mayHaveEffect(kind: string, payload: string): boolean {
  if (kind === 'token') return false
  if (payload.length > MAX_READ_LENGTH) return true
  try {
    const { method, path }: { method?: unknown; path?: unknown } = JSON.parse(payload)
    // A bot may be run by GET, too.
    return !(method === 'GET' || method === 'HEAD') || /(\$|%24)execute/i.test(String(path))
  } catch {
    return true
  }
}
