/** The state of one GraphQL request. */

import type { Resource } from '../fhir/resource.ts'
import type { SearchRequest } from '../query/search-request.ts'
import type { Interaction } from '../request/request.ts'
import type { SearchPage } from '../store/rows/version.ts'
import type { Account } from './account.ts'
import type { Slices } from './document/directives.ts'
import type { Levels } from './levels.ts'

/** Resources in the order of their pages; those of a long page are parsed when their turn comes. */
export interface ResourcePage extends Omit<SearchPage, 'versions'> {
  readonly resources: readonly (Resource | Promise<Resource>)[]
}

/** As graphql-js hands them to a resolver. */
export type Given = Readonly<Record<string, unknown>>

/** A type and not an interface: graphql-http wants it assignable to a record. */
export type GraphqlContext = {
  readonly interaction: Interaction
  readonly levels: Levels
  readonly account: Account
  /** The resource that an element or a contained resource belongs to. */
  readonly owners: Owners
  readonly used: { searches: number; resources: number; evaluations: number }
  /** Shared by the searches of equal arguments. */
  readonly requests: Map<string, Promise<SearchRequest>>
  /** Resources that were read by id; a write empties it. */
  readonly loads: Map<string, Promise<Resource | undefined>>
  /** The same where it must be there. */
  readonly required: Map<string, Promise<Resource>>
  /** Resources that searches found and that a read by id would show alike. */
  readonly found: Map<string, Resource>
  readonly slices: Slices
  /** Decimals of resources are read as they are written. */
  readonly keepsDecimals: boolean
}

export interface Owners {
  get(part: object): Resource | undefined
  set(part: object, owner: Resource): void
}
