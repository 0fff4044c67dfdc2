/** Deletions: one statement, for a single deletion or those of a bundle; one before it if a policy distinguishes resources. */

import { isPlain, readDecided } from '../../access/decisions/decide.ts'
import { may } from '../../access/policy.ts'
import { type Principal, SYSTEM_PROJECT_NUMBER } from '../../access/principal.ts'
import { batchPerTick } from '../../core/batching.ts'
import { forbidden, HttpError, notFound, preconditionFailed, RaceLost } from '../../core/errors.ts'
import { LOST, retryOnConflict } from '../../core/retry.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, type Connection, type Statement } from '../../postgres/statement.ts'
import type { Keys } from '../index/keys.ts'
import { isLegalId, readRow, requireAllowed, rowScope, type StoreContext } from '../rows/context.ts'
import { deletionEventPart, eventOrigin } from '../rows/event-rows.ts'
import { toVersion } from '../rows/rows.ts'
import type { Deletion, Version, WriteOptions } from '../rows/version.ts'
import {
  type Deleted,
  type DeletionWrite,
  rowsByCall,
  runLeasesHeldSql,
  type Write,
} from '../rows/write-rows.ts'
import { authorId } from './prepare.ts'

/**
 * Returns the row before (`was`) and the deletion (`now`). Without `was` the id is unknown; without `now` it was
 * deleted before, or `vers` excludes its version.
 */
export function deleteStatement(deletions: readonly DeletionWrite[]): Statement {
  const hasEvents = deletions.some(({ event }) => event !== undefined)
  const hasFiled = hasEvents && deletions.some(isFiled)
  const events = hasEvents ? `${deletionEventPart(hasFiled)},` : ''
  const ordered = deletions.flatMap(({ parts }) => parts).toSorted((a, b) => a.order - b.order)
  const removals = [...new Set(ordered.flatMap(({ part }) => part.removal ?? []))]
  const parts = removals.flatMap(({ sql }) => sql.map((part) => `${part},`))
  const hasProfiles = deletions.some(({ profileKey }) => profileKey !== undefined)
  const [profiles, membership] = hasProfiles ? MEMBERSHIPS : ['', 'null::uuid']
  const values = deletionValues(deletions)
  const isHeld = heldRuns(deletions, values)
  const name = [
    'delete',
    ...(isHeld === '' ? [] : ['runs']),
    ...(hasEvents ? ['event'] : []),
    ...(hasFiled ? ['filed'] : []),
    ...(hasProfiles ? ['profile'] : []),
    ...removals.map((removal) => removal.name),
  ]
  return {
    name: name.join('-'),
    perProject: deletions.map(({ project }) => project),
    text: `with x as materialized (
        select * from unnest($1::int[], $2::smallint[], $3::uuid[], $4::text[], $5::text[], $6::uuid[],
          $7::text[], $8::boolean[], $9::bigint[])
          with ordinality
            as x(project, type, id, vers, prefix, author, cause, registry, profile, n)
        ${isHeld}),
      was as materialized (
        select x.n, x.vers::int[] as vers, x.author, x.profile, starts_with(v.meta_ext, x.prefix) as seen,
          date_trunc('milliseconds', clock_timestamp()) as at, v.*
        from x cross join lateral (
          select project, type, id, ver, lu, content, meta_at, meta_ext from version
          where ${dialect.projectOfList('project', values.length)} and type = x.type and id = x.id order by ver desc limit 1) v),
      d as (
        delete from resource r using was
        where r.project = was.project and r.type = was.type and r.id = was.id
          and (was.vers is null or r.ver = any(was.vers)) and was.seen
        returning was.n, was.author, was.profile, r.project, r.type, r.id, r.ver + 1 as ver, was.meta_ext,
          greatest(was.at, r.lu) as lu),
      now as (
        insert into version (project, type, id, ver, lu, author, content, meta_at, meta_ext)
        select project, type, id, ver, lu, author, null, 0, meta_ext from d
        returning project, type, id, ver, lu, content, meta_at, meta_ext),
      ${SIDE_ROWS}
      ${[profiles, events, ...parts].join('\n      ')}
      q as (delete from unique_key x using d
        where x.id = d.id and x.project = d.project and x.type = d.type)
      select d.n::int, true as deleted, true as gone, ${membership} as membership,
        ${hasEvents ? 'exists (select 1 from o)' : 'false'} as "hasEvents", now.*
      from now join d using (project, type, id)
      union all
      select n::int, false, content is null, null, false, project, type, id, ver, lu, null, meta_at, meta_ext
      from was where seen`,
    values,
  }
}

const SIDE_ROWS = `s as (delete from idx_string x using d
        where x.id = d.id and x.project = d.project and x.type = d.type),
      g as (delete from idx_range x using d
        where x.id = d.id and x.project = d.project and x.type = d.type),
      tx as (delete from resource_text x using d
        where x.project = d.project and x.type = d.type and x.id = d.id),`

/** Adds a condition on leases if runs of bots delete. */
function heldRuns(deletions: readonly DeletionWrite[], values: unknown[]): string {
  const leases = deletions.flatMap(({ lease }) => lease ?? [])
  if (leases.length === 0) return ''
  return `where ${runLeasesHeldSql(leases, (value, type) => `$${values.push(value)}::${type}`)}`
}

function deletionValues(deletions: readonly DeletionWrite[]): unknown[] {
  const column = <T>(value: (deletion: DeletionWrite) => T) => deletions.map(value)
  return [
    arrayLiteral(column(({ project }) => project)),
    arrayLiteral(column(({ type }) => type)),
    arrayLiteral(column(({ id }) => id)),
    column(({ vers }) => (vers === undefined ? null : arrayLiteral(vers))),
    column(({ metaPrefix }) => metaPrefix),
    arrayLiteral(column(({ author }) => author)),
    column(({ event }) => event?.cause ?? ''),
    arrayLiteral(column(isFiled)),
    arrayLiteral(column(({ profileKey }) => profileKey)),
  ]
}

function isFiled({ project }: DeletionWrite): boolean {
  return project === SYSTEM_PROJECT_NUMBER
}

/** One statement per event-loop turn; a resource that is named again goes into the next. */
export function removeTogether(connection: Connection) {
  return batchPerTick<DeletionWrite, readonly Deleted[]>((deletions) =>
    removeAll(connection, deletions),
  )
}

async function removeAll(
  connection: Connection,
  deletions: readonly DeletionWrite[],
): Promise<readonly (readonly Deleted[])[]> {
  const answers: (readonly Deleted[])[] = []
  let left = deletions.map((deletion, place) => ({ deletion, place }))
  while (left.length > 0) {
    const seen = new Set<string>()
    const now: typeof left = []
    const later: typeof left = []
    for (const item of left.toSorted((a, b) => compareRows(a.deletion, b.deletion))) {
      const { project, type, id } = item.deletion
      const row = `${project}/${type}/${id}`
      const list = seen.has(row) ? later : now
      list.push(item)
      seen.add(row)
    }
    const rows = await connection.query<Deleted>(
      deleteStatement(now.map(({ deletion }) => deletion)),
    )
    const found = rowsByCall(rows, now)
    for (const [i, { place }] of now.entries()) answers[place] = found[i] ?? []
    left = later
  }
  return answers
}

/** Lock order of rows in all transactions. */
export function compareRows(a: DeletionWrite | Write, b: DeletionWrite | Write): number {
  return a.project - b.project || a.type - b.type || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)
}

const MEMBERSHIP = 'ProjectMembership'
const PROFILES = new Set(['Patient', 'Practitioner', 'RelatedPerson', 'Bot', 'ClientApplication'])

/** Undefined for a type that is never a profile. */
function profileKey(keys: Keys, type: string, id: string): bigint | undefined {
  if (!PROFILES.has(type)) return undefined
  const p = keys.param(SYSTEM_PROJECT_NUMBER, MEMBERSHIP, 'profile')
  return keys.reference(p, keys.target(SYSTEM_PROJECT_NUMBER, `${type}/${id}`))
}

const MEMBERSHIPS = [
  `pm as (select d.n, m.id from d join resource m on m.project = ${SYSTEM_PROJECT_NUMBER}
        and m.type = ${typeNumber(MEMBERSHIP)} and m.keys @> array[d.profile]),`,
  '(select pm.id from pm where pm.n = d.n limit 1)',
] as const

interface Removal {
  readonly type: string
  readonly id: string
  readonly options?: WriteOptions | undefined
}

/** Idempotent. Errors: 403, 404 unknown or not visible, 412. */
export async function remove(
  store: StoreContext,
  principal: Principal,
  { type, id, options = {} }: Removal,
): Promise<Deletion> {
  requireAllowed(principal, type, 'delete')
  if (!isLegalId(id)) throw notFound()
  const isRuled = !isPlain(principal, type, 'delete') || !isSeen(principal, type)
  if (isRuled || memberRule(store, principal, type)?.checkRemoval !== undefined) {
    const inTransaction = store.deferred !== undefined
    const removal = { type, id, options }
    return retryOnConflict(() => removeStored(store, principal, removal), {
      inTransaction,
    })
  }
  return removeRow(store, principal, { type, id, options })
}

/** The service itself is trusted. */
function memberRule({ rules }: StoreContext, { membershipId }: Principal, type: string) {
  return membershipId === undefined ? undefined : rules.get(type)
}

function isSeen(principal: Principal, type: string): boolean {
  return may(principal, type, 'read') && isPlain(principal, type, 'read')
}

/** Deletes the version decided on; `LOST` when there is a newer one. */
async function removeStored(
  store: StoreContext,
  principal: Principal,
  { type, id, options = {} }: Removal,
): Promise<Deletion | typeof LOST> {
  const before = await readDecided(store, principal, type, { id, interactions: ['read', 'delete'] })
  if (before?.decisions.read === undefined) throw notFound()
  await memberRule(store, principal, type)?.checkRemoval?.(store, principal, id)
  const { row } = before
  if (row.content === null) return { ...toVersion(row, id), membership: undefined }
  if (before.decisions.delete === undefined) throw forbidden('criteria of every entry for delete')
  if (options.ifMatch && !options.ifMatch.includes(row.ver)) throw preconditionFailed()
  try {
    return await removeRow(store, principal, { type, id, options: { ifMatch: [row.ver] } })
  } catch (error) {
    const isLostRace = error instanceof HttpError && error.status === 412
    if (!isLostRace || options.ifMatch) throw error
    return LOST
  }
}

async function removeRow(
  store: StoreContext,
  principal: Principal,
  { type, id, options = {} }: Removal,
): Promise<Deletion> {
  await memberRule(store, principal, type)?.checkDeletion?.(store, principal, id)
  const scope = rowScope(principal, type)
  const removeIn = (project: number) => {
    const deletion = {
      project,
      type: typeNumber(type),
      id: store.keys.rowId(type, id),
      vers: options.ifMatch,
      metaPrefix: scope.metaPrefix,
      author: principal.profile && authorId(store, principal.profile),
      event: eventOrigin(store.keys, principal, { type, projectId: undefined, operation: 'd' }),
      profileKey: profileKey(store.keys, type, id),
      lease: principal.lease,
      parts: store.parts.flatMap((part, order) =>
        part.removal?.type === type ? [{ part, order }] : [],
      ),
    }
    const inTransaction = store.deferred !== undefined
    return retryOnConflict(() => store.remove(deletion), { inTransaction })
  }
  let rows = await removeIn(scope.project)
  if (rows.length === 0 && scope.everywhere) {
    const row = await readRow(store, principal, type, id)
    if (row && row.project !== scope.project) rows = await removeIn(row.project)
  }
  const found = rows.find((row) => row.deleted) ?? rows[0]
  if (found?.hasEvents) store.announce()
  if (found === undefined) throw notFound()
  if (found.deleted) await notifyDeletion(store, found, toVersion(found, id))
  if (found.gone) return { ...toVersion(found, id), membership: found.membership ?? undefined }
  if (options.ifMatch) throw preconditionFailed()
  throw new RaceLost()
}

async function notifyDeletion(
  store: StoreContext,
  { project }: Deleted,
  version: Version,
): Promise<void> {
  for (const part of store.parts) {
    if (part.buildDeletionRow === undefined || part.types?.has(version.type) !== true) continue
    await store.written(part, { project, row: part.buildDeletionRow(version) })
  }
}
