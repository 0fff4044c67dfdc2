/**
 * The write of one resource; a lost race restarts it:
 *
 *   authorize  rights, fields and the rule of the type; a change is decided on the version that it replaces
 *   prepare    the version and its index rows, which the policy decides on again
 *   write      one statement, shared with concurrent writes (rows/statements.ts)
 *   reply      the version, redacted for the caller
 */

import {
  type DecidedRow,
  decideKnownRow,
  hiddenBy,
  readDecided,
} from '../../access/decisions/decide.ts'
import type { AccessDecision } from '../../access/decisions/decide-in-sql.ts'
import {
  decideCreate,
  decideUpdate,
  decideWritten,
  hiddenAfter,
  readonlyBy,
} from '../../access/decisions/decide-write.ts'
import { keep, keptFields, rejectMasks } from '../../access/fields/fields.ts'
import { keepPaths } from '../../access/paths.ts'
import type { Principal } from '../../access/principal.ts'
import {
  badRequest,
  conflict,
  forbidden,
  gone,
  HttpError,
  notFound,
  OffloadRequired,
  preconditionFailed,
  RaceLost,
  tooLarge,
} from '../../core/errors.ts'
import { LOST, retryOnConflict } from '../../core/retry.ts'
import type { Meta, Reference, Resource } from '../../fhir/resource.ts'
import { redactFor } from '../read/read.ts'
import {
  normalId,
  readRow,
  requireAllowed,
  rowKey,
  rowScope,
  type StoreContext,
} from '../rows/context.ts'
import { readOwnParameters } from '../rows/custom-parameters.ts'
import { parseVersion, toVersion, type VersionRow } from '../rows/rows.ts'
import type { Version, WriteOptions, WriteResult } from '../rows/version.ts'
import type { WritePlace } from '../rows/write-rows.ts'
import {
  type AuthorizedCreate,
  accountsGiven,
  applyRule,
  authorizeCreate,
  distinctAccounts,
  givenId,
  inheritedAccounts,
  newAccounts,
} from './authorize.ts'
import {
  isTaken,
  isUnchanged,
  type Prepared,
  prepare,
  type Submitted,
  submit,
  toWriteResult,
} from './prepare.ts'

const INTERACTIONS = ['read', 'update'] as const

/** A version to write, and its governing grant; undefined: PostgreSQL decides after the write. */
interface Decided {
  readonly prepared: Prepared
  readonly decision: AccessDecision
}

/** Errors: 400, 403, 409. Two more statements if it inherits accounts unknown to this process. */
export async function create(
  store: StoreContext,
  principal: Principal,
  resource: Resource,
  options: WriteOptions = {},
): Promise<WriteResult> {
  const { resourceType: type } = resource
  const authorized = await authorizeCreate(store, principal, resource, options)
  const { id } = authorized
  const write = (decided: Decided) =>
    submit(store, decided.prepared).catch((error: unknown) => {
      throw isTaken(error) ? conflict(`${type}/${id} exists already`) : error
    })
  let decided = await prepareCreate(authorized)
  let written = await write(decided)
  if (written.kind === 'held') {
    decided = prepareDecided(authorized, await inherited(authorized))
    written = await write(decided)
  }
  if (written.kind !== 'written') throw new Error('An insert wrote no row')
  const { prepared, decision } = decided
  const governing = await decideWritten(store, principal, 'create', {
    prepared,
    decided: decision,
    stored: undefined,
  })
  const result = toWriteResult(store, prepared, id, { lastUpdated: written.at, outcome: 'created' })
  return redactFor(principal, result, hiddenBy(governing))
}

/** Reads the accounts of its patients first if they are known to hold some, or decide. Errors: 400, 403. */
async function prepareCreate(authorized: AuthorizedCreate): Promise<Decided> {
  const { store, inheritsFrom } = authorized
  if (inheritsFrom.length === 0) return prepareDecided(authorized, [])
  if (inheritsFrom.some((id) => store.holders.has(id))) {
    return prepareDecided(authorized, await inherited(authorized))
  }
  try {
    return prepareDecided(authorized, undefined)
  } catch (error) {
    if (!(error instanceof HttpError) || error.status !== 403) throw error
    const accounts = await inherited(authorized)
    if (accounts.length === 0) throw error
    return prepareDecided(authorized, accounts)
  }
}

/** `accounts` undefined: the statement writes nothing if a patient holds some. Errors: 400, 403. */
export function prepareDecided(
  authorized: AuthorizedCreate,
  accounts: readonly Reference[] | undefined,
): Decided {
  const { store, principal, options, resource, id, project, projectId, own, inheritsFrom } =
    authorized
  const given = accountsGiven(principal, resource.resourceType)
  const place: WritePlace = {
    kind: 'insert',
    ver: 1,
    after: undefined,
    project,
    projectId,
    id,
    own,
    accounts: distinctAccounts([...given, ...(accounts ?? [])]),
    ...(accounts === undefined ? { patientIds: inheritsFrom } : {}),
  }
  return decideCreate(store, principal, resource, (next) =>
    prepare({ store, principal, resource: next, place, stored: undefined, options }),
  )
}

function inherited({
  store,
  project,
  inheritsFrom,
}: AuthorizedCreate): Promise<readonly Reference[]> {
  return inheritedAccounts(store, project, inheritsFrom)
}

/** Errors: 400, 403, 404, 409, 412. Retries a lost race on the new state. */
export async function update(
  store: StoreContext,
  principal: Principal,
  resource: Resource,
  options: WriteOptions = {},
): Promise<WriteResult> {
  const { resourceType: type } = resource
  const id = givenId(resource.id ?? '')
  return change({ store, principal, type, id, options, next: () => resource })
}

interface Patch {
  readonly type: string
  readonly id: string
  readonly apply: (current: Resource) => Resource | Promise<Resource>
  readonly options: WriteOptions
}

/** Like update with the result of `apply` on the live version. Errors: also 404 or 410 without one. */
export async function patch(
  store: StoreContext,
  principal: Principal,
  { type, id, apply, options }: Patch,
): Promise<WriteResult> {
  const next: Next = (row, live, hidden) => {
    if (row === undefined) throw notFound()
    if (live === undefined) throw gone()
    return apply(parseVersion(redactFor(principal, live, hidden)))
  }
  return change({ store, principal, type, id: givenId(id), options, next })
}

/** Returns the resource to write; some paths of the live version are hidden. */
type Next = (
  row: VersionRow | undefined,
  live: Version | undefined,
  hidden: readonly string[],
) => Resource | Promise<Resource>

interface Wanted {
  readonly store: StoreContext
  readonly principal: Principal
  readonly type: string
  readonly id: string
  readonly options: WriteOptions
  readonly next: Next
}

async function change(wanted: Wanted): Promise<WriteResult> {
  const { store, principal, type, id } = wanted
  requireAllowed(principal, type, 'update')
  requireAllowed(principal, type, 'read')
  const inTransaction = store.deferred !== undefined
  const run = async () =>
    (await changeRecent(wanted)) ??
    (await retryOnConflict(() => changeStored(wanted), { inTransaction }))
  // A transaction may hold the row that its predecessor in the queue waits for.
  if (inTransaction) return run()
  const { project } = rowScope(principal, type)
  return store.turns(store.keys.self(project, type, `${type}/${id}`), run)
}

async function changeStored(wanted: Wanted): Promise<WriteResult | typeof LOST> {
  const { store, principal, type, id, options } = wanted
  const before = await readDecided(store, principal, type, { id, interactions: INTERACTIONS })
  const planned = await planChange(wanted, before)
  const ended = planned.kind === 'planned' ? await writeChange(store, principal, planned) : planned
  if (ended.kind === 'done') return ended.result
  if (options.ifMatch) throw preconditionFailed()
  return LOST
}

/**
 * Changes a cached version without a read; undefined on a miss, and for any end but a written version. The change is
 * then planned again, on the stored version: its errors count, and `options.check` and the write rule run twice.
 */
async function changeRecent(wanted: Wanted): Promise<WriteResult | undefined> {
  const { store, principal, type, id } = wanted
  const row = store.recent?.get(rowKey(store, principal, type, id))
  if (row === undefined) return undefined
  const before = await decideKnownRow(store, principal, row, INTERACTIONS)
  const planned = before && (await planChange(wanted, before).catch(() => undefined))
  if (planned?.kind === 'planned') {
    const ended = await writeChange(store, principal, planned)
    if (ended.kind === 'done') return ended.result
  }
  store.recent?.drop(row)
  return undefined
}

/** `lost`: another write came first, so the change must be planned again. */
type Ended = { readonly kind: 'done'; readonly result: WriteResult } | { readonly kind: 'lost' }

interface PlannedUpdate extends Decided {
  readonly kind: 'planned'
  readonly isLive: boolean
  readonly stored: Resource | undefined
  /** Paths of the version before that the caller does not see. */
  readonly hidden: readonly string[]
  readonly id: string
}

/** Ends at once for a new resource, which it creates, and for an unchanged one. */
async function planChange(
  wanted: Wanted,
  before: DecidedRow | undefined,
): Promise<PlannedUpdate | Ended> {
  const { store, principal, type, id, options, next } = wanted
  const row = before?.row
  const { read: seen, update: changing } = before?.decisions ?? {}
  // An If-Match on a hidden resource fails as on an absent one.
  if (row !== undefined && seen === undefined) {
    throw options.ifMatch ? preconditionFailed() : notFound()
  }
  if (row !== undefined && changing === undefined) {
    throw forbidden('criteria of every entry for update, on the stored version')
  }
  const live = row !== undefined && row.content !== null ? toVersion(row) : undefined
  if (options.ifMatch && !(live && options.ifMatch.includes(live.ver))) throw preconditionFailed()
  if (options.onlyIfAbsent && live) throw preconditionFailed(`${type}/${id} exists already`)
  await options.check?.(live)
  if (contentLength(live) > (options.mainThreadLimit ?? Number.POSITIVE_INFINITY))
    throw new OffloadRequired()
  const hidden = hiddenBy(seen)
  const resource = await next(row, live, hidden)
  if (resource.resourceType !== type) throw badRequest('Incorrect resource type')
  if (normalId(resource.id ?? '') !== id) throw badRequest('Incorrect resource ID')
  if (row === undefined) return createAt(store, principal, resource, options)
  return planReplacement(wanted, { row, live, hidden, changing, resource })
}

interface Replacement {
  readonly row: VersionRow
  /** Absent after a deletion. */
  readonly live: Version | undefined
  readonly hidden: readonly string[]
  readonly changing: AccessDecision
  readonly resource: Resource
}

async function planReplacement(
  { store, principal, type, id, options }: Wanted,
  { row, live, hidden, changing, resource }: Replacement,
): Promise<PlannedUpdate | Ended> {
  const stored = live && parseVersion(live)
  const { project: projectId = '' } = JSON.parse(`{${row.meta_ext}}`) as Meta
  const own = await readOwnParameters(store.ownParameters, store.connection, principal, row.project)
  rejectMasks(resource)
  const place: WritePlace = {
    kind: live ? 'update' : 'insert',
    own,
    project: row.project,
    projectId,
    id: live?.id ?? id,
    ver: row.ver + 1,
    after: row.lu,
    ...(live ? {} : { accounts: await newAccounts(store, principal, row.project, resource) }),
  }
  const allowed = keepPaths(keep(resource, stored, keptFields(principal, type)), stored, [
    ...hidden,
    ...hiddenBy(changing),
    ...readonlyBy(changing),
  ])
  const kept = store.rules.get(type)?.file?.(allowed) ?? allowed
  const attempt = { store, principal, interaction: 'update', id, isNew: false } as const
  const admitted = await applyRule(
    { ...attempt, before: stored, sent: resource, kept },
    { project: row.project, own },
    changing,
  )
  const prepared = prepare({ store, principal, resource: admitted, place, stored, options })
  // Many small changes must not exceed the size limit of a request.
  const { largest = Number.POSITIVE_INFINITY } = options
  if (prepared.write.tail.length > Math.max(largest, contentLength(live))) throw tooLarge()
  if (live && stored && isUnchanged(live, stored, prepared)) {
    const result = { ...redactFor(principal, live, hidden), outcome: 'unchanged' } as const
    return { kind: 'done', result }
  }
  const decision = decideUpdate(store, principal, prepared, stored)
  const isLive = live !== undefined
  return { kind: 'planned', prepared, isLive, stored, decision, hidden, id: place.id }
}

function contentLength(version: Version | undefined): number {
  return version?.content?.length ?? 0
}

async function writeChange(
  store: StoreContext,
  principal: Principal,
  { prepared, isLive, stored, decision, hidden, id }: PlannedUpdate,
): Promise<Ended> {
  const written = await submit(store, prepared).catch((error: unknown): Submitted => {
    if (isLive || !isTaken(error)) throw error
    // Another caller has restored the deleted resource. A failed statement ends a transaction.
    if (store.deferred) throw new RaceLost()
    return { kind: 'lost' }
  })
  if (written.kind !== 'written') return { kind: 'lost' }
  const decided = { prepared, decided: decision, stored }
  const governing = await decideWritten(store, principal, 'update', decided)
  const left = hiddenAfter(store, principal, prepared)
  const result = toWriteResult(store, prepared, id, { lastUpdated: written.at, outcome: 'updated' })
  const shown = redactFor(principal, result, [...hidden, ...hiddenBy(governing), ...left])
  return { kind: 'done', result: shown }
}

async function createAt(
  store: StoreContext,
  principal: Principal,
  resource: Resource,
  options: WriteOptions,
): Promise<Ended> {
  const mayChoose = principal.isSuperAdmin || principal.project.updateAsCreate || options.keepId
  if (!mayChoose) throw notFound()
  try {
    const result = await create(store, principal, resource, { ...options, keepId: true })
    return { kind: 'done', result }
  } catch (error) {
    const isLostRace = error instanceof HttpError && error.status === 409
    if (!isLostRace || store.deferred) throw error
    // Another create took this id: the next attempt finds the row, if it is visible.
    const found = await readRow(store, principal, resource.resourceType, resource.id ?? '')
    if (found !== undefined) return { kind: 'lost' }
    throw error
  }
}
