/** What is seen of an export beside its status: a BulkDataExport that ends with it, and AuditEvents. */
import { type Principal, type ProjectContext, systemPrincipal } from '../../access/principal.ts'
import { HttpError } from '../../errors.ts'
import type { Resource } from '../../fhir/resource.ts'
import type { Services } from '../../services.ts'
import { forgetExports } from '../../store/exports/ended.ts'
import type { ExportJob } from '../../store/exports/jobs.ts'
import { SYSTEM_PROJECT } from '../../store/projects.ts'
import { agentsOf } from '../admin-audit.ts'
import { jobPrincipal } from '../async-jobs.ts'

type Announced = Pick<ExportJob, 'id' | 'input'>
type Caller = Pick<Principal, 'profile' | 'profileDisplay' | 'membershipId' | 'project'>

/** Its author is who asked for it. */
export async function announceExport(
  services: Services,
  caller: Caller,
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

type Step = 'kick-off' | 'completed' | 'download' | 'cancel'

/** Who has done what with an export; never what is in it. */
export async function recordExport(
  { repository }: Pick<Services, 'repository'>,
  caller: Caller,
  id: string,
  step: Step,
  details: Readonly<Record<string, string | number>>,
): Promise<void> {
  const { project, profile, profileDisplay } = caller
  const detail = Object.entries(details).map(([type, value]) => ({
    type,
    valueString: String(value),
  }))
  await repository.create(
    { ...systemPrincipal(project), profile, profileDisplay },
    {
      resourceType: 'AuditEvent',
      type: { system: 'http://terminology.hl7.org/CodeSystem/audit-event-type', code: 'rest' },
      subtype: [
        { system: 'http://hl7.org/fhir/restful-interaction', code: 'operation' },
        { system: 'http://hl7.org/fhir/uv/bulkdata', code: step },
      ],
      action: step === 'download' ? 'R' : 'E',
      recorded: new Date().toISOString(),
      agent: agentsOf(caller),
      source: { observer: { reference: `Project/${project.id}` } },
      entity: [{ what: { reference: `BulkDataExport/${id}` }, detail }],
      outcome: '0',
    },
  )
}

/** Who an export belongs to, for what is done without a request. */
export function ownerOf(project: ProjectContext, { input }: Announced): Caller {
  const { profile, membershipId } = input
  return { project, profile, profileDisplay: undefined, membershipId }
}
