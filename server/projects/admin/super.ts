/** Operations of super admins without a policy. */
import type { Principal } from '../../../shared/access/principal.ts'
import { criteriaGrant } from '../../../shared/access/subscription.ts'
import { readAllLanes } from '../../../shared/bots/stats.ts'
import { badRequest, forbidden, withExpression } from '../../../shared/core/errors.ts'
import { isResourceType, resourceTypes } from '../../../shared/fhir/definitions.ts'
import { completedJob, startUpkeep } from '../../../shared/jobs/async-requests.ts'
import {
  purge as purgeRows,
  restartSchedules,
  stopSchedule,
} from '../../../shared/jobs/upkeep/maintenance.ts'
import { appliedMigrations, queueDepths } from '../../../shared/jobs/upkeep/upkeep.ts'
import { readMails } from '../../../shared/outbound/mails.ts'
import { Fields } from '../../../shared/projects/fields.ts'
import { readPrefer } from '../../../shared/request/negotiate.ts'
import type { FhirContext, FhirReply, FhirRequest } from '../../../shared/request/request.ts'
import { INDEX_REVISION } from '../../../shared/store/index/keys.ts'
import { oldestIndexRevision } from '../../../shared/store/migrate.ts'
import { upkeepDepths } from '../../../shared/store/rows/upkeep-jobs.ts'

/** A super admin's request; `request.path` becomes the request of the AsyncJob. */
export type SuperCall = Omit<FhirContext, 'preferences'>

const MAILS = 1000

/** Errors: 403. */
export function requireSuperAdmin(principal: Principal): void {
  if (!principal.isSuperAdmin || principal.rules !== undefined) throw forbidden()
}

/** Errors: 400 without `Prefer: respond-async`. */
export function requireAsync({ headers }: FhirRequest): void {
  if (readPrefer(headers.prefer).respondAsync) return
  throw badRequest('Operation requires "Prefer: respond-async"')
}

/**
 * `resourceType` is `*` or a comma list, `filter` a search that selects among them, and `maxResourceVersion` the last
 * index revision to include. Rows that are up to date are always skipped. Errors: 400.
 */
export async function startReindex(
  call: SuperCall,
  body: Record<string, unknown>,
): Promise<FhirReply> {
  const fields = new Fields(body)
  const asked = fields.requiredText('resourceType', 'Resource type is required')
  const kind = fields.oneOf('reindexType', ['outdated', 'all', 'specific'])
  const latest = fields.whole('maxResourceVersion')
  const filter = fields.text('filter')?.replace(/^\?/, '')
  fields.check()
  if (kind === 'specific' && latest === undefined) {
    throw badRequest('Max resource version is required', 'maxResourceVersion')
  }
  const types = asked.split(',').map((type) => type.trim())
  const unknown = types.find((type) => type !== '*' && !isResourceType(type))
  if (unknown !== undefined) throw badRequest(`Unknown resource type ${unknown}`, 'resourceType')
  const isAll = types.includes('*')
  if (filter !== undefined) requireFilter(filter, isAll ? resourceTypes : types)
  const oldest = await oldestIndexRevision(call.services.database)
  const last = kind === 'outdated' ? INDEX_REVISION - 1 : latest
  if (kind !== 'all' && last !== undefined && oldest > last) return await completedJob(call)
  const type = isAll ? undefined : [...new Set(types)].join(',')
  const asking = { ...call, type, id: undefined, rest: '' }
  return await startUpkeep(asking, 'reindex', call.principal.project.id, { filter })
}

/** Errors: 400 unless the search is valid for each type, with criteria on the resource itself. */
function requireFilter(query: string, types: readonly string[]): void {
  try {
    for (const type of types) criteriaGrant({ type, query }, undefined)
  } catch (error) {
    throw withExpression(error, 'filter')
  }
}

/** Deletes rows older than `before` with their history and returns their number. Errors: 400. */
export async function purge(
  { services, principal }: SuperCall,
  body: Record<string, unknown>,
): Promise<{ readonly purged: number }> {
  const fields = new Fields(body)
  const type = fields.requiredOneOf(
    'resourceType',
    ['AuditEvent', 'Login'],
    'Resource type is required',
  )
  const before = fields.requiredText('before', 'Before is required')
  fields.check()
  const isDate = /^\d{4}-\d{2}-\d{2}/.test(before) && !Number.isNaN(Date.parse(before))
  if (!isDate) throw badRequest('before must be a date of ISO 8601', 'before')
  const purged = await services.repository.withStore((store) =>
    purgeRows(store, principal, type ?? '', new Date(before)),
  )
  return { purged }
}

/** Stops the schedule of a Bot until it is changed. Errors: 400. */
export async function removeBotSchedule(
  { services, principal }: SuperCall,
  body: Record<string, unknown>,
): Promise<void> {
  const fields = new Fields(body)
  const id = fields.requiredText('botId', 'Bot ID is required')
  fields.check()
  await services.repository.withStore((store) => stopSchedule(store, principal, id))
}

/** Plans the runs of all scheduled Bots again. */
export async function reloadCron(call: SuperCall): Promise<FhirReply> {
  const { services, principal } = call
  await services.repository.withStore((store) => restartSchedules(store, principal))
  return await completedJob(call)
}

/**
 * Returns the jobs of every queue by state with the age of the oldest; the same by Project for bot runs (`lanes`) and
 * other work (`projects`); and long work by kind.
 */
export async function queueStatus({ services }: SuperCall) {
  const { queues, database } = services
  const [depths, since, projects, lanes, upkeep] = await Promise.all([
    queues.depths(),
    queues.waitingSince(),
    queueDepths(database),
    readAllLanes(services),
    upkeepDepths(database),
  ])
  const now = Date.now()
  const shown = Object.entries(depths).map(([name, states]) => {
    const oldest = since[name]
    return [name, { ...states, oldestMs: oldest === undefined ? null : now - oldest }] as const
  })
  return { queues: Object.fromEntries(shown), projects, lanes, upkeep }
}

/** Returns the outbox, newest first: without a mail server, invitations are read there. */
export async function outboxMails({ services }: SuperCall) {
  return { mails: await readMails(services.database, MAILS) }
}

/** Returns the names of applied database migrations; the release step runs pending ones. */
export async function migrations({ services }: SuperCall) {
  const applied = await appliedMigrations(services.database)
  // Medplum's pages read the other two, which are always empty: no data migration waits for an administrator.
  return { migrations: applied, postDeployMigrations: [], pendingPostDeployMigration: 0 }
}

/** Returns the live workers, those with wrong clocks, and the latest metrics of each. */
export async function workerStatus({ services: { queues } }: SuperCall) {
  const [ids, offTime, published] = await Promise.all([
    queues.workers(),
    queues.workersOffTime(),
    queues.workerMetrics(),
  ])
  const metrics = published.map((text) => JSON.parse(text) as readonly WorkerMetric[])
  return {
    workers: ids.map((id) => ({ id, isOnTime: !offTime.includes(id) })),
    metrics: metrics.map((all) => {
      const plain = all.filter(({ type }) => type === 'gauge' || type === 'counter')
      return Object.fromEntries(
        plain.map(({ name, values }) => [
          name,
          values.map(({ labels, value }) => ({ ...labels, value })),
        ]),
      )
    }),
  }
}

interface WorkerMetric {
  readonly name: string
  readonly type: string
  readonly values: readonly { readonly labels: object; readonly value: number }[]
}
