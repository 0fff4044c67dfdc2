/** Queue names, jobs and replies shared by web and worker. */

import type { RunLease } from '../access/principal.ts'
import { messageKind } from '../redis/bus.ts'
import { PREFIX } from '../redis/script.ts'

/** A key whose runs take turns. */
export interface Turn {
  /** Names the bot and the value of its key. */
  readonly key: string
  /** Runs at a time. */
  readonly most: number
}

/** A limit on the starts of a bot's runs. */
export interface Rate {
  /** Names the bot. */
  readonly key: string
  readonly msPerRun: number
  /** Runs that may wait for their start. */
  readonly mostWaiting: number
}

/** The key and the rate that a run waits for before it gets a worker. */
export interface Pace {
  readonly turn?: Turn
  readonly rate?: Rate
}

export const BOT_QUEUES = ['bots-sync', 'bots-async'] as const

export type BotQueue = (typeof BOT_QUEUES)[number]

/** Larger inputs and results get their own Redis key. */
export const INLINE_BYTES = 65_536

/** `event.agent`. */
interface AgentHint {
  readonly reference: string
  readonly display?: string
  readonly channel: string
  /** The device, as the agent saw it. */
  readonly remote: string
  /** The agent's address, and its `X-Forwarded-For`. */
  readonly remoteAddress: string
  readonly forwardedFor?: string
}

export interface ExecuteJob extends Pace {
  /** Execution id, BullMQ job id and AsyncJob id: a UUID that stays the same across attempts. */
  readonly runId: string
  /** The caller's Project: its worker share and AsyncJobs. */
  readonly projectId: string
  readonly botId: string
  readonly botProjectId: string
  readonly botVersion: number
  /** The label whose code runs; absent: live. */
  readonly label?: string
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
  /** JSON of `event.parameters`: the input of an operation whose `event.input` is the resource. */
  readonly parameters?: string
  readonly traceId: string
  readonly requestId: string
  /** The agent whose message it is, and the device that sent the message to the agent. */
  readonly agent?: AgentHint
  /** A handler without a result answers its log. */
  readonly answersLog?: true
  /** Depth of bot-to-bot calls. */
  readonly depth: number
  readonly added: number
  /** Epoch ms after which the run no longer starts. */
  readonly deadline: number
  /** Epoch ms until which the caller waits; absent for asynchronous runs. */
  readonly waitUntil?: number
  /** Reply channel of the waiting web process; absent for asynchronous runs. */
  readonly reply?: string
  /** Earlier events that a debounced one has replaced. */
  readonly replaced?: number
  /** The reason why the run had to wait when it arrived. */
  readonly waitsFor?: 'key' | 'rate'
  /** Address of the web process that takes a streamed answer. */
  readonly stream?: string
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
  /** Id of a past run: this one has no effect, repeats its input, and gets the responses to its fetches. */
  readonly dryRunOf?: string
  /** The calling run, whose lease must be held during writes. */
  readonly lease?: RunLease
  /** Failed attempts of a run with retries. */
  readonly failures?: number
  /** Asynchronous runs started by events go before requested ones. */
  readonly class?: 'event'
}

/** Names the Bot of a run: Projects may have Bots with the same id. */
export function botAddress({
  botProjectId,
  botId,
}: Pick<ExecuteJob, 'botProjectId' | 'botId'>): string {
  return `${botProjectId}/${botId}`
}

export interface ExecuteReply {
  readonly runId: string
  /** `unavailable`: not started, so a retry is safe. `interrupted`: the process was lost, possibly after effects. */
  readonly status: 'ok' | 'error' | 'unavailable' | 'interrupted'
  /** Format of the handler's result. */
  readonly kind: 'undefined' | 'json' | 'string' | 'hl7' | 'outcome'
  readonly body?: string
  /** HTTP status of an error that the bot returned as an outcome. */
  readonly httpStatus?: number
  /** Redis key of a body larger than INLINE_BYTES. */
  readonly bodyKey?: string
  /** Number of chunks of a streamed answer, sent before; the body is not used. */
  readonly streamed?: number
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
