/** What is seen of an export beside its status: a BulkDataExport that ends with it, and AuditEvents. */
import { type ProjectContext, systemPrincipal } from '../../access/principal.ts'
import { HttpError } from '../../errors.ts'
import type { Resource } from '../../fhir/resource.ts'
import type { Services } from '../../services.ts'
import { forgetExports } from '../../store/exports/ended.ts'
import type { ExportJob } from '../../store/exports/jobs.ts'
import { SYSTEM_PROJECT } from '../../store/projects.ts'
import { jobPrincipal } from '../async-jobs.ts'
import { type BulkCaller, type BulkStep, recordBulk } from '../bulk-audit.ts'

type Announced = Pick<ExportJob, 'id' | 'input'>

/** Its author is who asked for it. */
export async function announceExport(
  services: Services,
  caller: BulkCaller,
  { id, input }: Announced,
): Promise<void> {
  const resource: Resource = {
    resourceType: 'BulkDataExport',
    id,
    status: 'accepted',
    requestTime: new Date().toISOString(),
    request: input.request,
  }
  const author = jobPrincipal(caller.project, input.profile)
  await Promise.all([
    services.repository.create(author, resource, { keepId: true }),
    recordExport(services, caller, id, 'kick-off', { request: input.request }),
  ])
}

/** What a manifest and the record of an export have in common. */
export interface ExportFiles {
  readonly transactionTime: string | undefined
  readonly requiresAccessToken: boolean
  readonly output: readonly ListedFile[]
  readonly deleted?: readonly ListedFile[]
  readonly error: readonly ListedFile[]
}

export interface ListedFile {
  readonly type: string
  readonly url: string
  readonly count: number
}

/** It changes once; to say it again changes nothing. */
export async function announceEnd(
  services: Services,
  { id, input }: Announced,
  status: 'completed' | 'error' | 'cancelled',
  files?: ExportFiles,
): Promise<void> {
  const project = await services.principals.project(input.projectId)
  if (project === undefined) return
  const author = jobPrincipal(project, input.profile)
  try {
    await services.repository.patch(author, 'BulkDataExport', id, (current) => ({
      ...current,
      status,
      ...(files === undefined ? {} : shownFiles(files)),
    }))
  } catch (error) {
    // Somebody has deleted the record.
    if (!(error instanceof HttpError) || (error.status !== 404 && error.status !== 410)) throw error
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

/** For whoever asks what has become of an export. */
const KEPT_MS = 30 * 24 * 3_600_000

/** Of those that ended 30 days ago nothing is left, their record included. */
export async function removeOldExports({ database, repository }: Services): Promise<void> {
  const before = new Date(Date.now() - KEPT_MS)
  await forgetExports(database, before)
  await repository.maintenance.purge(systemPrincipal(SYSTEM_PROJECT), 'BulkDataExport', before)
}

/** Who has done what with an export; never what is in it. */
export function recordExport(
  services: Pick<Services, 'repository'>,
  caller: BulkCaller,
  id: string,
  step: BulkStep,
  details: Readonly<Record<string, string | number>>,
): Promise<void> {
  return recordBulk(services, caller, `BulkDataExport/${id}`, step, details)
}

/** Who an export belongs to, for what is done without a request. */
export function ownerOf(project: ProjectContext, { input }: Announced): BulkCaller {
  const { profile, membershipId } = input
  return { project, profile, profileDisplay: undefined, membershipId }
}
