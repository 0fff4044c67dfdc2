/** Status, manifest, cancel and files of an export: `bulkdata/export/{id}` and what is below it. */
import { LRUCache } from 'lru-cache'
import type { Principal } from '../../access/principal.ts'
import { HttpError, methodNotAllowed, notFound, tooManyRequests } from '../../errors.ts'
import { accepted, issue, outcome } from '../../fhir/outcome.ts'
import type { Services } from '../../services.ts'
import { listFiles } from '../../store/exports/files.ts'
import {
  cancelExport,
  type ExportJob,
  exportProgress,
  readExport,
  revokeExport,
} from '../../store/exports/jobs.ts'
import type { FhirReply, FhirRequest } from '../handle.ts'
import { absoluteUrl } from '../interaction.ts'
import { emptyReply, outcomeReply } from '../reply.ts'
import { fileReply } from './download.ts'
import { memberOf } from './member.ts'

const PATH = /^bulkdata\/export\/([0-9a-fA-F-]{36})(?:\/files\/([^/]+))?$/

/** Whether a path below `fhir/R4/` belongs to this file. */
export function isExportPath(path: string): boolean {
  return path.startsWith('bulkdata/')
}

/** Errors: 404 for whoever may not see it, 403 once its member has gone. */
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
    if (job.state === 'error') throw failureOf(job)
    if (job.state !== 'completed') throw notFound()
    return fileReply(services, request, job, name)
  }
  if (request.method === 'DELETE') return cancel(services, job)
  if (request.method !== 'GET') throw methodNotAllowed('GET, HEAD, DELETE')
  return status(services, job)
}

/** Errors: 404 unless it is the member's own, or of the Project of an admin. */
export async function findExport(
  services: Services,
  principal: Principal,
  id: string,
): Promise<ExportJob> {
  const job = await readExport(services.database, id)
  if (job === undefined) throw notFound()
  const isHere = job.project === principal.project.number
  const isOwn = job.input.membershipId === principal.membershipId
  const maySee = principal.isSuperAdmin || (isHere && (isOwn || principal.isProjectAdmin))
  if (!maySee) throw notFound()
  if (job.state === 'error' || (await memberOf(services, job.input)) !== undefined) return job
  await revokeExport(services.database, job.id, REVOKED)
  return { ...job, state: 'error', failure: REVOKED }
}

export const REVOKED = { status: 403, text: 'The membership of this export is no longer active' }

async function cancel(services: Services, { id }: ExportJob): Promise<FhirReply> {
  if (!(await cancelExport(services.database, id))) throw notFound()
  await services.queues.wakeExports(1)
  return outcomeReply(202, accepted(statusUrl(services, id)))
}

export function statusUrl(services: Services, id: string): string {
  return absoluteUrl(services, `bulkdata/export/${id}`)
}

async function status(services: Services, job: ExportJob): Promise<FhirReply> {
  pollOrRefuse(job.id)
  switch (job.state) {
    case 'accepted':
    case 'active':
      return running(services, job)
    case 'completed':
      return complete(services, job)
    default:
      throw failureOf(job)
  }
}

/** Errors: 500, or what the client itself is to blame for. */
export function failureOf({ id, failure }: ExportJob): HttpError {
  const { status = 500, text = 'The export failed' } = failure ?? {}
  const code = status === 500 ? 'exception' : 'forbidden'
  return new HttpError(
    status,
    outcome(undefined, issue('error', code, text, undefined, `Export ${id}`)),
  )
}

const SLOW_FROM_MS = 10_000
const MOST_SECONDS = 10

async function running({ database }: Services, { id }: ExportJob): Promise<FhirReply> {
  const { done, total, ageMs } = await exportProgress(database, id)
  const percent = Math.floor((100 * done) / Math.max(1, total))
  const seconds = Math.min(MOST_SECONDS, Math.max(1, Math.floor(ageMs / SLOW_FROM_MS)))
  return emptyReply(202, {
    'X-Progress': `${percent}% complete, ${done} of ${total} parts`,
    'Retry-After': String(seconds),
    'Cache-Control': 'no-store',
  })
}

async function complete(services: Services, job: ExportJob): Promise<FhirReply> {
  return {
    status: 200,
    headers: {
      'Content-Type': 'application/json',
      'Cache-Control': 'private, no-store',
      ...(job.expires === null ? {} : { Expires: job.expires.toUTCString() }),
    },
    body: JSON.stringify(await manifestOf(services, job)),
  }
}

/** https://hl7.org/fhir/uv/bulkdata/STU2/export.html#response---complete-status */
export async function manifestOf(services: Services, { id, at, input }: ExportJob) {
  const files = await listFiles(services.database, id)
  const of = (wanted: string) =>
    files
      .filter(({ kind }) => kind === wanted)
      .map(({ type, number, kind, rows }) => ({
        type,
        url: `${statusUrl(services, id)}/files/${fileName(kind, type, number)}`,
        count: rows,
      }))
  const deleted = of('deleted')
  return {
    transactionTime: at?.toISOString(),
    request: input.request,
    requiresAccessToken: true,
    output: of('output'),
    ...(deleted.length === 0 ? {} : { deleted }),
    error: of('error'),
  }
}

function fileName(kind: string, type: string, number: number): string {
  return kind === 'output' ? `${number}.${type}.ndjson` : `${number}.${kind}.${type}.ndjson`
}

const BUCKET = 30
const REFILL_PER_SECOND = 5
const polled = new LRUCache<string, { left: number; at: number }>({ max: 10_000 })

/** Errors: 429 for who polls many times a second, and keeps on doing so. */
export function pollOrRefuse(id: string): void {
  const now = Date.now()
  const { left, at } = polled.get(id) ?? { left: BUCKET, at: now }
  const filled = Math.min(BUCKET, left + ((now - at) / 1000) * REFILL_PER_SECOND)
  polled.set(id, { left: Math.max(0, filled - 1), at: now })
  if (filled < 1) throw tooManyRequests(1)
}
