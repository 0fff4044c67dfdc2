/** Reads of resources as a Principal: in its own and linked Projects, on the primary or a replica. */

import { criteriaSql, readDecided } from '../access/decisions/decide.ts'
import type { Decisions } from '../access/decisions/decide-in-sql.ts'
import { compileGrant, createTypeScope } from '../access/decisions/grant-predicates.ts'
import { toIndexedRow } from '../access/decisions/match-row.ts'
import { type Grant, INTERACTIONS, plainGrant } from '../access/grant.ts'
import type { Principal } from '../access/principal.ts'
import { HttpError, notFound } from '../core/errors.ts'
import type { Resource } from '../fhir/resource.ts'
import {
  type CompartmentPage,
  type CompartmentRequest,
  readCompartment,
} from '../search/compartment.ts'
import { searchDeleted } from '../search/deleted.ts'
import type { SearchRequest } from '../search/language/search-request.ts'
import { type Explanation, explain, search, searchMany, searchTypes } from '../search/page.ts'
import {
  countPerReference,
  type ReferenceSearch,
  searchPerReference,
} from '../search/per-reference.ts'
import {
  BINARY,
  readBinaries,
  requireVisible,
  visibleHistory,
  visibleVersions,
} from './binaries.ts'
import { history, typeHistory } from './read/history.ts'
import {
  type ResourceId,
  read,
  readLinked,
  readMany,
  readManyLinked,
  readVersion,
} from './read/read.ts'
import { type MetaSummary, metaSummary } from './read/summaries.ts'
import { indexRows, type StoreContext, withAbortSignal } from './rows/context.ts'
import type {
  BinaryHead,
  HistoryPage,
  HistoryRequest,
  SearchPage,
  Version,
} from './rows/version.ts'

export interface ReplicaStore {
  readonly store: StoreContext
  readonly failed: () => void
}

export class Reads {
  protected readonly store: StoreContext
  readonly #replica: ReplicaStore | undefined

  constructor(store: StoreContext, replica: ReplicaStore | undefined) {
    this.store = store
    this.#replica = replica
  }

  /** Errors: 403, 404 unknown or not visible, 410 deleted. One SQL statement. */
  read(principal: Principal, type: string, id: string): Promise<Version> {
    return this.#read(undefined, (store) =>
      readLinked(principal, type, async (reader) => {
        const version = await read(store, reader, type, id)
        return type === BINARY ? requireVisible(store, reader, version) : version
      }),
    )
  }

  /** In the order asked; undefined for unknown, invisible or deleted ids. One SQL statement. */
  readMany(
    principal: Principal,
    references: readonly ResourceId[],
    signal?: AbortSignal,
  ): Promise<readonly (Version | undefined)[]> {
    const hasBinary = references.some(({ type }) => type === BINARY)
    return this.#read(signal, (store) =>
      readManyLinked(principal, references, async (reader, asked) => {
        const versions = await readMany(store, reader, asked)
        return hasBinary ? visibleVersions(store, reader, versions) : versions
      }),
    )
  }

  /** Leaves out unknown and invisible Binaries. Two SQL statements at most. */
  readBinaries(
    principal: Principal,
    ids: readonly string[],
  ): Promise<ReadonlyMap<string, BinaryHead>> {
    return this.#read(undefined, (store) => readBinaries(store, principal, ids))
  }

  readVersion(principal: Principal, type: string, id: string, ver: string): Promise<Version> {
    return this.#read(undefined, (store) =>
      readLinked(principal, type, async (reader) => {
        const version = await readVersion(store, reader, { type, id, ver })
        return type === BINARY ? requireVisible(store, reader, version) : version
      }),
    )
  }

  /** Errors: 403, 404 for an id that was never used or is not visible, 400 for a bad cursor. */
  history(
    principal: Principal,
    type: string,
    id: string,
    request: HistoryRequest,
  ): Promise<HistoryPage> {
    return this.#read(undefined, (store) =>
      readLinked(principal, type, async (reader) => {
        const page = await history(store, reader, type, { id, request })
        return type === BINARY ? visibleHistory(store, reader, page) : page
      }),
    )
  }

  /** Type undefined: all types. One SQL statement; another for a total. */
  historyOf(
    principal: Principal,
    type: string | undefined,
    request: HistoryRequest,
  ): Promise<HistoryPage> {
    return this.#read(undefined, async (store) => {
      const page = await typeHistory(store, principal, type, request)
      const versions = await visibleVersions(store, principal, page.versions)
      return { ...page, versions: versions.filter((version) => version !== undefined) }
    })
  }

  /** Type undefined: all types. Errors: 403. */
  metaSummary(principal: Principal, type: string | undefined): Promise<MetaSummary> {
    return this.#read(undefined, (store) => metaSummary(store, principal, type))
  }

  /** One SQL statement; one more for `_total` and per step of includes. `signal` cancels them. Errors: its reason. */
  search(principal: Principal, request: SearchRequest, signal?: AbortSignal): Promise<SearchPage> {
    return this.#read(signal, (store) => search(store, principal, request))
  }

  /** Shared parameters come from the first request. */
  searchTypes(
    principal: Principal,
    requests: readonly SearchRequest[],
    signal?: AbortSignal,
  ): Promise<SearchPage> {
    return this.#read(signal, (store) => searchTypes(store, principal, requests))
  }

  /** Like `search` for each; an invalid request fails alone. One statement for 200. */
  searchMany(
    principal: Principal,
    requests: readonly SearchRequest[],
  ): Promise<readonly PromiseSettledResult<SearchPage>[]> {
    return this.#read(undefined, (store) => searchMany(store, principal, requests))
  }

  /** The deletions for `_deleted=true`. One statement, one more for a total. */
  searchDeleted(principal: Principal, request: SearchRequest): Promise<SearchPage> {
    return this.#read(undefined, (store) => searchDeleted(store, principal, request))
  }

  /** A page per reference, in their order. One SQL statement; one more for each common one. */
  searchPerReference(
    principal: Principal,
    wanted: ReferenceSearch,
    maxRows: number,
    signal?: AbortSignal,
  ): Promise<readonly SearchPage[]> {
    return this.#read(signal, (store) => searchPerReference(store, principal, wanted, maxRows))
  }

  /** A count per reference, in their order. One SQL statement. */
  countPerReference(
    principal: Principal,
    wanted: ReferenceSearch,
    signal?: AbortSignal,
  ): Promise<readonly number[]> {
    return this.#read(signal, (store) => countPerReference(store, principal, wanted))
  }

  /** All types of a compartment in one order. Errors: 403, 404, 410. Two SQL statements. */
  compartment(principal: Principal, request: CompartmentRequest): Promise<CompartmentPage> {
    return this.#read(undefined, (store) => readCompartment(store, principal, request))
  }

  /** Runs a search on the primary and explains its plan. Errors: like `search`. */
  explain(principal: Principal, request: SearchRequest): Promise<Explanation> {
    return explain(this.store, principal, request)
  }

  /**
   * Tests resources that are not stored, without a statement. Returns false for conditions that need PostgreSQL.
   */
  finder(
    principal: Principal,
    { type, conditions }: SearchRequest,
  ): (resource: Resource) => boolean {
    if (conditions.length === 0) return () => true
    const { store } = this
    const place = createTypeScope(store.keys, principal, type, principal.project.number)
    const grant = { ...plainGrant(type, ['search'], 'search'), criteria: conditions }
    const { matches } = compileGrant(place, grant)
    if (matches === undefined) return () => false
    return (resource) => {
      const rows = indexRows(store, place.project, resource, { parameters: place.own })
      return matches(toIndexedRow(store.keys.rowId(type, resource.id ?? ''), rows))
    }
  }

  /** Returns the policy's decision for every interaction. Errors: 404. */
  async decisions(principal: Principal, type: string, id: string): Promise<Decisions> {
    const found = await readDecided(this.store, principal, type, { id, interactions: INTERACTIONS })
    if (found === undefined) throw notFound()
    return found.decisions
  }

  /** Returns a grant's condition on rows `r`, without values; `true`: none. */
  criteriaSql(principal: Principal, type: string, grant: Grant): string {
    return criteriaSql(this.store, principal, type, grant)
  }

  /** Validates a resource as a write would, without other checks. Errors: 400. */
  requireForm({ project }: Principal, resource: Resource): void {
    const rule = this.store.rules.get(resource.resourceType)
    rule?.checkForm?.(resource)
    rule?.checkParameters?.(resource, project.parameters)
  }

  /** Repeats failed replica reads on the primary, unless the caller is at fault or has gone. */
  async #read<T>(
    signal: AbortSignal | undefined,
    work: (store: StoreContext) => Promise<T>,
  ): Promise<T> {
    if (this.#replica === undefined) return work(withAbortSignal(this.store, signal))
    try {
      return await work(withAbortSignal(this.#replica.store, signal))
    } catch (error) {
      if (error instanceof HttpError && error.status < 500) throw error
      if (signal?.aborted) throw error
      this.#replica.failed()
      return work(withAbortSignal(this.store, signal))
    }
  }
}
