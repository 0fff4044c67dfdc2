/** Queue names, job types, add, add-and-wait. The only place besides worker/main.ts that knows BullMQ. */

/** One bot run, as the job carries it. */
export interface ExecuteJob {
  /** Execution id = BullMQ job id, a UUID; stable across attempts. */
  readonly runId: string
  readonly botId: string
  /** Number of the tenant the Bot lives in. */
  readonly botProject: number
  readonly botVersion: number
  /** Run-as membership. */
  readonly membershipId: string
  /** `Type/id` of the caller's profile. */
  readonly requester: string | undefined
  readonly contentType: string | undefined
  /** How `event.input` is made of the text. */
  readonly inputKind: 'text' | 'json' | 'hl7' | 'bytes' | 'none'
  /** Inline up to 64 KB; else `inputKey` names a Redis key. Bytes travel as base64. */
  readonly input?: string
  readonly inputKey?: string
  readonly headers: Readonly<Record<string, string>>
  /** Extra path after `$execute/`. */
  readonly path?: string
  readonly traceId: string
  readonly requestId: string
  /** Epoch ms after which nobody wants the answer any more. */
  readonly deadline: number
  /** Reply channel of the web process that waits; absent for asynchronous runs. */
  readonly reply?: string
  /** AsyncJob that takes the result of an asynchronous run. */
  readonly asyncJobId?: string
}

export interface ExecuteReply {
  readonly runId: string
  readonly status: 'ok' | 'error'
  /** How the handler's result is to be written (bots.md §5.4). */
  readonly kind: 'undefined' | 'json' | 'string' | 'hl7' | 'outcome'
  readonly body?: string
  /** The body when it is larger than 64 KB. */
  readonly bodyKey?: string
  readonly log?: string
}

export interface Queues {
  ping(): Promise<number>
  close(): Promise<void>
}
