/**
 * Which bot is asked about a write before it is made. The version that would be written is
 * composed as the write will compose it and ruled on like a stored one; nothing is locked meanwhile.
 */

import { decideContents, hiddenBy, readDecided } from '../access/decisions/decide.ts'
import { readonlyBy } from '../access/decisions/decide-write.ts'
import { fieldsNotCreated, hiddenFields, keep, keptFields } from '../access/fields/fields.ts'
import { keepPaths } from '../access/fields/paths.ts'
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { type Change, isNeverAsked } from '../access/subscription.ts'
import { HttpError } from '../errors.ts'
import { typeName } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import type { Meta, Resource } from '../fhir/resource.ts'
import { readWatches } from '../store/events/subscribers.ts'
import { ownParametersOf } from '../store/index/custom-parameters.ts'
import type { Store } from '../store/rows/context.ts'
import type { WritePlace } from '../store/rows/ports.ts'
import { parseVersion, toVersion, type VersionRow } from '../store/rows/rows.ts'
import { accountsGiven } from '../store/write/accounts.ts'
import { prepare, rowOf } from '../store/write/prepare.ts'
import { candidateOf, fitsAsSeen, fitsCriteria } from './event-match.ts'

export interface PreCommit {
  readonly subscription: Resource
  /** Id of the Bot. */
  readonly bot: string
  /** An update of what does not exist is a create. */
  readonly change: Change
  /** The row that would be written; for a deletion the last version. */
  readonly row: VersionRow
}

/** Called with a Subscription whose expression cannot be evaluated. */
export type Skipped = (subscription: string, reason: string) => void

export interface AskedChange {
  readonly resource: Resource
  readonly ifMatch: readonly number[] | undefined
  /** Finds the author of a Subscription, whose view of the resource decides whether its bot is asked. */
  readonly author: (subscription: Resource) => Promise<Principal | undefined>
  readonly skipped: Skipped
}

/**
 * The first that waits for it; undefined for what the write itself refuses. `resource` has its id, of a
 * deletion it needs no more.
 */
export async function preCommitOf(
  store: Store,
  principal: Principal,
  asked: Change,
  { resource, ifMatch, author, skipped }: AskedChange,
): Promise<PreCommit | undefined> {
  const { connection, watchers } = store
  const { resourceType: type } = resource
  if (isNeverAsked(type)) return undefined
  const { number: project } = principal.project
  const at = new Date()
  const watches = await readWatches(connection, [{ project, type, at }])
  const stored = watches.filter(({ isStored }) => isStored)
  if (stored.length === 0) return undefined
  const own = await ownParametersOf(store.ownParameters, connection, principal, project)
  let made: Awaited<ReturnType<typeof matterOf>>
  for (const watch of stored) {
    // The clock of PostgreSQL may be ahead of this one.
    const time = watch.since > at ? watch.since : at
    const watcher = await watchers.at(connection, watch, time, own)
    const bot = watcher?.terms.hook?.bot
    if (!watcher?.terms.isPreCommit || bot === undefined) continue
    made ??= await matterOf(store, principal, { change: asked, resource, ifMatch, own })
    if (made === undefined) return undefined
    const { change, row } = made
    const matter = { change, type, subject: row, previous: undefined, at }
    const candidate = candidateOf(store, matter, own)
    const fits = async () => {
      if (!(await fitsCriteria(store, candidate, watcher))) return false
      const viewer = await author(watcher.subscription)
      const rows = { change, row, previous: undefined }
      return viewer !== undefined && fitsAsSeen(store, viewer, rows, watcher.terms)
    }
    const isFirst = await fits().catch((error: unknown) => {
      if (!(error instanceof HttpError) || error.status >= 500) throw error
      skipped(watcher.subscription.id ?? '', error.message)
      return false
    })
    if (isFirst) return { subscription: watcher.subscription, bot, change, row }
  }
  return undefined
}

interface PreCommitMatter {
  readonly change: Change
  readonly resource: Resource
  readonly ifMatch: readonly number[] | undefined
  readonly own: OwnParameters | undefined
}

async function matterOf(
  store: Store,
  principal: Principal,
  { change, resource, ifMatch, own }: PreCommitMatter,
): Promise<Pick<PreCommit, 'change' | 'row'> | undefined> {
  const { resourceType: type, id = '' } = resource
  if (change === 'create') return newMatter(store, principal, resource, own)
  const before = await readDecided(store, principal, type, { id, interactions: ['read', change] })
  if (before === undefined) {
    const { isSuperAdmin, project } = principal
    const isMade = change === 'update' && (isSuperAdmin || project.updateAsCreate)
    return isMade ? newMatter(store, principal, resource, own) : undefined
  }
  const { row, decisions } = before
  const { read, [change]: changing } = decisions
  const { project: projectId } = JSON.parse(`{${row.meta_ext}}`) as Meta
  if (read === undefined || changing === undefined) return undefined
  if (projectId !== principal.project.id) return undefined
  if (ifMatch !== undefined && !(row.content !== null && ifMatch.includes(row.ver)))
    return undefined
  if (change === 'delete') return row.content === null ? undefined : { change, row }
  const live = row.content === null ? undefined : parseVersion(toVersion(row))
  const kept = keepPaths(keep(resource, live, keptFields(principal, type)), live, [
    ...hiddenBy(read),
    ...hiddenBy(changing),
    ...readonlyBy(changing),
  ])
  const place: WritePlace = {
    kind: live === undefined ? 'insert' : 'update',
    project: row.project,
    projectId,
    id,
    ver: row.ver + 1,
    after: row.lu,
    own,
  }
  return {
    change: live === undefined ? 'create' : 'update',
    row: composed(store, principal, kept, { place, stored: live }),
  }
}

function newMatter(
  store: Store,
  principal: Principal,
  resource: Resource,
  own: OwnParameters | undefined,
): Pick<PreCommit, 'change' | 'row'> | undefined {
  const { resourceType: type, id = '', meta } = resource
  const { project } = principal
  const isElsewhere = principal.isSuperAdmin && (meta?.project ?? project.id) !== project.id
  if (!may(principal, type, 'create') || isElsewhere) return undefined
  const kept = keep(resource, undefined, fieldsNotCreated(principal, type))
  const place: WritePlace = {
    kind: 'insert',
    project: project.number,
    projectId: project.id,
    id,
    ver: 1,
    after: undefined,
    accounts: accountsGiven(principal, type),
    own,
  }
  return { change: 'create', row: composed(store, principal, kept, { place, stored: undefined }) }
}

function composed(
  store: Store,
  principal: Principal,
  resource: Resource,
  { place, stored }: { readonly place: WritePlace; readonly stored: Resource | undefined },
): VersionRow {
  return rowOf(prepare({ store, principal, resource, place, stored, options: {} }), new Date())
}

/** As `Events.withUnseen`. */
export async function withUnseen(
  store: Store,
  principal: Principal,
  row: VersionRow,
  next: Resource,
): Promise<Resource> {
  const type = typeName(row.type)
  const whole = parseVersion(toVersion(row))
  const [rulings] = await decideContents(store, principal, ['read'], [row])
  const kept = keep(next, whole, hiddenFields(principal, type))
  return keepPaths(kept, whole, hiddenBy(rulings?.read))
}
