/** Writes what others see of an export: a BulkDataExport that ends with it, and AuditEvents. */
import { type Principal, type ProjectContext, systemPrincipal } from '../../access/principal.ts'
import { SYSTEM_PROJECT } from '../../access/project-context.ts'
import { jobPrincipal } from '../../bots/async-jobs.ts'
import { HttpError } from '../../errors.ts'
import type { Resource } from '../../fhir/resource.ts'
import { createMaintenance } from '../../jobs/upkeep/maintenance.ts'
import type { Connection } from '../../platform/postgres/statement.ts'
import { agentsOf } from '../../request/admin-audit.ts'
import type { Services } from '../../services.ts'
import type { Repository } from '../../store/repository.ts'
import { forgetExports } from './rows/files.ts'
import { addExport, type ExportJob } from './rows/jobs.ts'

type Announced = Pick<ExportJob, 'id' | 'input'>

/** The export with its record, whose author is who asked for it. False when `most` are waiting already. */
export async function beginExport(
  { repository }: Services,
  caller: BulkCaller,
  job: Parameters<typeof addExport>[1],
  most: number,
): Promise<boolean> {
  const { id, input } = job
  const resource: Resource = {
    resourceType: 'BulkDataExport',
    id,
    status: 'accepted',
    requestTime: new Date().toISOString(),
    request: input.request,
  }
  const author = jobPrincipal(caller.project, input.profile)
  return repository.transaction(async (transaction) => {
    if (!(await transaction.beside((connection) => addExport(connection, job, most)))) return false
    await transaction.create(author, resource, { keepId: true })
    const recording = { repository: transaction }
    await recordExport(recording, caller, {
      id,
      step: 'kick-off',
      details: { request: input.request },
    })
    return true
  })
}

/** Members that a manifest and the record of an export share. */
export interface ExportFiles {
  readonly transactionTime: string | undefined
  readonly requiresAccessToken: boolean
  readonly outputOrganizedBy?: string
  readonly output: readonly ListedFile[]
  readonly deleted?: readonly ListedFile[]
  readonly error: readonly ListedFile[]
}

export interface ListedFile {
  readonly type: string
  readonly url: string
  readonly count: number
  /** Address of the file that goes on with the patient that is the last one of this. */
  readonly continuesInFile?: string
}

export interface ExportEnd {
  readonly status: 'completed' | 'error' | 'cancelled'
  readonly files?: ExportFiles
  /** The caller and the step that the AuditEvent names. */
  readonly record?: {
    readonly caller: BulkCaller
    readonly step: BulkStep
    readonly details: Details
  }
}

type Details = Readonly<Record<string, string | number>>

/** `change` ends the job, and with it ends what is seen of it: all or nothing. False when it is too late. */
export async function endExport(
  { repository, principals }: Services,
  { id, input }: Announced,
  { status, files, record }: ExportEnd,
  change: (connection: Connection) => Promise<boolean>,
): Promise<boolean> {
  const project = await principals.project(input.projectId)
  return repository.transaction(async (transaction) => {
    if (!(await transaction.beside(change))) return false
    if (project === undefined) return true
    const shown = { status, ...(files === undefined ? {} : shownFiles(files)) }
    await changeRecord(transaction, jobPrincipal(project, input.profile), id, shown)
    const recording = { repository: transaction }
    if (record)
      await recordExport(recording, record.caller, {
        id,
        step: record.step,
        details: record.details,
      })
    return true
  })
}

async function changeRecord(
  repository: Repository,
  author: Principal,
  id: string,
  shown: object,
): Promise<void> {
  try {
    await repository.patch(author, { type: 'BulkDataExport', id }, (current) => ({
      ...current,
      ...shown,
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

/** Removes exports that ended 30 days ago, their record included. */
export async function removeOldExports({ database, repository }: Services): Promise<void> {
  const before = new Date(Date.now() - KEPT_MS)
  await forgetExports(database, before)
  await repository
    .feature(createMaintenance)
    .purge(systemPrincipal(SYSTEM_PROJECT), 'BulkDataExport', before)
}

interface ExportRecord {
  readonly id: string
  readonly step: BulkStep
  readonly details: Details
}

/** Writes an AuditEvent about an export, never about its content. */
export function recordExport(
  services: Pick<Services, 'repository'>,
  caller: BulkCaller,
  { id, step, details }: ExportRecord,
): Promise<void> {
  return recordBulk(services, caller, { reference: `BulkDataExport/${id}`, step, details })
}

/** The owner of an export, for steps without a request. */
export function ownerOf(project: ProjectContext, { input }: Announced): BulkCaller {
  const { profile, membershipId } = input
  return { project, profile, profileDisplay: undefined, membershipId }
}

export type BulkCaller = Pick<Principal, 'profile' | 'profileDisplay' | 'membershipId' | 'project'>

export type BulkStep = 'kick-off' | 'completed' | 'download' | 'cancel'

interface BulkRecord {
  readonly reference: string
  readonly step: BulkStep
  readonly details: Readonly<Record<string, string | number>>
}

/** `reference` is that of the job. */
export async function recordBulk(
  { repository }: Pick<Services, 'repository'>,
  { project, profile, profileDisplay, membershipId }: BulkCaller,
  { reference, step, details }: BulkRecord,
): Promise<void> {
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
      agent: agentsOf({ profile, membershipId }),
      source: { observer: { reference: `Project/${project.id}` } },
      entity: [{ what: { reference }, detail }],
      outcome: '0',
    },
  )
}
