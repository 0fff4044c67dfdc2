/** FHIR requests and their replies as plain values, independent of HTTP. */
import type { Readable } from 'node:stream'
import type { Area } from '../access/grant.ts'
import type { Principal } from '../access/principal.ts'
import type { Repository } from '../store/repository.ts'
import type { Services } from './services.ts'

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
  readonly offload?: ((request: FhirRequest) => Promise<FhirReply>) | undefined
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
export interface FhirContext {
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

export type CallerContext = Pick<FhirContext, 'services' | 'principal'>

/** The same request on another Repository, such as that of a transaction. */
export function through<T extends CallerContext>(asking: T, repository: Repository): T {
  return { ...asking, services: { ...asking.services, repository } }
}

/** A request that only reads: a replica may answer it. */
export async function forReads<T extends CallerContext>(asking: T): Promise<T> {
  const { repository } = asking.services
  const reads = await repository.forReads(asking.principal)
  return reads === repository ? asking : through(asking, reads)
}

export type Returned = 'representation' | 'minimal' | 'OperationOutcome'

// An operation states what it is as data, then does it; `api/operations.ts` lists them all.

export interface OperationCall {
  readonly operation: Pick<Operation, 'name' | 'standard'>
  readonly services: Services
  readonly principal: Principal
  readonly request: FhirRequest
  /** Resource type of a type or instance call. */
  readonly type: string | undefined
  readonly id: string | undefined
  /** Path after the operation's name, without a leading slash (`$execute/a/b` → `a/b`). */
  readonly rest: string
}

export interface Operation {
  /** Without the dollar. */
  readonly name: string
  readonly on: readonly {
    readonly type?: string
    readonly level: 'system' | 'type' | 'instance'
  }[]
  /** Defined by the standard, for its type, for every Resource or for the CapabilityStatement; by the guide of bulk data. */
  readonly standard?: 'type' | 'Resource' | 'CapabilityStatement' | 'bulk'
  /** Canonical of the definition in another guide. */
  readonly definition?: string
  readonly methods: readonly string[]
  /** A GET begins something, so that HEAD, which is safe, is none of its methods (RFC 9110 §9.2.1). */
  readonly acts?: true
  /** It writes nothing, so a replica may answer it. */
  readonly onlyReads?: true
  /** The reply has a form of its own, which `Accept` and `_pretty` do not change. */
  readonly ownFormat?: true
  /** The scope of the login has to reach it; whether the login may do it is for the operation to say. */
  readonly area?: Area
  /** It charges the load units of what it does by itself. */
  readonly countsLoad?: true
  run(call: OperationCall): Promise<FhirReply>
}

interface OperationTarget {
  readonly type: string | undefined
  readonly id: string | undefined
  readonly rest: string
}

export type Route =
  | { readonly kind: 'metadata' | 'bundle' | 'system-search' | 'system-history' }
  | ({ readonly kind: 'operation'; readonly operation: Operation } & OperationTarget)
  | {
      readonly kind: 'search' | 'search-form' | 'create' | 'type-history'
      readonly type: string
    }
  | {
      readonly kind: 'conditional-update' | 'conditional-patch' | 'conditional-delete'
      readonly type: string
    }
  | {
      readonly kind: 'read' | 'update' | 'patch' | 'delete' | 'history'
      readonly type: string
      readonly id: string
    }
  | { readonly kind: 'vread'; readonly type: string; readonly id: string; readonly vid: string }
  | {
      readonly kind: 'compartment-search'
      readonly type: string
      readonly id: string
      readonly target: string
    }

/** Method and path, below the base of FHIR. Errors: 404 unknown path or operation, 400 unknown type, 405 with Allow. */
export type FindRoute = (method: string, path: string) => Route
