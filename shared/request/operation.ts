/** An operation states what it is as data, then does it; `api/operations.ts` lists them all. */
import type { Area } from '../access/areas.ts'
import type { Principal } from '../access/principal.ts'
import type { Services } from '../services.ts'
import type { FhirReply, FhirRequest } from './request.ts'

export interface OperationCall {
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
  /** The reply has a form of its own, which `Accept` and `_pretty` do not change. */
  readonly ownFormat?: true
  /** The scope of the login has to reach it; whether the login may do it is for the operation to say. */
  readonly area?: Area
  /** It charges the load units of what it does by itself. */
  readonly countsLoad?: true
  run(call: OperationCall): Promise<FhirReply>
}

export interface OperationTarget {
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
