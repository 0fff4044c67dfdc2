/** FHIR requests and replies, independent of HTTP, and the words that describe a call. */
import type { Readable } from 'node:stream'
import type { Area } from '../access/grant.ts'
import type { Principal } from '../access/principal.ts'
import type { Repository } from '../store/repository.ts'
import type { Services } from './services.ts'

export interface FhirRequest {
  readonly method: string
  /** A GET, by HEAD or a tool that only reads: an operation that acts is rejected. */
  readonly readsOnly?: boolean
  /** Path below `fhir/R4/`, without query and slashes at the ends; `%24` is decoded to `$`. */
  readonly path: string
  /** Id of the Project in the address: `projects/{id}/fhir/R4/`. */
  readonly projectScope?: string
  readonly query: URLSearchParams
  /** Query as written, if known, without the question mark. */
  readonly queryText?: string | undefined
  /** Lower-case names. */
  readonly headers: Readonly<Record<string, string | undefined>>
  readonly body: Buffer | string | undefined
  /** Replaces `body`: Binary content as a stream, or read already. */
  readonly upload?: Readable | Buffer | undefined
  /** The upload is content in any format: a Binary in JSON is not read as the resource. */
  readonly isContent?: true
  readonly requestId: string
  readonly traceId: string
  /** True when the caller can stream the response. */
  readonly takesPieces?: boolean
  /** Asynchronous request: waits for quota until aborted instead of failing with 429. */
  readonly mayWait?: AbortSignal
  /** True when pre-commit bots have run, or a bot makes the request. */
  readonly isPreCommitted?: boolean
  /** True when the writes are rolled back: the audit trail then records no refusal. */
  readonly isRolledBack?: boolean
  /** Aborts when the caller disconnects. */
  readonly signal?: AbortSignal
  /** Handles requests that would block this event loop in another process. */
  readonly offload?: ((request: FhirRequest) => Promise<FhirReply>) | undefined
}

export interface FhirReply {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  /** Undefined is an empty body. */
  readonly body: string | Buffer | undefined
  /** Replaces `body`: a large page, read once; only with `takesPieces`. */
  readonly pieces?: Iterable<string>
  /** Replaces `body`: Binary content. The caller reads or destroys the stream. */
  open?(): Promise<Readable>
  /** A server error with possible effects: also replayed for the same Idempotency-Key. */
  readonly isFinal?: true
  /** Time of the version in ms; the header has whole seconds. */
  readonly lastUpdated?: Date
}

export type Handle = (
  services: Services,
  principal: Principal,
  request: FhirRequest,
) => Promise<FhirReply>

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
  /** Value of `Preference-Applied`; empty without preferences. */
  readonly applied: string
  readonly handling: 'strict' | 'lenient'
  readonly respondAsync: boolean
  /** `X-Medplum: extended`: shows platform elements of `meta`. */
  readonly extended: boolean
}

export type CallerContext = Pick<FhirContext, 'services' | 'principal'>

/** Uses another Repository, such as one in a transaction. */
export function withRepository<T extends CallerContext>(asking: T, repository: Repository): T {
  return { ...asking, services: { ...asking.services, repository } }
}

/** For requests that only read: may use a replica. */
export async function forReads<T extends CallerContext>(asking: T): Promise<T> {
  const { repository } = asking.services
  const reads = await repository.forReads(asking.principal)
  return reads === repository ? asking : withRepository(asking, reads)
}

export type Returned = 'representation' | 'minimal' | 'OperationOutcome'

// Operations are declared as data; `api/operations.ts` lists them.

export interface OperationCall {
  readonly operation: Pick<Operation, 'name' | 'standard' | 'inputs'>
  readonly services: Services
  readonly principal: Principal
  readonly request: FhirRequest
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
  /** Where the standard defines it: its type, Resource, the CapabilityStatement, or the bulk data guide. */
  readonly standard?: 'type' | 'Resource' | 'CapabilityStatement' | 'bulk'
  /** Canonical of the definition in another guide. */
  readonly definition?: string
  readonly methods: readonly string[]
  /** Read by `readInputs`: in the query, and in the Parameters or the JSON object of a POST. */
  readonly inputs?: InputTexts
  /** For the description of the API; `query` has the parameters that the operation reads by itself. */
  readonly text: CallText
  /** GET has side effects, so HEAD is not allowed (RFC 9110 §9.2.1). */
  readonly acts?: true
  /** Only reads, so a replica may answer. */
  readonly onlyReads?: true
  /** The format is fixed, regardless of `Accept` and `_pretty`. */
  readonly ownFormat?: true
  /** Required area of the login's scope; the operation checks further rights. */
  readonly area?: Area
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

/** Method and path below the FHIR base. Errors: 404 unknown path or operation, 400 unknown type, 405 with Allow. */
export type FindRoute = (method: string, path: string) => Route

// The words of the description of the API: a line for each call, by method and path. A field is written as
// `type: meaning`, with `!` after the type where it is required.

/**
 * `text` is any primitive with a JSON string; `reference` also accepts a Reference, `token` a search token, Coding or
 * CodeableConcept. `refused` is in the standard but unsupported here.
 */
export type InputKind =
  | 'text'
  | 'reference'
  | 'token'
  | 'whole'
  | 'flag'
  | 'object'
  | 'resource'
  | 'part'
  | 'refused'

/** Name → `kind!*: Description`; `!` is required, `*` may be repeated. `input.type` is a part of `input`. */
export type InputTexts = Readonly<Record<string, `${InputKind}${'' | '!' | '*' | '!*'}: ${string}`>>

/** Name → `text!: Description`; the types are text, flag, whole, list, object, or the name of a schema. */
export type FieldTexts = Readonly<Record<string, string>>

export interface CallText {
  readonly summary: string
  readonly description?: string
  readonly query?: FieldTexts
  /** Fields of a JSON object or of a form, or the name of a schema, or of a media type for a body as it comes. */
  readonly body?: FieldTexts | string
  readonly example?: unknown
  /** The same for the answer. */
  readonly answer?: FieldTexts | string
  readonly answers?: unknown
  /** 200 where it is left out. */
  readonly status?: number
}

/** Depth of nested bot calls; bots cannot set it, because the worker overwrites it. */
export const DEPTH_HEADER = 'x-bot-depth'
export const MAX_DEPTH = 10

/** Returns 0 for a request that no bot has made. */
export function botCallDepth({ headers }: Pick<FhirRequest, 'headers'>): number {
  const depth = Number(headers[DEPTH_HEADER] ?? 0)
  return Number.isInteger(depth) && depth > 0 ? depth : 0
}
