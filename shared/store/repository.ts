/** The one door to resources: every read and write, as a Principal. */

import type { Decisions } from '../access/decisions/decide-in-sql.ts'
import type { Grant } from '../access/grant.ts'
import type { Principal } from '../access/principal.ts'
import { linkedProjects } from '../access/project-context.ts'
import { forbidden, HttpError } from '../errors.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Mail } from '../platform/mail/mails.ts'
import type { Connection } from '../platform/postgres/statement.ts'
import type { SearchRequest } from '../query/search-request.ts'
import type { MetaSummary } from './read/meta-summary.ts'
import type { Store, Transact } from './rows/context.ts'
import type {
  BinaryHead,
  Deletion,
  HistoryPage,
  HistoryRequest,
  SearchPage,
  Version,
  WriteOptions,
  WriteResult,
} from './rows/version.ts'
import type { CompartmentPage, CompartmentRequest } from './search/compartment.ts'
import type { Explanation } from './search/page.ts'
import type { ReferenceSearch } from './search/per-reference.ts'
import type { PlannedCreates } from './write/planned-rows.ts'

export interface ResourceId {
  readonly type: string
  readonly id: string
}

export interface Repository {
  /** Errors: 403 not allowed, 400 bad reference, 409 unique violation. One SQL statement. */
  create(principal: Principal, resource: Resource, options?: WriteOptions): Promise<WriteResult>
  /**
   * Adds a create under the id of the resource to those that a transaction is to write soon; false where only the
   * write itself can tell. Errors: as create.
   */
  planCreate(principal: Principal, resource: Resource, plans: PlannedCreates): Promise<boolean>
  /** Errors: 403, 404 unknown or not visible, 410 deleted. One SQL statement. */
  read(principal: Principal, type: string, id: string): Promise<Version>
  /** In the order asked; undefined where unknown, invisible or deleted. One SQL statement. */
  readMany(
    principal: Principal,
    references: readonly ResourceId[],
    signal?: AbortSignal,
  ): Promise<readonly (Version | undefined)[]>
  /** Reads the Binaries that exist and are visible. Two SQL statements at most. */
  readBinaries(
    principal: Principal,
    ids: readonly string[],
  ): Promise<ReadonlyMap<string, BinaryHead>>
  readVersion(principal: Principal, type: string, id: string, ver: string): Promise<Version>
  /** Errors: 403, 404 for an id that was never used or is not visible, 400 for a bad cursor. */
  history(
    principal: Principal,
    type: string,
    id: string,
    request: HistoryRequest,
  ): Promise<HistoryPage>
  /** Reads the history of a type, or of all types when undefined. One SQL statement; a second one for a total. */
  historyOf(
    principal: Principal,
    type: string | undefined,
    request: HistoryRequest,
  ): Promise<HistoryPage>
  /** Errors: 403, 404, 412. An unchanged body writes nothing. */
  update(principal: Principal, resource: Resource, options?: WriteOptions): Promise<WriteResult>
  /** Reads, applies `change`, writes; a lost race re-reads and applies it again. */
  patch(
    principal: Principal,
    target: ResourceId,
    change: (current: Resource) => Resource | Promise<Resource>,
    options?: WriteOptions,
  ): Promise<WriteResult>
  /** Returns the policy's rulings on a resource, for every interaction. Errors: 404. */
  rulings(principal: Principal, type: string, id: string): Promise<Decisions>
  /** Returns a grant's condition on rows `r`, without values; `true`: none. */
  criteriaSql(principal: Principal, type: string, grant: Grant): string
  /** Idempotent; the version returned is the deletion. */
  delete(principal: Principal, type: string, id: string, options?: WriteOptions): Promise<Deletion>
  /** One SQL statement; one more for `_total` and for each step of includes. */
  search(
    principal: Principal,
    request: SearchRequest,
    /** Cancels its statements in PostgreSQL. Errors: its reason. */
    signal?: AbortSignal,
  ): Promise<SearchPage>
  /** Answers whether a search would find a resource that is not stored. Costs no statement. */
  finder(principal: Principal, request: SearchRequest): (resource: Resource) => boolean
  /** Checks a resource as its write would, as far as that looks at nothing else. Errors: 400. */
  requireForm(principal: Principal, resource: Resource): void
  /** The deletions that a search with `_deleted=true` asks for. One statement, one more for a total. */
  searchDeleted(principal: Principal, request: SearchRequest): Promise<SearchPage>
  /** How a search would be answered, by running it. Errors: as `search`. */
  explain(principal: Principal, request: SearchRequest): Promise<Explanation>
  /** The same over several types, one request each; what they share is taken from the first. */
  searchTypes(
    principal: Principal,
    requests: readonly SearchRequest[],
    signal?: AbortSignal,
  ): Promise<SearchPage>
  /** All types of a compartment in one order. Errors: 403, 404, 410. Two SQL statements. */
  compartment(principal: Principal, request: CompartmentRequest): Promise<CompartmentPage>
  /** If-None-Exist: 0 matches creates, 1 returns it as `unchanged`, more is 412. Racing calls never make twins. */
  createConditional(
    principal: Principal,
    resource: Resource,
    condition: SearchRequest,
    options?: WriteOptions,
  ): Promise<WriteResult>
  /** `PUT Type?query`. */
  updateConditional(
    principal: Principal,
    resource: Resource,
    condition: SearchRequest,
    options?: WriteOptions,
  ): Promise<WriteResult>
  /** `DELETE Type?query`; more matches than `limit` is 412. */
  deleteConditional(
    principal: Principal,
    condition: SearchRequest,
    limit: number,
  ): Promise<readonly Deletion[]>
  /** As `search` for each; a request that cannot be answered fails alone. One statement for 200. */
  searchMany(
    principal: Principal,
    requests: readonly SearchRequest[],
  ): Promise<readonly PromiseSettledResult<SearchPage>[]>
  /** A page for each of many references, in their order. One SQL statement; one more for each that is common. */
  searchPerReference(
    principal: Principal,
    search: ReferenceSearch,
    maxRows: number,
    signal?: AbortSignal,
  ): Promise<readonly SearchPage[]>
  /** How many there are for each of many references, in their order. One SQL statement. */
  countPerReference(
    principal: Principal,
    search: ReferenceSearch,
    signal?: AbortSignal,
  ): Promise<readonly number[]>
  /** Lists what is in use in `meta` of a type, or of all. Errors: 403. */
  metaSummary(principal: Principal, type: string | undefined): Promise<MetaSummary>
  /**
   * The statements of a feature, made by `open` once for this Repository. They run where those of the Repository
   * run, so inside a transaction they are a part of it.
   */
  feature<T>(open: (store: Store, transact: Transact) => T): T
  /**
   * All or nothing: everything `work` does through the Repository it is given. What PostgreSQL cannot
   * serialise is run again from the start, up to three times, then 409.
   */
  transaction<T>(work: (repository: Transaction) => Promise<T>, guard?: Guard): Promise<T>
  /** For work that runs side by side: rows that are read by id, or deleted, in one turn are one statement. */
  sideBySide(): Repository
}

/** Conditions that no other conditional write of equal criteria may decide on meanwhile. */
export interface Guard {
  readonly principal: Principal
  readonly conditions: readonly SearchRequest[]
  /** All reads of the transaction see one state; else each statement sees what is there by then. */
  readonly oneState: boolean
}

export interface Transaction extends Repository {
  /** Sent by a worker once all is committed. One SQL statement. */
  addMail(projectId: string, mail: Mail): Promise<string>
  /** Statements about what is no resource, such as the jobs that resources name; they commit with the rest. */
  beside<T>(work: (connection: Connection) => Promise<T>): Promise<T>
  /** False when one was not written: the transaction must not be committed. Errors: for an id that is taken. */
  createPlanned(principal: Principal, plans: PlannedCreates): Promise<boolean>
  /** Rows that are read by id later on are asked for now, in the same round trip as what comes next. */
  readAhead(principal: Principal, references: readonly ResourceId[]): void
  /**
   * Runs pieces of work side by side, each through a Repository of its own: their reads by id are one
   * statement, their inserts one, their updates one, their deletions one. Throws the failure of the
   * first that failed, in their order, as `failed` makes it; 400 for references that do not resolve.
   */
  together<T>(
    pieces: readonly ((repository: Repository) => Promise<T>)[],
    failed: (index: number, error: unknown) => unknown,
  ): Promise<T[]>
}

/** A Repository whose reads go on in linked Projects, as far as those share the type. */
export function withLinked(own: Repository): Repository {
  return {
    ...own,
    read: (principal, type, id) =>
      readLinked(principal, type, (reader) => own.read(reader, type, id)),
    readMany: (principal, references, signal) => readManyLinked(own, principal, references, signal),
    readVersion: (principal, type, id, ver) =>
      readLinked(principal, type, (reader) => own.readVersion(reader, type, id, ver)),
    history: (principal, type, id, request) =>
      readLinked(principal, type, (reader) => own.history(reader, type, id, request)),
    planCreate: async (principal, resource, plans) =>
      readersIn(principal, resource.resourceType).length === 0 &&
      own.planCreate(principal, resource, plans),
    async update(principal, resource, options) {
      const { resourceType, id = '' } = resource
      await requireOwn(own, principal, resourceType, id)
      return own.update(principal, resource, options)
    },
    async patch(principal, target, change, options) {
      await requireOwn(own, principal, target.type, target.id)
      return own.patch(principal, target, change, options)
    },
    async delete(principal, type, id, options) {
      await requireOwn(own, principal, type, id)
      return own.delete(principal, type, id, options)
    },
  }
}

/** Errors: those of the own Project, when no other has it. */
function readLinked<T>(
  principal: Principal,
  type: string,
  read: (reader: Principal) => Promise<T>,
): Promise<T> {
  const readers = readersIn(principal, type)
  return readers.length === 0 ? read(principal) : readAny(principal, readers, read)
}

async function readAny<T>(
  principal: Principal,
  readers: readonly Principal[],
  read: (reader: Principal) => Promise<T>,
): Promise<T> {
  try {
    return await read(principal)
  } catch (error) {
    if (!isUnknown(error)) throw error
    for (const reader of readers) {
      const found = await read(reader).catch(orUndefined)
      if (found !== undefined) return found
    }
    throw error
  }
}

/** Errors: 403 for what only a linked Project has. */
async function requireOwn(
  own: Repository,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  const readers = readersIn(principal, type)
  if (readers.length === 0) return
  const [mine] = await own.readMany(principal, [{ type, id }])
  if (mine !== undefined) return
  for (const reader of readers) {
    const [theirs] = await own.readMany(reader, [{ type, id }])
    if (theirs !== undefined) throw forbidden()
  }
}

/** One statement, and one more for each linked Project while something is missing. */
async function readManyLinked(
  own: Repository,
  principal: Principal,
  references: readonly ResourceId[],
  signal: AbortSignal | undefined,
): ReturnType<Repository['readMany']> {
  const found = [...(await own.readMany(principal, references, signal))]
  for (const { number } of principal.project.linked ?? []) {
    const missing = references.flatMap((reference, place) => {
      const readers = found[place] === undefined ? readersIn(principal, reference.type) : []
      const reader = readers.find(({ project }) => project.number === number)
      return reader === undefined ? [] : [{ reference, place, reader }]
    })
    const [first] = missing
    if (first === undefined) continue
    const asked = missing.map(({ reference }) => reference)
    const more = await own.readMany(first.reader, asked, signal)
    for (const [i, { place }] of missing.entries()) found[place] = more[i]
  }
  return found
}

/** The Principal as a reader of those linked Projects that share a type. */
function readersIn(principal: Principal, type: string): readonly Principal[] {
  return linkedProjects(principal, type).map(({ id, number, units }) => ({
    ...principal,
    isProjectAdmin: false,
    // Its rows know nothing of the search parameters of the Principal's own Project.
    project: { ...principal.project, id, number, units, linked: [], parameters: undefined },
  }))
}

function isUnknown(error: unknown): boolean {
  return error instanceof HttpError && error.status === 404
}

function orUndefined(error: unknown): undefined {
  if (isUnknown(error) || (error instanceof HttpError && error.status === 410)) return undefined
  throw error
}
