/** Reindex and expunge on behalf of a Principal: permissions, scope, and the rows removed per step of expunge. */

import { readDecided } from '../../access/decisions/decide.ts'
import { may, REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { SYSTEM_PROJECT } from '../../access/project-context.ts'
import { BOT, deleteScheduleRow, rebuildSchedules } from '../../bots/schedules.ts'
import { badRequest, forbidden, forbiddenByPlatform, gone, notFound } from '../../core/errors.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import { type ReindexPosition, reindexPage, rewrite } from '../../store/reindex/reindex.ts'
import { readRow, type StoreContext } from '../../store/rows/context.ts'
import { SEARCH_PARAMETER } from '../../store/rows/custom-parameters.ts'
import { toVersion, type VersionRow, versionColumns } from '../../store/rows/rows.ts'
import { addOwnParametersJob } from '../../store/rows/upkeep-jobs.ts'
import type { Version } from '../../store/rows/version.ts'
import { removeProjectPart, removeResource, removeTypePart } from './removal.ts'

export interface ReindexScope {
  /** All types if undefined. */
  readonly type: string | undefined
  /** A search that means some of them. */
  readonly filter: string | undefined
  /** Resources that were written before are left alone; a time as PostgreSQL reads it. */
  readonly since?: string
}

/** Where a reindex of all Projects stands. */
export interface ReindexProgress {
  readonly project: number
  readonly after: ReindexPosition | undefined
}

/** Errors: 403 unless an admin, 404, 410. */
export async function reindexResource(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  requireAdmin(principal, type)
  const found = await readDecided(store, principal, type, { id, interactions: ['read'] })
  if (found?.decisions.read === undefined) throw notFound()
  const { row } = found
  if (row.content === null) throw gone()
  const own = await store.ownParameters.now(store.connection, row.project)
  await rewrite(store, row.project, [row], own)
}

interface ReindexStep {
  readonly scope: ReindexScope
  readonly from: ReindexProgress | undefined
  readonly count: number
}

/** The next `count` resources of all Projects; undefined when all are done. Errors: 400, 403. */
export async function reindexNext(
  store: StoreContext,
  principal: Principal,
  { scope, from, count }: ReindexStep,
): Promise<ReindexProgress | undefined> {
  requireSuperAdmin(principal)
  const isNext = from?.after === undefined
  const project = isNext ? await nextProject(store, from, scope.type) : from.project
  if (project === undefined) return undefined
  const after = from?.after
  const own = await store.ownParameters.now(store.connection, project)
  const { next } = await reindexPage(store, { project, own, ...scope, after, count })
  return { project, after: next }
}

/** Removes the resource with its history, live or deleted. Errors: 400, 403 unless an admin, 404. */
export async function expungeResource(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<Version> {
  requireAdmin(principal, type)
  // Administrators of a Project cannot remove the audit trail.
  if (type === 'AuditEvent' && !principal.isSuperAdmin) {
    throw forbiddenByPlatform('Only super administrators may expunge an AuditEvent')
  }
  await requireDeletable(store, principal, type, id)
  return expunge(store, principal, type, id)
}

/** The Bot does not run by itself any more, until its schedule changes. Errors: 403. */
export async function stopSchedule(
  store: StoreContext,
  principal: Principal,
  botId: string,
): Promise<void> {
  requireSuperAdmin(principal)
  await deleteScheduleRow(store.connection, store.keys.rowId(BOT, botId))
}

/** Plans the runs of all scheduled Bots again. Errors: 403. */
export async function restartSchedules(store: StoreContext, principal: Principal): Promise<void> {
  requireSuperAdmin(principal)
  await rebuildSchedules(store.connection)
}

/** Errors: 400, 403, 404. */
async function requireDeletable(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
) {
  if (!may(principal, type, 'delete')) throw forbidden()
  const interactions = ['read', 'delete'] as const
  const found = await readDecided(store, principal, type, { id, interactions })
  if (found?.decisions.read === undefined) throw notFound()
  if (found.decisions.delete === undefined) throw forbidden()
  await store.rules.get(type)?.checkDeletion?.(store, principal, id)
}

/** Expunges resources last changed before a time, in all Projects; returns how many. Errors: 403. */
export async function purge(
  store: StoreContext,
  principal: Principal,
  type: string,
  before: Date,
): Promise<number> {
  requireSuperAdmin(principal)
  let purged = 0
  let project = await nextProject(store, undefined)
  while (project !== undefined) {
    if (type === JOB) await removeResponses(store, project, before)
    for (let gone = -1; gone !== 0; purged += gone) {
      gone = await removeTypePart(store.connection, project, type, before)
    }
    project = await nextProject(store, { project, after: undefined })
  }
  return purged
}

const JOB = 'AsyncJob'
/** The text that `runRequest` writes. */
const RESPONSE = String.raw`"name":"results","valueReference":\{"reference":"Binary/([A-Za-z0-9.-]+)"`

/**
 * Removes the stored responses of accepted requests: once their job is gone, no one may read them. The result of a bot in
 * a job may name any Binary, so the Binary must name the job, too.
 */
async function removeResponses(
  { connection, keys }: StoreContext,
  project: number,
  before: Date,
): Promise<void> {
  const rows = await connection.query<{ job: string; id: string }>({
    name: 'purge-responses',
    text: `select r.id as job, substring(v.content from $4::text) as id
      from resource r join version v using (project, type, id, ver)
      where project = $1 and type = $2 and r.lu < $3 and v.content ~ $4`,
    values: [project, typeNumber(JOB), before, RESPONSE],
  })
  for (const { job, id } of rows) {
    const row = { project, type: typeNumber('Binary'), id: keys.rowId('Binary', id) }
    const own = await connection.query({
      name: 'purge-own-response',
      text: `select 1 from resource r join version v using (project, type, id, ver)
        where project = $1 and type = $2 and id = $3 and position($4 in v.content) > 0`,
      values: [project, row.type, row.id, `"securityContext":{"reference":"${JOB}/${job}"}`],
    })
    if (own.length > 0) await removeResource(connection, row, id)
  }
}

/** The next rows of a whole Project, at last itself; false when nothing is left. Errors: 400, 403. */
export async function expungeProject(
  store: StoreContext,
  principal: Principal,
  projectId: string,
): Promise<boolean> {
  requireSuperAdmin(principal)
  if (projectId === SYSTEM_PROJECT.id || projectId === principal.project.id) {
    throw badRequest('This Project cannot be expunged')
  }
  const number = await store.projectNumber(store.connection, projectId)
  if (number === undefined) return false
  if (await removeProjectPart(store.connection, number, projectId)) return true
  const row = await readRow(store, principal, 'Project', projectId)
  if (row !== undefined) await expunge(store, principal, 'Project', projectId)
  return false
}

function requireSuperAdmin({ isSuperAdmin }: Principal): void {
  if (!isSuperAdmin) throw forbidden()
}

/** Users, Projects and the like are for super admins. */
function requireAdmin(principal: Principal, type: string): void {
  const isEnough = REGISTRY_TYPES.has(type) ? principal.isSuperAdmin : principal.isProjectAdmin
  if (!isEnough) throw forbidden()
}

/** Returns the number of the Project after `from`; with a type, of the next that has such resources. */
async function nextProject(
  { connection }: StoreContext,
  from: ReindexProgress | undefined,
  type?: string,
): Promise<number | undefined> {
  const values = [from?.project ?? 0, type === undefined ? null : typeNumber(type)]
  const [row] = await connection.query<{ project: number }>({
    name: 'next-tenant',
    text: `select project from tenant where project > $1
        and ($2::smallint is null or exists (
          select 1 from resource r where r.project = tenant.project and r.type = $2))
      order by project limit 1`,
    values,
    inSteps: ({ query }) =>
      query({
        text: `select project from ${type === undefined ? 'tenant' : 'resource'}
          where project > $1 and ($2::smallint is null or ${type === undefined ? 'true' : 'type = $2'})
          order by project limit 1`,
        values,
      }),
  })
  return row?.project
}

/** Expunges a live or deleted resource after the permission check. Errors: 404. Two statements. */
async function expunge(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<Version> {
  const row = await readRow(store, principal, type, id)
  if (row === undefined) throw notFound()
  await removeResource(store.connection, row, id)
  if (type === SEARCH_PARAMETER) await addOwnParametersJob(store.connection, row.project)
  return toVersion(row, id)
}

/** The last row of a page. */
export interface ScanPosition {
  readonly type: string
  /** Row id. */
  readonly id: string
}

interface ScanPage {
  readonly versions: readonly Version[]
  /** Undefined at the end. */
  readonly next: ScanPosition | undefined
}

/**
 * The next `count` live resources of a Project; those of the registry are not among them. Two statements. Errors: 403,
 * 404.
 */
export async function scanProject(
  { connection, keys, projectNumber }: StoreContext,
  principal: Principal,
  projectId: string,
  { after, count }: { readonly after: ScanPosition | undefined; readonly count: number },
): Promise<ScanPage> {
  requireSuperAdmin(principal)
  const project = await projectNumber(connection, keys.rowId('Project', projectId))
  if (project === undefined) throw notFound()
  const rows = await connection.query<VersionRow>({
    name: 'scan',
    text: `select ${versionColumns('v')} from (
        select project, type, id, ver from resource
        where project = $1 and ($2::smallint is null or (type, id) > ($2, $3))
        order by type, id limit $4) r
      join version v using (project, type, id, ver) order by v.type, v.id`,
    values: [project, after ? typeNumber(after.type) : null, after?.id ?? null, count],
  })
  const last = rows.at(-1)
  const isEnd = last === undefined || rows.length < count
  return {
    versions: rows.map((row) => toVersion(row)),
    next: isEnd ? undefined : { type: typeName(last.type), id: last.id },
  }
}
