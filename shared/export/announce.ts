/** Public view of an export: its BulkDataExport, manifest and AsyncJob. */
import { type Principal, type ProjectContext, servicePrincipal } from '../access/principal.ts'
import { system } from '../access/project-context.ts'
import { isAbsent } from '../core/errors.ts'
import type { Resource } from '../fhir/resource.ts'
import { purge } from '../jobs/upkeep/maintenance.ts'
import type { Storage } from '../outbound/storage/storage.ts'
import type { Connection } from '../postgres/statement.ts'
import { parametersResource } from '../request/parameters.ts'
import { absoluteUrl } from '../request/reply.ts'
import type { Services } from '../request/services.ts'
import type { Repository } from '../store/repository.ts'
import type { Version } from '../store/rows/version.ts'
import {
  type BulkCaller,
  type BulkRecord,
  fileOutputs,
  jobVersion,
  recordBulk,
} from './bulk-jobs.ts'
import { contentHeaders, fileKey } from './file.ts'
import { deleteOldExports, listFiles } from './rows/files.ts'
import { addExport, type ExportJob } from './rows/jobs.ts'

/** Adds the export and its BulkDataExport, authored by the caller. False when `most` are already waiting. */
export async function beginExport(
  { repository }: Services,
  caller: BulkCaller,
  job: Parameters<typeof addExport>[1],
  most: number,
): Promise<boolean> {
  const { id, input } = job
  const { request } = input
  const requestTime = new Date().toISOString()
  const resource = { resourceType: 'BulkDataExport', id, status: 'accepted', requestTime, request }
  const author = servicePrincipal(caller.project, { profile: input.profile })
  return repository.transaction(async (transaction) => {
    if (!(await transaction.withConnection((connection) => addExport(connection, job, most))))
      return false
    await transaction.create(author, resource, { keepId: true })
    const record = {
      reference: `BulkDataExport/${id}`,
      step: 'kick-off',
      details: { request },
    } as const
    await recordBulk({ repository: transaction }, caller, record)
    return true
  })
}

interface ExportEnd {
  readonly status: 'completed' | 'cancelled' | 'error'
  /** False when the job or the lease has ended. */
  endRow(connection: Connection): Promise<boolean>
  /** Files of a completed export. */
  readonly files?: ExportFiles
  /** Default: the caller of the kick-off. */
  readonly caller?: BulkCaller
}

/** Ends the job and its record and adds the AuditEvent, all or nothing. False when the job or the lease has ended. */
export async function endExport(
  { repository, principals }: Services,
  job: ExportJob,
  { status, endRow, files, caller }: ExportEnd,
): Promise<boolean> {
  const { id, input } = job
  const project = await principals.project(input.projectId)
  return repository.transaction(async (transaction) => {
    if (!(await transaction.withConnection(endRow))) return false
    if (project === undefined) return true
    const author = servicePrincipal(project, { profile: input.profile })
    await changeRecord(transaction, author, id, { status, ...(files && shownFiles(files)) })
    if (status === 'error') return true
    await recordBulk({ repository: transaction }, caller ?? exportOwner(project, job), {
      reference: `BulkDataExport/${id}`,
      step: status === 'completed' ? status : 'cancel',
      details: files === undefined ? { before: job.state } : totals(job, files),
    })
    return true
  })
}

function totals({ issues }: ExportJob, { output }: ExportFiles): BulkRecord['details'] {
  const resources = output.reduce((sum, { count }) => sum + count, 0)
  return { resources, files: output.length, errors: issues.length }
}

async function changeRecord(
  repository: Repository,
  author: Principal,
  id: string,
  shown: object,
): Promise<void> {
  try {
    const change = (current: Resource) => ({ ...current, ...shown })
    await repository.patch(author, { type: 'BulkDataExport', id }, change)
  } catch (error) {
    // The record was deleted.
    if (!isAbsent(error)) throw error
  }
}

function shownFiles({ transactionTime, requiresAccessToken, output, deleted, error }: ExportFiles) {
  const some = (name: string, files: readonly ListedFile[] = []) =>
    files.length === 0 ? {} : { [name]: files.map(({ type, url }) => ({ type, url })) }
  return {
    transactionTime,
    requiresAccessToken,
    ...some('output', output),
    ...some('deleted', deleted),
    ...some('error', error),
  }
}

/** Lifetime of status URLs after the end. */
const KEPT_MS = 30 * 24 * 3_600_000

export async function removeOldExports({ database, repository }: Services): Promise<void> {
  const before = new Date(Date.now() - KEPT_MS)
  await deleteOldExports(database, before)
  await repository.withStore((store) => purge(store, system, 'BulkDataExport', before))
}

/** Principal of an export's caller, for steps without a request. */
function exportOwner(project: ProjectContext, { input }: ExportJob): BulkCaller {
  const { profile, membershipId } = input
  return { project, profile, profileDisplay: undefined, membershipId }
}

interface ExportFiles {
  readonly transactionTime: string | undefined
  readonly requiresAccessToken: boolean
  readonly outputOrganizedBy?: string
  readonly output: readonly ListedFile[]
  readonly deleted?: readonly ListedFile[]
  readonly error: readonly ListedFile[]
}

interface ListedFile {
  readonly type: string
  readonly url: string
  readonly count: number
  /** URL of the next file, which continues this file's last patient. */
  readonly continuesInFile?: string
}

/** Time to start a download; later the client must read the manifest again. */
const SIGNED_SECONDS = 300

/** Builds the manifest of one page or of all; `sign` creates URLs for direct downloads from storage. */
export async function buildManifest(
  services: Services,
  { id, at, input }: ExportJob,
  { page, sign }: { readonly page?: number; readonly sign?: Storage['sign'] } = {},
): Promise<ExportFiles & { readonly request: string }> {
  const files = await listFiles(services.database, id, page)
  const all = await Promise.all(
    files.map(async ({ kind, type, number, part, seq, rows, goesOn }) => {
      const name = `${number}.${kind === 'output' ? '' : `${kind}.`}${type}.ndjson`
      const key = fileKey(input.projectId, id, part, seq)
      const signed = await sign?.(key, SIGNED_SECONDS, contentHeaders(name))
      const url = signed ?? `${statusUrl(services, id)}/files/${name}`
      return { kind, part, seq, goesOn, file: { type, url, count: rows } }
    }),
  )
  const continued = all.filter(({ goesOn }) => goesOn)
  const going = new Map(continued.map(({ part, seq, file }) => [`${part} ${seq}`, file.url]))
  const of = (wanted: string) =>
    all.flatMap(({ kind, part, seq, file }): ListedFile | [] => {
      if (kind !== wanted) return []
      const continuesInFile = going.get(`${part} ${seq + 1}`)
      return continuesInFile === undefined ? file : { ...file, continuesInFile }
    })
  const deleted = of('deleted')
  return {
    transactionTime: at?.toISOString(),
    request: input.request,
    requiresAccessToken: sign === undefined,
    ...(input.organizedBy === undefined ? {} : { outputOrganizedBy: input.organizedBy }),
    output: of('output'),
    ...(deleted.length === 0 ? {} : { deleted }),
    error: of('error'),
  }
}

/** Serializes the manifest. Files by patient hold several types, so `type` is omitted; records name Patient. */
export function manifestText(manifest: ExportFiles): string {
  if (manifest.outputOrganizedBy === undefined) return JSON.stringify(manifest)
  const output = manifest.output.map((file) => ({ ...file, type: undefined }))
  return JSON.stringify({ ...manifest, output })
}

export function statusUrl(services: Services, id: string): string {
  return absoluteUrl(services, `bulkdata/export/${id}`)
}

export async function exportAsJob(services: Services, job: ExportJob): Promise<Version> {
  const { id, state, input, requested, at, finished } = job
  const files = state === 'completed' ? await buildManifest(services, job) : undefined
  const { output = [], deleted = [], error = [] } = files ?? {}
  const outputs = [
    ...fileOutputs('output', output),
    ...fileOutputs('deleted', deleted),
    ...fileOutputs('error', error),
  ]
  return jobVersion(id, finished ?? at ?? requested, {
    status: state,
    requestTime: requested.toISOString(),
    request: input.request,
    ...(at === null ? {} : { transactionTime: at.toISOString() }),
    ...(files === undefined ? {} : { output: parametersResource(outputs) }),
  })
}
