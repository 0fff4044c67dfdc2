/** A delivery to an address outside. */

import { type Hook, isSuccess, type SubscriptionTerms } from '../../shared/access/subscription.ts'
import type { Config } from '../../shared/config/config.ts'
import { fetchOutside } from '../../shared/platform/outbound/fetch-outside.ts'
import type { Sent } from './delivery-outcome.ts'
import { eventHeaders, givenHeaders, type Message, signatures } from './headers.ts'

const TIMEOUT_MS = 120_000
/** The limit of an answer, whose body nobody reads. */
const MAX_BYTES = 65_536

export async function sendHook(
  config: Config,
  terms: SubscriptionTerms,
  hook: Hook,
  message: Message,
  body: string,
  signal: AbortSignal,
): Promise<Sent> {
  const { secret } = terms
  const seconds = Math.floor(Date.now() / 1000)
  const outgoing = {
    url: hook.endpoint,
    method: 'POST',
    headers: {
      ...eventHeaders(message),
      ...givenHeaders(hook),
      ...(secret === undefined ? {} : signatures(secret, body, seconds)),
    },
    body,
    redirect: 'manual',
    maxBytes: MAX_BYTES,
    cutsBody: true,
    timeoutMs: TIMEOUT_MS,
    isRepeatable: true,
  }
  try {
    const { status, headers } = await fetchOutside(outgoing, config.hookTargets, signal)
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

/** Seconds or a date. https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3 */
function retryAfterMs(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const ms = /^\d+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - Date.now()
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), LONGEST_AFTER_MS) : undefined
}
