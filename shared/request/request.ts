/** FHIR requests and their replies as plain values, independent of HTTP. */

import type { Readable } from 'node:stream'
import type { Principal } from '../access/principal.ts'
import type { Services } from '../services.ts'

export interface FhirRequest {
  readonly method: string
  /** The method is GET, and nobody reads the body. */
  readonly isHead?: boolean
  /** Path after `fhir/R4/`, without query, `%24` already `$`; no leading or trailing slash. */
  readonly path: string
  readonly query: URLSearchParams
  /** The same as it was written, where that is known; no question mark. */
  readonly queryText?: string | undefined
  /** Lower-case names. */
  readonly headers: Readonly<Record<string, string | undefined>>
  /** The raw body; undefined when there is none. */
  readonly body: Buffer | string | undefined
  /** Instead of `body`: the content of a Binary, as it arrives. */
  readonly upload?: Readable
  readonly requestId: string
  readonly traceId: string
  /** The caller can send an answer as it is made. */
  readonly takesPieces?: boolean
  /** Nobody waits for the answer: a quota is waited for until this is aborted, not answered with 429. */
  readonly mayWait?: AbortSignal
  /** Pre-commit bots were asked before, or one of them makes it. */
  readonly isPreCommitted?: boolean
  /** Aborts when the caller has gone. */
  readonly signal?: AbortSignal
  /** Answers in another place what is too much for this event loop. */
  readonly elsewhere?: ((request: FhirRequest) => Promise<FhirReply>) | undefined
}

export interface FhirReply {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  /** Ready to send; undefined is an empty body. */
  readonly body: string | Buffer | undefined
  /** Instead of `body`: a large page, to be read once; only for who takes pieces. */
  readonly pieces?: Iterable<string>
  /** Instead of `body`: content of a Binary. The caller reads the stream to its end or destroys it. */
  open?(): Promise<Readable>
  /** A failure of ours after which something may be done: a repeat with the same Idempotency-Key is answered so, too. */
  readonly isFinal?: true
  /** The time of the version in the reply to the millisecond; the header has whole seconds. */
  readonly lastUpdated?: Date
}

export type Handle = (
  services: Services,
  principal: Principal,
  request: FhirRequest,
) => Promise<FhirReply>

/** One FHIR interaction: its caller, its request, and how its reply is to look. */
export interface Interaction {
  readonly services: Services
  readonly principal: Principal
  readonly request: FhirRequest
  readonly preferences: Preferences
}

export interface Preferences {
  readonly contentType: string
  readonly pretty: boolean
  readonly returned: Returned
  /** The value of `Preference-Applied`; empty when none was asked for. */
  readonly applied: string
  readonly handling: 'strict' | 'lenient'
  readonly respondAsync: boolean
  /** `X-Medplum: extended` shows the platform's elements of `meta`. */
  readonly extended: boolean
}

export type Asking = Pick<Interaction, 'services' | 'principal'>

export type Returned = 'representation' | 'minimal' | 'OperationOutcome'
