/** Reindex and expunge with access checks. */

import { readDecided } from '../../access/decisions/decide.ts'
import { may, REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { SYSTEM_PROJECT } from '../../access/project-context.ts'
import { BOT, deleteScheduleRow, rebuildSchedules } from '../../bots/schedules.ts'
import { badRequest, forbidden, forbiddenByPlatform, gone, notFound } from '../../core/errors.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import type { Connection } from '../../postgres/statement.ts'
import {
  indexOwnNext,
  type OwnIndexProgress,
  type OwnIndexStep,
} from '../../store/reindex/custom-parameters-index.ts'
import { type ReindexPosition, reindexPage, rewrite } from '../../store/reindex/reindex.ts'
import { readRow, type StoreContext } from '../../store/rows/context.ts'
import { SEARCH_PARAMETER } from '../../store/rows/custom-parameters.ts'
import { toVersion, type VersionRow, versionColumns } from '../../store/rows/rows.ts'
import { addOwnParametersJob, ownJobProgress } from '../../store/rows/upkeep-jobs.ts'
import type { Version } from '../../store/rows/version.ts'
import { removeProjectPart, removeResource, removeTypePart } from './removal.ts'

export interface ReindexScope {
  readonly type: string | undefined
  readonly filter: string | undefined
  /** PostgreSQL timestamp; skips resources written before it. */
  readonly since?: string
}

export interface ReindexProgress {
  readonly project: number
  readonly after: ReindexPosition | undefined
}

export interface Maintenance {
  /** Errors: 403 unless an admin, 404, 410. */
  reindex(principal: Principal, type: string, id: string): Promise<void>
  /** Reindexes the next `count` resources over all Projects; undefined when done. Errors: 400, 403. */
  reindexNext(
    principal: Principal,
    scope: ReindexScope,
    from: ReindexProgress | undefined,
    count: number,
  ): Promise<{ readonly seen: number; readonly progress: ReindexProgress } | undefined>
  /** Indexes the next `count` resources of a Project by its current search parameters. Errors: 403. */
  indexOwnNext(
    principal: Principal,
    project: number,
    from: OwnIndexProgress | undefined,
    count: number,
  ): Promise<OwnIndexStep>
  /** Returns the progress of indexing in the Principal's Project; undefined when done. */
  ownIndexProgress(principal: Principal): ReturnType<typeof ownJobProgress>
  /** Removes a live or deleted resource and its history. Errors: 403 unless an admin, 404. */
  expunge(principal: Principal, type: string, id: string): Promise<Version>
  /** Expunges resources last changed before a time, in all Projects; returns their number. Errors: 403. */
  purge(principal: Principal, type: string, before: Date): Promise<number>
  /** Returns the next `count` live resources of a Project, without registry resources. Errors: 403, 404. */
  scan(
    principal: Principal,
    projectId: string,
    after: ScanPosition | undefined,
    count: number,
  ): Promise<ScanPage>
  /** Stops the Bot's schedule until it is changed. Errors: 403. */
  removeSchedule(principal: Principal, botId: string): Promise<void>
  /** Recomputes the schedules of all Bots. Errors: 403. */
  rebuildSchedules(principal: Principal): Promise<void>
  /** Removes the next rows of a whole Project and finally the Project; false when done. Errors: 400, 403. */
  expungeProject(principal: Principal, projectId: string): Promise<boolean>
}

export function createMaintenance(store: StoreContext): Maintenance {
  return {
    async reindex(principal, type, id) {
      requireAdmin(principal, type)
      const found = await readDecided(store, principal, type, { id, interactions: ['read'] })
      if (found?.decisions.read === undefined) throw notFound()
      const { row } = found
      if (row.content === null) throw gone()
      const own = await store.ownParameters.now(store.connection, row.project)
      await rewrite(store, row.project, [row], own)
    },
    async reindexNext(principal, scope, from, count) {
      if (!principal.isSuperAdmin) throw forbidden()
      const isNext = from?.after === undefined
      const project = isNext ? await nextProject(store, from, scope.type) : from.project
      if (project === undefined) return undefined
      const after = from?.after
      const own = await store.ownParameters.now(store.connection, project)
      const { seen, next } = await reindexPage(store, { project, own, ...scope, after, count })
      return { seen, progress: { project, after: next } }
    },
    async indexOwnNext(principal, project, from, count) {
      if (!principal.isSuperAdmin) throw forbidden()
      return indexOwnNext(store, project, from, count)
    },
    ownIndexProgress: ({ project }) => ownJobProgress(store.connection, project.number),
    async expunge(principal, type, id) {
      requireAdmin(principal, type)
      requirePurger(principal, type)
      await requireDeletable(store, principal, type, id)
      return expunge(store, principal, type, id)
    },
    async purge(principal, type, before) {
      if (!principal.isSuperAdmin) throw forbidden()
      return await purgeAll(store, type, before)
    },
    async scan(principal, projectId, after, count) {
      if (!principal.isSuperAdmin) throw forbidden()
      const rowId = store.keys.rowId('Project', projectId)
      const number = await store.tenants.projectNumber(store.connection, rowId)
      if (number === undefined) throw notFound()
      return await scanPage(store.connection, number, after, count)
    },
    async removeSchedule(principal, botId) {
      if (!principal.isSuperAdmin) throw forbidden()
      await deleteScheduleRow(store.connection, store.keys.rowId(BOT, botId))
    },
    async rebuildSchedules(principal) {
      if (!principal.isSuperAdmin) throw forbidden()
      await rebuildSchedules(store.connection)
    },
    async expungeProject(principal, projectId) {
      if (!principal.isSuperAdmin) throw forbidden()
      return await expungeProject(store, principal, projectId)
    },
  }
}

/** Errors: 403, 404. */
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
}

async function purgeAll(store: StoreContext, type: string, before: Date): Promise<number> {
  let purged = 0
  let project = await nextProject(store, undefined)
  while (project !== undefined) {
    const gone = await removeTypePart(store.connection, project, type, before)
    purged += gone
    if (gone === 0) project = await nextProject(store, { project, after: undefined })
  }
  return purged
}

async function expungeProject(
  store: StoreContext,
  principal: Principal,
  projectId: string,
): Promise<boolean> {
  if (projectId === SYSTEM_PROJECT.id || projectId === principal.project.id) {
    throw badRequest('This Project cannot be expunged')
  }
  const number = await store.tenants.projectNumber(store.connection, projectId)
  if (number === undefined) return false
  if (await removeProjectPart(store.connection, number, projectId)) return true
  const row = await readRow(store, principal, 'Project', projectId)
  if (row !== undefined) await expunge(store, principal, 'Project', projectId)
  return false
}

/** Project administrators must not remove the audit trail. */
function requirePurger(principal: Principal, type: string): void {
  if (type !== 'AuditEvent' || principal.isSuperAdmin) return
  throw forbiddenByPlatform('An AuditEvent is expunged by super admins alone')
}

function requireAdmin(principal: Principal, type: string): void {
  const isEnough = REGISTRY_TYPES.has(type) ? principal.isSuperAdmin : principal.isProjectAdmin
  if (!isEnough) throw forbidden()
}

/** Returns the next Project after `from`; with a type, the next that stores it. */
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
          select from resource r where r.project = tenant.project and r.type = $2))
      order by project limit 1`,
    values,
    apart: ({ query }) =>
      query({
        text: `select project from ${type === undefined ? 'tenant' : 'resource'}
          where project > $1 and ($2::smallint is null or ${type === undefined ? 'true' : 'type = $2'})
          order by project limit 1`,
        values,
      }),
  })
  return row?.project
}

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
interface ScanPosition {
  readonly type: string
  readonly id: string
}

interface ScanPage {
  readonly versions: readonly Version[]
  readonly next: ScanPosition | undefined
}

async function scanPage(
  connection: Connection,
  project: number,
  after: ScanPosition | undefined,
  count: number,
): Promise<ScanPage> {
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
