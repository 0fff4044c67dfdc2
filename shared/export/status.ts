/** Status, manifest, cancel and files of an export, below `bulkdata/export/{id}`. */

import { rightsDigest } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import {
  accepted,
  forbiddenByPlatform,
  HttpError,
  issue,
  methodNotAllowed,
  notFound,
  outcome,
} from '../core/errors.ts'
import { wakeWorkers } from '../redis/wakes.ts'
import { outcomeReply } from '../request/reply.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { isUuid } from '../store/rows/context.ts'
import { buildManifest, endExport, manifestText, statusUrl } from './announce.ts'
import {
  activePrincipal,
  limitPolling,
  manifestReply,
  maySeeJob,
  progressReply,
  recordBulk,
} from './bulk-jobs.ts'
import { fileReply } from './file.ts'
import { addPage } from './rows/files.ts'
import {
  cancelExport,
  type ExportJob,
  exportProgress,
  extendForDownload,
  failExport,
  readExport,
} from './rows/jobs.ts'

const PATH = /^bulkdata\/export\/([0-9a-fA-F-]{36})(?:\/files\/([^/]+))?$/

/** Errors: 404 for callers without access, 403 after the member was removed or its rights changed. */
export async function handleExport(
  services: Services,
  principal: Principal,
  request: FhirRequest,
): Promise<FhirReply> {
  const [, id, name] = PATH.exec(request.path) ?? []
  if (id === undefined) throw notFound()
  const job = await findExport(services, principal, id)
  if (name !== undefined) {
    if (request.method !== 'GET') throw methodNotAllowed('GET, HEAD')
    if (job.state === 'error') throw exportError(job)
    const isPartly = job.state === 'active' && job.input.partialManifests
    if (job.state !== 'completed' && !isPartly) throw notFound()
    await requireSameRights(services, principal, job)
    const reply = await fileReply(services, request, job, name)
    const { open } = reply
    if (open === undefined) return reply
    const recorded = async () => {
      await recordDownload(services, principal, id, { name })
      return open()
    }
    return { ...reply, open: recorded }
  }
  if (request.method === 'DELETE') {
    await cancelJob(services, principal, job)
    return outcomeReply(202, accepted(statusUrl(services, id)))
  }
  if (request.method !== 'GET') throw methodNotAllowed('GET, HEAD, DELETE')
  limitPolling(job.id)
  if (job.state === 'completed') await requireSameRights(services, principal, job)
  const answer = () => status(services, principal, job, request)
  return job.input.separateStatus ? separately(answer) : answer()
}

export async function findExport(
  services: Services,
  principal: Principal,
  id: string,
): Promise<ExportJob> {
  const job = isUuid(id) ? await readExport(services.database, id) : undefined
  if (job === undefined) throw notFound()
  if (!maySeeJob(principal, { project: job.project, caller: job.input })) throw notFound()
  if (job.state === 'error' || (await activePrincipal(services, job.input)) !== undefined)
    return job
  await failRevokedExport(services, job)
  return { ...job, state: 'error', failure: REVOKED }
}

export async function failRevokedExport(services: Services, job: ExportJob): Promise<void> {
  await endExport(services, job, {
    status: 'error',
    endRow: (connection) => failExport(connection, job.id, REVOKED, REMOVED),
  })
}

/** Existing files are removed, too. */
const REMOVED = { keepHours: 1, isRevoked: true }
const REVOKED = { status: 403, text: 'The membership of this export is no longer active' }

/** Files hold the member's access at kick-off. Errors: 403 if it differs now, except for unrestricted admins. */
async function requireSameRights(
  services: Services,
  principal: Principal,
  { input }: ExportJob,
): Promise<void> {
  if (principal.isProjectAdmin && principal.rules === undefined) return
  const now = await activePrincipal(services, input)
  if (now === undefined || rightsDigest(now) !== input.rights) throw forbiddenByPlatform(CHANGED)
}

const CHANGED = "The member's access has changed since this export was made: export again"

/** Cancels a running export or removes an ended one. Errors: 404 when another call was first. */
export async function cancelJob(
  services: Services,
  principal: Principal,
  job: ExportJob,
): Promise<void> {
  const isFirst = await endExport(services, job, {
    status: 'cancelled',
    caller: principal,
    endRow: (connection) => cancelExport(connection, job.id),
  })
  if (!isFirst) throw notFound()
  await wakeWorkers(services.bus, 'export')
}

/** https://build.fhir.org/ig/HL7/bulk-data/export.html: the export's status is separate from the response's. */
async function separately(answer: () => Promise<FhirReply>): Promise<FhirReply> {
  try {
    const reply = await answer()
    return { ...reply, status: 200, headers: { ...reply.headers, [STATUS]: String(reply.status) } }
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    return outcomeReply(200, error.outcome, { [STATUS]: String(error.status) })
  }
}

const STATUS = 'X-Export-Status'

async function status(
  services: Services,
  principal: Principal,
  job: ExportJob,
  request: FhirRequest,
): Promise<FhirReply> {
  if (job.state === 'error') throw exportError(job)
  const page = job.input.partialManifests ? await manifestPage(services, job, request) : undefined
  if (job.state === 'completed') {
    const manifest = page ?? (await finalManifest(services, principal, job))
    return manifestReply(manifestText(manifest), job.expires)
  }
  const { done, total, ageMs } = await exportProgress(services.database, job.id)
  const reply = progressReply({ percent: (100 * done) / Math.max(1, total), done, total, ageMs })
  if (page === undefined) return reply
  const headers = { ...reply.headers, 'Content-Type': 'application/json' }
  return { ...reply, headers, body: manifestText(page) }
}

function exportError({ id, failure }: ExportJob): HttpError {
  const { status = 500, text = 'The export failed' } = failure ?? {}
  const code = status === 500 ? 'exception' : 'forbidden'
  return new HttpError(
    status,
    outcome(undefined, issue('error', code, text, { diagnostics: `Export ${id}` })),
  )
}

/** Presigned URLs count as a download. Errors: 404. */
async function finalManifest(services: Services, principal: Principal, job: ExportJob) {
  const { sign } = services.storage
  if (!job.input.presigned || sign === undefined) return buildManifest(services, job)
  if (!(await extendForDownload(services.database, job.id))) throw notFound()
  const manifest = await buildManifest(services, job, { sign })
  const files = manifest.output.length + manifest.error.length + (manifest.deleted?.length ?? 0)
  await recordDownload(services, principal, job.id, { files })
  return manifest
}

function recordDownload(
  services: Services,
  principal: Principal,
  id: string,
  details: Readonly<Record<string, string | number>>,
): Promise<void> {
  const reference = `BulkDataExport/${id}`
  return recordBulk(services, principal, { reference, step: 'download', details })
}

// `allowPartialManifests`: a published page never changes, except that it gains a link to the next one.
// https://build.fhir.org/ig/HL7/bulk-data/export.html

/** Returns the requested manifest page; undefined if it does not exist yet. Errors: 404 if it never will. */
async function manifestPage(services: Services, job: ExportJob, { query }: StatusRequest) {
  const page = Number(query.get('page') ?? 1)
  if (!Number.isInteger(page) || page < 1) throw notFound()
  const isRunning = job.state === 'accepted' || job.state === 'active'
  const pages = await addPage(services.database, job.id)
  if (page > pages + 1) throw notFound()
  if (page > pages) {
    if (isRunning) return undefined
    if (page > 1) throw notFound()
  }
  const manifest = await buildManifest(services, job, { page })
  if (page >= pages) return manifest
  const url = `${statusUrl(services, job.id)}?page=${page + 1}`
  return { ...manifest, link: [{ relation: 'next', url }] }
}

type StatusRequest = Pick<FhirRequest, 'query'>
