/** Queue names, jobs and replies shared by web and worker. */

import type { RunLease } from '../access/principal.ts'
import { messageKind } from '../redis/bus.ts'
import { PREFIX } from '../redis/script.ts'

/** Queue of asynchronous requests; jobs carry only their id. */
export const REQUESTS = 'requests'
export const EXPORTS = 'export'
export const IMPORTS = 'import'
export const BOT_QUEUES = ['bots-sync', 'bots-async'] as const

export type BotQueue = (typeof BOT_QUEUES)[number]

/** Larger inputs and results get their own Redis key. */
export const INLINE_BYTES = 65_536
export interface ExecuteJob {
  /** Execution id, BullMQ job id and AsyncJob id: a UUID that stays the same across attempts. */
  readonly runId: string
  /** The caller's Project: its worker share and AsyncJobs. */
  readonly projectId: string
  readonly botId: string
  readonly botProjectId: string
  readonly botVersion: number
  readonly membershipId: string
  /** Limits the run's access, with this Patient in context. */
  readonly scope: string
  readonly patient: string | undefined
  /** `Type/id` of the caller's profile. */
  readonly requester: string | undefined
  readonly contentType: string | undefined
  /** How `event.input` is parsed from the text. */
  readonly inputKind: 'text' | 'json' | 'form' | 'hl7' | 'bytes' | 'none'
  /** Bytes are base64. */
  readonly input?: string
  /** Redis key of an input larger than INLINE_BYTES. */
  readonly inputKey?: string
  readonly headers: Readonly<Record<string, string>>
  /** For a webhook: whether there was a body, also passed as `event.rawBody`. */
  readonly hasRawBody?: boolean
  readonly path?: string
  readonly traceId: string
  readonly requestId: string
  /** Depth of bot-to-bot calls. */
  readonly depth: number
  readonly added: number
  /** Epoch ms after which the run no longer starts. */
  readonly deadline: number
  /** Epoch ms until which the caller waits; absent for asynchronous runs. */
  readonly waitUntil?: number
  /** Reply channel of the waiting web process; absent for asynchronous runs. */
  readonly reply?: string
  /** For a scheduled run: the due time and the attempt, from 1. */
  readonly scheduled?: { readonly time: string; readonly attempt: number }
  /** The result goes to the AsyncJob with the run's id, or to the occurrence of a schedule. */
  readonly asynchronous?: true
  /** `Type/id` of the triggering Subscription. */
  readonly subscription?: string
  /** A pre-commit run, or one called by it: its writes trigger no pre-commit bots. */
  readonly isPreCommit?: true
  /** PostgreSQL keeps the job until it succeeds: it may run again despite its effects. */
  readonly delivery?: true
  /** The calling run, whose lease must be held during writes. */
  readonly lease?: RunLease
  /** Failed attempts of a run with retries. */
  readonly failures?: number
  /** Asynchronous runs started by events go before requested ones. */
  readonly class?: 'event'
}

export interface ExecuteReply {
  readonly runId: string
  /** `unavailable`: not started, so a retry is safe. `interrupted`: the process was lost, possibly after effects. */
  readonly status: 'ok' | 'error' | 'unavailable' | 'interrupted'
  /** Format of the handler's result. */
  readonly kind: 'undefined' | 'json' | 'string' | 'hl7' | 'outcome'
  readonly body?: string
  /** Redis key of a body larger than INLINE_BYTES. */
  readonly bodyKey?: string
}

export const REPLY = messageKind<ExecuteReply>('reply')
/** The id of a run or accepted request to cancel. */
export const CANCEL = messageKind<string>('cancel')

/** Keys next to BullMQ's. */
export const keys = {
  /** Sorted set of waiting and running run ids; the score is the expiry time. */
  flight: (queue: string, projectId: string) => `${PREFIX}:flight:${queue}:${projectId}`,
  input: (runId: string) => `${PREFIX}:input:${runId}`,
  body: (runId: string) => `${PREFIX}:body:${runId}`,
  /** The reply, kept in case the web process missed the message. */
  reply: (runId: string) => `${PREFIX}:reply:${runId}`,
  /** Set once the caller got a status URL: the result belongs to the AsyncJob. */
  late: (runId: string) => `${PREFIX}:late:${runId}`,
  /** The attempt that may write: set before its first write, or when a later attempt ends the run. */
  journal: (runId: string) => `${PREFIX}:journal:${runId}`,
} as const
