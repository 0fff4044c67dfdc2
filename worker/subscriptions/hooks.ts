/** Deliveries to external addresses and Bots, with their headers. */

import { createHmac, randomBytes } from 'node:crypto'
import {
  isSuccess,
  type SubscriptionTarget,
  type SubscriptionTerms,
} from '../../shared/access/subscription.ts'
import { type BotTarget, type MissingTarget, runLabel, toActing } from '../../shared/bots/bot.ts'
import { readRate } from '../../shared/bots/pace.ts'
import type { Config } from '../../shared/core/config/config.ts'
import { fetchOutbound } from '../../shared/outbound/fetch-outside.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Delivery } from '../../shared/subscriptions/deliveries.ts'
import type { Runner } from '../bots/runner.ts'

const TIMEOUT_MS = 120_000

export async function sendHook(
  config: Config,
  terms: SubscriptionTerms,
  message: Message,
  signal: AbortSignal,
): Promise<Sent> {
  const { secret, topic } = terms
  const { hook, body } = message
  const seconds = Math.floor(Date.now() / 1000)
  const outgoing = {
    url: hook.endpoint,
    method: 'POST',
    headers: {
      ...eventHeaders(message, topic !== undefined),
      ...givenHeaders(hook),
      ...(secret === undefined ? {} : signatures(secret, body, seconds)),
    },
    body,
    redirect: 'manual',
    ignoresBody: true,
    timeoutMs: topic?.timeoutMs ?? TIMEOUT_MS,
    isRepeatable: true,
  }
  try {
    const { status, headers } = await fetchOutbound(outgoing, config.hookTargets, signal)
    if (isSuccess(terms, status)) return { kind: 'received', text: `status ${status}` }
    const isBusy = status === 429 || status === 503
    const after = isBusy ? retryAfterMs(headers['retry-after']) : undefined
    return { kind: 'failed', text: `status ${status}`, after }
  } catch (error) {
    const text = error instanceof Error ? error.message : 'The request failed'
    return { kind: 'failed', text: `error ${text}`, after: undefined }
  }
}

const LONGEST_AFTER_MS = 3_600_000

/** Parses seconds or a date. https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3 */
function retryAfterMs(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const ms = /^\d+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - Date.now()
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), LONGEST_AFTER_MS) : undefined
}

export type Sent =
  | { readonly kind: 'received'; readonly text: string }
  /** `after`: ms to wait, as asked by the receiver. */
  | { readonly kind: 'failed'; readonly text: string; readonly after: number | undefined }
  /** Not the receiver's fault. */
  | { readonly kind: 'fault'; readonly text: string }
  | { readonly kind: 'back'; readonly delayMs: number }
  /** No longer wanted or permitted; `text` is for the AuditEvent, if any. */
  | { readonly kind: 'stopped'; readonly reason: string; readonly text?: string }

const CONTENT_TYPE = 'application/fhir+json'

export interface Message {
  readonly delivery: Delivery
  readonly subscription: string
  /** `Type/id`. */
  readonly reference: string
  readonly hook: SubscriptionTarget
  readonly body: string
}

/** For a topic, the content of the notification decides whether it names the resource. */
function eventHeaders(
  { delivery, subscription, reference }: Message,
  isTopic: boolean,
): Record<string, string> {
  const { id, change, notice, attempt, cause } = delivery
  return {
    'Content-Type': CONTENT_TYPE,
    'X-Medplum-Subscription': subscription,
    'X-Medplum-Interaction': notice ?? change,
    ...(change === 'delete' && !isTopic ? { 'X-Medplum-Deleted-Resource': reference } : {}),
    'X-Event-Id': id,
    'X-Attempt': String(attempt),
    ...traceHeaders(cause.traceId),
  }
}

/** `X-Signature` covers the body; the other also covers the time, against replays. */
function signatures(secret: string, body: string, seconds: number): Record<string, string> {
  const hmac = (text: string) => createHmac('sha256', secret).update(text).digest('hex')
  return {
    'X-Signature': hmac(body),
    'X-Signature-Timestamp': String(seconds),
    'X-Signature-V1': hmac(`${seconds}.${body}`),
  }
}

const KEPT = /^(content-type|x-signature.*)$/i

/** Drops headers for content type and signatures, which the service sets. */
function givenHeaders({ headers }: SubscriptionTarget): Record<string, string> {
  return Object.fromEntries(headers.filter(([name]) => !KEPT.test(name)))
}

/** https://www.w3.org/TR/trace-context/#traceparent-header */
function traceHeaders(traceId: string | undefined): Record<string, string> {
  if (traceId === undefined) return {}
  const trace = traceId.replaceAll('-', '')
  return {
    'X-Trace-Id': traceId,
    traceparent: `00-${trace}-${randomBytes(8).toString('hex')}-01`,
  }
}

// Runs a Bot delivery in this worker; PostgreSQL holds the job
const BACK_MS = 1000
/** Limit on waiting for a slot. */
const QUEUE_MS = 60_000

export function missingTargetResult({ isDisabled, text }: MissingTarget): Sent {
  return isDisabled ? { kind: 'stopped', reason: 'bots off', text } : failed(`error ${text}`)
}

/** The last argument gives the place and author of the change. */
export async function runSubscriptionBot(
  runner: Runner,
  target: BotTarget,
  message: Message,
  { projectId, requester }: { readonly projectId: string; readonly requester: string | undefined },
): Promise<Sent> {
  const { bot, version, projectId: botProjectId, session } = target
  const { delivery, hook, body: input } = message
  const { id, cause, added, attempt, token, turn, replaced } = delivery
  const headers = Object.entries({ ...eventHeaders(message, false), ...givenHeaders(hook) })
  const job: ExecuteJob = {
    runId: id,
    projectId,
    botId: bot.id,
    botProjectId,
    botVersion: version,
    ...runLabel(target, id),
    ...toActing(session.principal),
    requester,
    contentType: CONTENT_TYPE,
    inputKind: 'json',
    input,
    headers: Object.fromEntries(headers.map(([name, value]) => [name.toLowerCase(), value])),
    traceId: cause.traceId ?? id,
    requestId: cause.requestId ?? id,
    depth: cause.depth ?? 0,
    added: added.getTime(),
    deadline: Date.now() + QUEUE_MS,
    subscription: `Subscription/${message.subscription}`,
    delivery: true,
    ...(turn === undefined ? {} : { turn }),
    ...readRate({ bot, projectId: botProjectId }),
    ...(replaced === 0 ? {} : { replaced }),
  }
  const attempted = await runner.deliver(job, attempt, { owner: 'd', run: id, token })
  if (attempted.kind === 'back') return { kind: 'back', delayMs: attempted.delayMs || BACK_MS }
  const { reply, failure } = attempted
  if (reply.status === 'ok') return { kind: 'received', text: 'status 200' }
  if (reply.status === 'unavailable')
    return { kind: 'fault', text: 'error The run could not start' }
  return failed(`error Bot run failed: ${failure ?? 'thrown'}`)
}

function failed(text: string): Sent {
  return { kind: 'failed', text, after: undefined }
}
