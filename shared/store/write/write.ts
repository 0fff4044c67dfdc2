/** Update and patch: policy, then one statement to read, if need be, and one to write, after commit the answer. */

import {
  type DecidedRow,
  decideKnownRow,
  hiddenBy,
  readDecided,
} from '../../access/decisions/decide.ts'
import type { AccessDecision } from '../../access/decisions/decide-in-sql.ts'
import {
  decideUpdate,
  decideWritten,
  hiddenAfter,
  readonlyBy,
} from '../../access/decisions/decide-write.ts'
import { keep, keptFields, refuseMasks } from '../../access/fields/fields.ts'
import { keepPaths } from '../../access/fields/paths.ts'
import type { Principal } from '../../access/principal.ts'
import {
  badRequest,
  conflict,
  forbidden,
  gone,
  HttpError,
  notFound,
  preconditionFailed,
  TooMuchHere,
  tooLarge,
} from '../../errors.ts'
import type { Meta, Reference, Resource } from '../../fhir/resource.ts'
import { ownParametersOf } from '../index/custom-parameters.ts'
import { shownTo } from '../read/redact.ts'
import { allow, normalId, readRow, rowKey, type Store, scopeOf } from '../rows/context.ts'
import type { WritePlace } from '../rows/ports.ts'
import { parseVersion, toVersion, type VersionRow } from '../rows/rows.ts'
import type { Version, WriteOptions, WriteResult } from '../rows/version.ts'
import { accountsGiven, distinctAccounts, inheritedAccounts, patientsOf } from './accounts.ts'
import { givenId, isTaken, resultOf, submit } from './coalesce.ts'
import { create } from './create.ts'
import { checkAttempt } from './guards.ts'
import { type Prepared, prepare, saysTheSame } from './prepare.ts'

/** Writes of this process take turns, so only other processes win races: one of them at a time. */
const LOST_RACES = 8
const INTERACTIONS = ['read', 'update'] as const

/** Errors: 400, 403, 404, 409, 412. A lost race is run again on the new state. */
export async function update(
  store: Store,
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

/** As update, of what `apply` makes of the live version; 404 or 410 when there is none. */
export async function patch(
  store: Store,
  principal: Principal,
  { type, id, apply, options }: Patch,
): Promise<WriteResult> {
  const next: Next = (row, live, hidden) => {
    if (row === undefined) throw notFound()
    if (live === undefined) throw gone()
    return apply(parseVersion(shownTo(principal, live, hidden)))
  }
  return change({ store, principal, type, id: givenId(id), options, next })
}

/** The resource to write, from the newest row and its live version, of which some paths are hidden. */
type Next = (
  row: VersionRow | undefined,
  live: Version | undefined,
  hidden: readonly string[],
) => Resource | Promise<Resource>

/** An update or a patch, before anything is read for it. */
interface Wanted {
  readonly store: Store
  readonly principal: Principal
  readonly type: string
  readonly id: string
  readonly options: WriteOptions
  readonly next: Next
}

async function change(wanted: Wanted): Promise<WriteResult> {
  const { store, principal, type, id } = wanted
  allow(principal, type, 'update')
  allow(principal, type, 'read')
  const run = () => changeNow(wanted)
  // A transaction may hold the row that the one before it in the line is waiting for.
  if (store.deferred) return run()
  const { project } = scopeOf(principal, type)
  return store.turns(store.keys.self(project, type, `${type}/${id}`), run)
}

async function changeNow(wanted: Wanted): Promise<WriteResult> {
  const { store, principal, type, id, options } = wanted
  const early = await changeRecent(wanted)
  if (early !== undefined) return early
  for (let attempt = 0; attempt <= LOST_RACES; attempt++) {
    const before = await readDecided(store, principal, type, { id, interactions: INTERACTIONS })
    const planned = await planChange(wanted, before)
    const result = isChange(planned) ? await writeChange(store, principal, planned) : planned
    if (result !== undefined) return result
    if (options.ifMatch) throw preconditionFailed()
  }
  throw conflict('Too many concurrent changes, try again')
}

/**
 * Without a look at what is stored: undefined where nothing is known of it, or anything but a written
 * version would come of what is known.
 */
async function changeRecent(wanted: Wanted): Promise<WriteResult | undefined> {
  const { store, principal, type, id } = wanted
  const row = store.recent?.get(rowKey(store, principal, type, id))
  if (row === undefined) return undefined
  const before = await decideKnownRow(store, principal, row, INTERACTIONS)
  const planned = before && (await planChange(wanted, before).catch(() => undefined))
  const result = isChange(planned) ? await writeChange(store, principal, planned) : undefined
  if (result === undefined) store.recent?.drop(row)
  return result
}

/** A change that is allowed and says something new. */
interface Change {
  readonly prepared: Prepared
  readonly isLive: boolean
  readonly stored: Resource | undefined
  readonly ruling: AccessDecision
  /** The paths that the caller does not see of the version before. */
  readonly hidden: readonly string[]
  readonly id: string
}

function isChange(planned: Change | WriteResult | undefined): planned is Change {
  return planned !== undefined && 'prepared' in planned
}

/** The result, where nothing is left to be changed; undefined when another write came first. */
async function planChange(
  wanted: Wanted,
  before: DecidedRow | undefined,
): Promise<Change | WriteResult | undefined> {
  const { store, principal, type, id, options, next } = wanted
  const row = before?.row
  const { read: seen, update: changing } = before?.decisions ?? {}
  if (row !== undefined && seen === undefined) throw notFound()
  if (row !== undefined && changing === undefined) {
    throw forbidden('criteria of every entry for update, by what is stored')
  }
  const live = row !== undefined && row.content !== null ? toVersion(row) : undefined
  if (options.ifMatch && !(live && options.ifMatch.includes(live.ver))) throw preconditionFailed()
  if (options.onlyIfAbsent && live) throw preconditionFailed(`${type}/${id} exists already`)
  if (lengthOf(live) > (options.mostHere ?? Number.POSITIVE_INFINITY)) throw new TooMuchHere()
  const hidden = hiddenBy(seen)
  const resource = await next(row, live, hidden)
  store.rules.get(type)?.checkForm?.(resource)
  if (resource.resourceType !== type) throw badRequest('Incorrect resource type')
  if (normalId(resource.id ?? '') !== id) throw badRequest('Incorrect resource ID')
  if (row === undefined) return createAt(store, principal, resource, options)
  return planOver(wanted, { row, live, hidden, changing, resource })
}

/** The stored version and the resource that is to take its place. */
interface Over {
  readonly row: VersionRow
  /** Undefined: it was deleted. */
  readonly live: Version | undefined
  readonly hidden: readonly string[]
  readonly changing: AccessDecision
  readonly resource: Resource
}

async function planOver(
  { store, principal, type, id, options }: Wanted,
  { row, live, hidden, changing, resource }: Over,
): Promise<Change | WriteResult> {
  const rule = store.rules.get(type)
  const stored = live && parseVersion(live)
  const { project: projectId = '' } = JSON.parse(`{${row.meta_ext}}`) as Meta
  const own = await ownParametersOf(store.ownParameters, store.connection, principal, row.project)
  rule?.checkParameters?.(resource, own)
  refuseMasks(resource)
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
  const kept = rule?.file?.(allowed) ?? allowed
  const attempt = { store, principal, interaction: 'update', id, isNew: false } as const
  await checkAttempt({ ...attempt, before: stored, sent: resource, kept }, changing)
  const admission = { store, principal, project: row.project, before: stored, after: kept, own }
  const admitted = rule?.admit === undefined ? kept : await rule.admit(admission)
  const prepared = prepare({ store, principal, resource: admitted, place, stored, options })
  requireRoom(prepared, live, options)
  if (live && stored && saysTheSame(live, stored, prepared))
    return { ...shownTo(principal, live, hidden), outcome: 'unchanged' }
  const ruling = decideUpdate(store, principal, prepared, stored)
  return { prepared, isLive: live !== undefined, stored, ruling, hidden, id: place.id }
}

function lengthOf(version: Version | undefined): number {
  return version?.content?.length ?? 0
}

/** Many small changes must not make what no request could send. Errors: 413. */
function requireRoom(
  { write }: Prepared,
  live: Version | undefined,
  { largest = Number.POSITIVE_INFINITY }: WriteOptions,
): void {
  if (write.tail.length > Math.max(largest, lengthOf(live))) throw tooLarge()
}

/** Undefined when another write came first. */
async function writeChange(
  store: Store,
  principal: Principal,
  { prepared, isLive, stored, ruling, hidden, id }: Change,
): Promise<WriteResult | undefined> {
  const { resourceType: type } = prepared.resource
  const written = await submit(store, type, prepared).catch((error: unknown) => {
    if (isLive || !isTaken(error)) throw error
    // Somebody else has brought the deleted resource back. A failed statement ends a transaction.
    if (store.deferred) throw conflict('Too many concurrent changes, try again')
    return undefined
  })
  if (written === undefined) return undefined
  const result = resultOf(store, {
    type,
    id,
    statement: prepared,
    lastUpdated: written,
    outcome: 'updated',
  })
  const governing = await decideWritten(store, principal, 'update', {
    prepared,
    decided: ruling,
    stored,
  })
  const left = hiddenAfter(store, principal, prepared)
  return shownTo(principal, result, [...hidden, ...hiddenBy(governing), ...left])
}

async function createAt(
  store: Store,
  principal: Principal,
  resource: Resource,
  options: WriteOptions,
): Promise<WriteResult | undefined> {
  const mayChoose = principal.isSuperAdmin || principal.project.updateAsCreate || options.keepId
  if (!mayChoose) throw notFound()
  try {
    return await create(store, principal, resource, { ...options, keepId: true })
  } catch (error) {
    const isLostRace = error instanceof HttpError && error.status === 409
    if (!isLostRace || store.deferred) throw error
    // Another create took this id: the next attempt finds the row, if it is visible.
    const found = await readRow(store, principal, resource.resourceType, resource.id ?? '')
    if (found !== undefined) return undefined
    throw error
  }
}

/** The accounts of a resource that comes back after its deletion, as if it were new. */
async function newAccounts(
  store: Store,
  principal: Principal,
  project: number,
  resource: Resource,
): Promise<readonly Reference[]> {
  const patients = patientsOf(store, principal, resource)
  const inherited = await inheritedAccounts(store, project, patients)
  return distinctAccounts([...accountsGiven(principal, resource.resourceType), ...inherited])
}
