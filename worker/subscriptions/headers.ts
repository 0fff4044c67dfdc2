/** The headers of a notification. */
import { createHmac, randomBytes } from 'node:crypto'
import type { Hook } from '../../shared/access/subscription.ts'
import type { Delivery } from '../../shared/subscriptions/deliveries.ts'

export const CONTENT_TYPE = 'application/fhir+json'

export interface Message {
  readonly delivery: Delivery
  /** Id of the Subscription. */
  readonly subscription: string
  /** `Type/id`. */
  readonly reference: string
}

export function eventHeaders({
  delivery,
  subscription,
  reference,
}: Message): Record<string, string> {
  const { id, change, attempt, cause } = delivery
  return {
    'Content-Type': CONTENT_TYPE,
    'X-Medplum-Subscription': subscription,
    'X-Medplum-Interaction': change,
    ...(change === 'delete' ? { 'X-Medplum-Deleted-Resource': reference } : {}),
    'X-Event-Id': id,
    'X-Attempt': String(attempt),
    ...traceHeaders(cause.traceId),
  }
}

/** `X-Signature` covers the body; the other one covers the time, too, so that a receiver notices a copy. */
export function signatures(secret: string, body: string, seconds: number): Record<string, string> {
  const hmac = (text: string) => createHmac('sha256', secret).update(text).digest('hex')
  return {
    'X-Signature': hmac(body),
    'X-Signature-Timestamp': String(seconds),
    'X-Signature-V1': hmac(`${seconds}.${body}`),
  }
}

const KEPT = /^(content-type|x-signature.*)$/i

/** Without those that say what the body is and who has signed it. */
export function givenHeaders({ headers }: Hook): Record<string, string> {
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
