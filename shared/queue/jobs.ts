/** Queue names and what a job and its reply carry: where web and worker meet. */

import type { RunLease } from '../access/principal.ts'
import { messageKind } from '../redis/bus.ts'
import { PREFIX } from '../redis/script.ts'

/** The queue of requests that are answered later; its jobs carry no data, their id says all. */
export const REQUESTS = 'requests'
/** Jobs of this one say only that there are parts of exports to be taken. */
export const EXPORTS = 'export'
/** The queue that wakes a worker for an import. */
export const IMPORTS = 'import'
export const BOT_QUEUES = ['bots-sync', 'bots-async'] as const

export type BotQueue = (typeof BOT_QUEUES)[number]

/** Larger inputs and results travel under a key of their own: measured break-even of BullMQ. */
export const INLINE_BYTES = 65_536
/** One bot run, as the job carries it. */
export interface ExecuteJob {
  /** Execution id = BullMQ job id = id of an AsyncJob, a UUID; stable across attempts. */
  readonly runId: string
  /** Project of the caller: whose share of the workers it uses, and where an AsyncJob lives. */
  readonly projectId: string
  readonly botId: string
  /** Project the Bot lives in. */
  readonly botProjectId: string
  readonly botVersion: number
  /** Run-as membership. */
  readonly membershipId: string
  /** The run reaches no further than this scope, with this Patient in context. */
  readonly scope: string
  readonly patient: string | undefined
  /** `Type/id` of the caller's profile. */
  readonly requester: string | undefined
  readonly contentType: string | undefined
  /** How `event.input` is made of the text. */
  readonly inputKind: 'text' | 'json' | 'form' | 'hl7' | 'bytes' | 'none'
  /** Bytes travel as base64. */
  readonly input?: string
  /** Redis key that holds the input when it is larger than INLINE_BYTES. */
  readonly inputKey?: string
  readonly headers: Readonly<Record<string, string>>
  /** For a web hook: whether there was a body, which its bot gets as `event.rawBody`, too. */
  readonly hasRawBody?: boolean
  /** Extra path after `$execute/`. */
  readonly path?: string
  readonly traceId: string
  readonly requestId: string
  /** How many bots called each other to get here. */
  readonly depth: number
  /** Epoch ms when the job was added. */
  readonly added: number
  /** Epoch ms after which the run is not started any more. */
  readonly deadline: number
  /** Epoch ms until which the caller waits for the reply; absent for asynchronous runs. */
  readonly waitUntil?: number
  /** Reply channel of the web process that waits; absent for asynchronous runs. */
  readonly reply?: string
  /** For a scheduled run: when it was due, and which attempt this is, from 1. */
  readonly scheduled?: { readonly time: string; readonly attempt: number }
  /** The result goes to the AsyncJob with the run's id, or to the occurrence of a schedule. */
  readonly asynchronous?: true
  /** `Type/id` of the Subscription whose event started it. */
  readonly subscription?: string
  /** Asked about a write before it is made, or called by one that is: no other is asked about what it writes. */
  readonly isPreCommit?: true
  /** PostgreSQL holds the job until it has succeeded: it may run again, whatever it has done. */
  readonly delivery?: true
  /** The run that has called this one, and has to be held while it writes. */
  readonly lease?: RunLease
  /** Attempts that failed, of a run that its bot wants repeated. */
  readonly failures?: number
  /** Asynchronous runs that an event has started go before those that somebody has asked for. */
  readonly class?: 'event'
}

export interface ExecuteReply {
  readonly runId: string
  /**
   * `unavailable`: the handler was never called, the caller may repeat. `interrupted`: the run lost its process in
   * the middle, after it may have had effects.
   */
  readonly status: 'ok' | 'error' | 'unavailable' | 'interrupted'
  /** How the handler's result is to be written. */
  readonly kind: 'undefined' | 'json' | 'string' | 'hl7' | 'outcome'
  readonly body?: string
  /** The body when it is larger than INLINE_BYTES. */
  readonly bodyKey?: string
}

/** The reply to a run, for the web process whose address its job names. */
export const REPLY = messageKind<ExecuteReply>('reply')
/** The id of a run, or of an accepted request, that is to end. */
export const CANCEL = messageKind<string>('cancel')

/** Keys next to BullMQ's. */
export const keys = {
  /** Sorted set of run ids that are waiting or running; the score is when to forget them. */
  flight: (queue: string, projectId: string) => `${PREFIX}:flight:${queue}:${projectId}`,
  input: (runId: string) => `${PREFIX}:input:${runId}`,
  body: (runId: string) => `${PREFIX}:body:${runId}`,
  /** The reply, kept for a web process that may have missed it on its channel. */
  reply: (runId: string) => `${PREFIX}:reply:${runId}`,
  /** Set when the caller was sent away with a status URL: the result belongs to the AsyncJob. */
  late: (runId: string) => `${PREFIX}:late:${runId}`,
  /** The attempt that may write: set before its first write, or when a later attempt ends the run. */
  journal: (runId: string) => `${PREFIX}:journal:${runId}`,
} as const
