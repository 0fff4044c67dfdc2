/** Status, cancel and error files of an import, for the member that began it and for project admins. */
import { Readable } from 'node:stream'
import type { Principal } from '../../access/principal.ts'
import { accepted, HttpError, methodNotAllowed, notFound } from '../../errors.ts'
import { covers } from '../../identity/principals.ts'
import { absoluteUrl, emptyReply, outcomeReply } from '../../request/reply.ts'
import type { FhirReply, FhirRequest } from '../../request/request.ts'
import type { Services } from '../../services.ts'
import { isUuid } from '../../store/rows/context.ts'
import { type BulkCaller, type BulkStep, recordBulk } from '../exports/announce.ts'
import { pollOrRefuse } from '../exports/status.ts'
import {
  cancelImport,
  type ImportJob,
  type ImportPart,
  readImport,
  readImportErrors,
} from './imports.ts'

const PATH =
  /^bulkdata\/import\/([0-9a-f-]{36})(?:\/files\/([1-9]\d{0,5})\.OperationOutcome\.ndjson)?$/
const HOUR_MS = 3_600_000
const MOST_RETRY_SECONDS = 10
const ERRORS_AT_ONCE = 1000

export function importUrl(services: Services, id: string): string {
  return absoluteUrl(services, `bulkdata/import/${id}`)
}

/** Errors: 404 for what is unknown, cancelled, old or another's; 405. */
export async function handleImport(
  services: Services,
  principal: Principal,
  request: FhirRequest,
): Promise<FhirReply> {
  const [, id, file] = PATH.exec(request.path) ?? []
  if (id === undefined) throw notFound()
  const isFile = file !== undefined
  const allowed = isFile ? ['GET'] : ['GET', 'DELETE']
  if (!allowed.includes(request.method)) throw methodNotAllowed(allowed.join(', '))
  const found = await findImport(services, principal, id)
  if (found === undefined) throw notFound()
  const { job, parts } = found
  if (isFile) return errorFile(services, principal, { parts, id, part: Number(file) })
  if (request.method === 'GET') {
    pollOrRefuse(id)
    return status(services, job, parts)
  }
  await endImport(services, principal, job)
  return outcomeReply(202, accepted(importUrl(services, id)))
}

interface Found {
  readonly job: ImportJob
  readonly parts: readonly ImportPart[]
}

/** Undefined unless it is the member's own, or of the Project of an admin. */
export async function findImport(
  { database }: Services,
  principal: Principal,
  id: string,
): Promise<Found | undefined> {
  const found = isUuid(id) ? await readImport(database, id) : undefined
  return found !== undefined && maySee(principal, found.job) ? found : undefined
}

/** Cancels, or forgets what is there. Errors: 404 when somebody was first. */
export async function endImport(
  services: Services,
  principal: Principal,
  { id, state }: ImportJob,
): Promise<void> {
  await services.repository.transaction(async (transaction) => {
    const isFirst = await transaction.beside((connection) => cancelImport(connection, id))
    if (!isFirst) throw notFound()
    await recordImport({ repository: transaction }, principal, {
      id,
      step: 'cancel',
      details: { before: state },
    })
  })
}

interface ImportRecord {
  readonly id: string
  readonly step: BulkStep
  readonly details: Readonly<Record<string, string | number>>
}

/** Writes an AuditEvent about an import. */
export function recordImport(
  services: Pick<Services, 'repository'>,
  caller: BulkCaller,
  { id, step, details }: ImportRecord,
): Promise<void> {
  return recordBulk(services, caller, { reference: `AsyncJob/${id}`, step, details })
}

function maySee(principal: Principal, { project, caller, state }: ImportJob): boolean {
  if (state === 'cancelled') return false
  if (principal.isSuperAdmin) return true
  const isOwn = caller.membershipId === principal.membershipId && covers(principal, caller)
  return project === principal.project.number && (isOwn || principal.isProjectAdmin)
}

function status(services: Services, job: ImportJob, parts: readonly ImportPart[]): FhirReply {
  if (job.state === 'active') return running(job, parts)
  if (job.failure !== null) {
    const isClients = job.failure.id === 'forbidden'
    throw new HttpError(isClients ? 403 : 500, job.failure)
  }
  return {
    status: 200,
    headers: {
      'Content-Type': 'application/json',
      'Cache-Control': 'private, no-store',
      Expires: new Date(
        endOf(job).getTime() + services.config.exportTtlHours * HOUR_MS,
      ).toUTCString(),
    },
    body: JSON.stringify(importManifest(services, job, parts)),
  }
}

function endOf({ ended, added }: ImportJob): Date {
  return ended ?? added
}

/** The result of each input, with the address of its refused lines. */
export function importManifest(services: Services, job: ImportJob, parts: readonly ImportPart[]) {
  const fileUrl = (part: number) =>
    `${importUrl(services, job.id)}/files/${part}.OperationOutcome.ndjson`
  return {
    transactionTime: endOf(job).toISOString(),
    request: job.request,
    requiresAccessToken: true,
    output: parts.map(({ type, url, created, updated, unchanged, skipped }) => ({
      // A manifest that could not be read is of no type.
      ...(type === null ? {} : { type }),
      inputUrl: url,
      count: created + updated + unchanged,
      created,
      updated,
      unchanged,
      skipped,
    })),
    error: parts
      .filter(({ failed }) => failed > 0)
      .map(({ part, url, failed }) => ({
        type: 'OperationOutcome',
        inputUrl: url,
        count: failed,
        url: fileUrl(part),
      })),
  }
}

function running(job: ImportJob, parts: readonly ImportPart[]): FhirReply {
  const done = parts.filter(({ state }) => state === 'done').length
  const share = parts.reduce((sum, { progress }) => sum + progress, 0) / Math.max(parts.length, 1)
  const seconds = Math.ceil((Date.now() - job.added.getTime()) / 10_000)
  return emptyReply(202, {
    'X-Progress': `${Math.floor(share * 100)}% complete, ${done} of ${parts.length} parts`,
    'Retry-After': String(Math.min(Math.max(seconds, 1), MOST_RETRY_SECONDS)),
    'Cache-Control': 'no-store',
  })
}

interface ErrorFile {
  readonly parts: readonly ImportPart[]
  readonly id: string
  readonly part: number
}

/** Lines that were refused so far, in their order. */
function errorFile(
  services: Services,
  principal: Principal,
  { parts, id, part }: ErrorFile,
): FhirReply {
  if (!parts.some((item) => item.part === part && item.failed > 0)) throw notFound()
  return {
    status: 200,
    headers: {
      'Content-Type': 'application/fhir+ndjson',
      'Cache-Control': 'private, no-store',
      'X-Content-Type-Options': 'nosniff',
      'Content-Disposition': 'attachment',
    },
    body: undefined,
    open: async () => {
      await recordImport(services, principal, { id, step: 'download', details: { part } })
      return Readable.from(errorLines(services, id, part), { objectMode: false })
    },
  }
}

async function* errorLines({ database }: Services, id: string, part: number) {
  for (let after = 0; ; ) {
    const page = await readImportErrors(database, id, { part, after, count: ERRORS_AT_ONCE })
    const last = page.at(-1)
    if (last === undefined) return
    yield Buffer.from(page.map(({ outcome }) => `${outcome}\n`).join(''))
    after = last.line
  }
}
