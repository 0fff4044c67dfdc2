/** Import jobs as the web process serves them: rows, status, cancel and error files, for the member and for admins. */
import { Readable } from 'node:stream'
import type { Principal } from '../access/principal.ts'
import {
  accepted,
  HttpError,
  methodNotAllowed,
  notFound,
  type OperationOutcome,
} from '../core/errors.ts'
import {
  fileOutputs,
  jobVersion,
  limitPolling,
  manifestReply,
  maySeeJob,
  progressReply,
  recordBulk,
} from '../export/bulk-jobs.ts'
import type { Acting } from '../identity/principals.ts'
import { type Connection, hasRows } from '../postgres/statement.ts'
import { type Output, parametersResource } from '../request/parameters.ts'
import { absoluteUrl, outcomeReply } from '../request/reply.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { isUuid } from '../store/rows/context.ts'
import type { Version } from '../store/rows/version.ts'

/** `ifNoneMatch` skips existing resources. */
export type ImportMode = 'upsert' | 'ifNoneMatch'

/** The identity that writes the lines. Holds no token. */
export type ImportCaller = Pick<Principal, 'profile' | 'clientId'> & Acting

export interface ImportInput {
  /** Null: the URL is a manifest that lists the inputs. */
  readonly type: string | null
  readonly url: string
}

export interface NewImport {
  readonly id: string
  readonly project: number
  readonly request: string
  readonly caller: ImportCaller
  readonly mode: ImportMode
  /** Each input starts after the previous ones. */
  readonly inOrder: boolean
  readonly inputs: readonly ImportInput[]
}

/** Call inside a transaction. False when the Project already has `most` unfinished imports. */
export async function addImport(
  connection: Connection,
  { id, project, request, caller, mode, inOrder, inputs }: NewImport,
  most: number,
): Promise<boolean> {
  // Serializes the counting per Project.
  await connection.query({
    name: 'import-lock',
    text: 'select pg_advisory_xact_lock($1, $2)',
    values: [IMPORTS_LOCK, project],
  })
  return await hasRows(connection, {
    text: `with job as (
        insert into import_job (id, project, request, caller, mode, in_order)
        select $1, $2, $3, $4::jsonb, $5, $6
        where (select count(*) from import_job where project = $2 and state = 'active') < $7
        returning id)
      insert into import_part (job, part, type, url)
      select job.id, x.part, x.type, x.url
      from job, unnest($8::text[], $9::text[]) with ordinality as x(type, url, part)
      returning part`,
    values: [
      id,
      project,
      request,
      JSON.stringify(caller),
      mode,
      inOrder,
      most,
      inputs.map(({ type }) => type),
      inputs.map(({ url }) => url),
    ],
  })
}

const IMPORTS_LOCK = 0x494d

interface ImportJob {
  readonly id: string
  readonly project: number
  readonly state: 'active' | 'completed' | 'failed' | 'cancelled'
  readonly request: string
  readonly caller: ImportCaller
  readonly failure: OperationOutcome | null
  readonly added: Date
  readonly ended: Date | null
}

export interface ImportPart extends ImportInput {
  readonly part: number
  readonly state: 'waiting' | 'done'
  /** From 0 to 1. */
  readonly progress: number
  readonly created: number
  readonly updated: number
  readonly unchanged: number
  readonly skipped: number
  readonly failed: number
}

interface FoundImport {
  readonly job: ImportJob
  readonly parts: readonly ImportPart[]
}

export async function readImport(
  database: Connection,
  id: string,
): Promise<FoundImport | undefined> {
  const [job] = await database.query<ImportJob>({
    name: 'import-read',
    text: `select id, project, state, request, caller, failure, added, ended
      from import_job where id = $1`,
    values: [id],
  })
  if (job === undefined) return undefined
  const parts = await database.query<ImportPart>({
    name: 'import-parts',
    text: `select part, type, url, state, created::float8, updated::float8, unchanged::float8,
        skipped::float8, failed::float8,
        case when state = 'done' then 1 when coalesce(size, 0) = 0 then 0
          else least(1, coalesce(upper(bytes), 0)::float8 / size) end as progress
      from import_part where job = $1 order by part`,
    values: [id],
  })
  return { job, parts }
}

/** False when already cancelled. */
async function cancelImport(database: Connection, id: string): Promise<boolean> {
  return await hasRows(database, {
    name: 'import-cancel',
    text: `update import_job set state = 'cancelled', ended = coalesce(ended, clock_timestamp())
      where id = $1 and state <> 'cancelled' returning id`,
    values: [id],
  })
}

/** Removes cancelled imports, and those that ended more than `ttlHours` ago. */
export async function removeOldImports(database: Connection, ttlHours: number): Promise<void> {
  await database.query({
    name: 'import-remove',
    text: `delete from import_job where ended <= clock_timestamp()
      - case when state = 'cancelled' then 0 else $1::float8 end * interval '1 hour'`,
    values: [ttlHours],
  })
}

const PATH =
  /^bulkdata\/import\/([0-9a-f-]{36})(?:\/files\/([1-9]\d{0,5})\.OperationOutcome\.ndjson)?$/
const HOUR_MS = 3_600_000
const ERRORS_AT_ONCE = 1000

export function importUrl(services: Services, id: string): string {
  return absoluteUrl(services, `bulkdata/import/${id}`)
}

/** Errors: 404 if unknown, cancelled, expired or not the caller's; 405. */
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
  if (isFile) return errorFile(services, principal, found, Number(file))
  if (request.method === 'GET') {
    limitPolling(id)
    return status(services, job, parts)
  }
  await endImport(services, principal, job)
  return outcomeReply(202, accepted(importUrl(services, id)))
}

/** Returns the member's own import, or for an admin any of the Project; otherwise undefined. */
export async function findImport(
  { database }: Services,
  principal: Principal,
  id: string,
): Promise<FoundImport | undefined> {
  const found = isUuid(id) ? await readImport(database, id) : undefined
  if (found === undefined || found.job.state === 'cancelled') return undefined
  return maySeeJob(principal, found.job) ? found : undefined
}

/** Cancels a running import or removes an ended one. Errors: 404 when another call was first. */
export async function endImport(
  services: Services,
  principal: Principal,
  { id, state }: ImportJob,
): Promise<void> {
  await services.repository.transaction(async (transaction) => {
    const isFirst = await transaction.withConnection((connection) => cancelImport(connection, id))
    if (!isFirst) throw notFound()
    await recordBulk({ repository: transaction }, principal, {
      reference: `AsyncJob/${id}`,
      step: 'cancel',
      details: { before: state },
    })
  })
}

function status(services: Services, job: ImportJob, parts: readonly ImportPart[]): FhirReply {
  if (job.state === 'active') return running(job, parts)
  if (job.failure !== null) {
    const isClients = job.failure.id === 'forbidden'
    throw new HttpError(isClients ? 403 : 500, job.failure)
  }
  const expires = new Date(endedAt(job).getTime() + services.config.exportTtlHours * HOUR_MS)
  return manifestReply(JSON.stringify(importManifest(services, job, parts)), expires)
}

function endedAt({ ended, added }: ImportJob): Date {
  return ended ?? added
}

function importManifest(services: Services, job: ImportJob, parts: readonly ImportPart[]) {
  const fileUrl = (part: number) =>
    `${importUrl(services, job.id)}/files/${part}.OperationOutcome.ndjson`
  return {
    transactionTime: endedAt(job).toISOString(),
    request: job.request,
    requiresAccessToken: true,
    output: parts.map(({ type, url, created, updated, unchanged, skipped }) => ({
      // An unreadable manifest has no type.
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
  const reached = parts.reduce((sum, { progress }) => sum + progress, 0)
  return progressReply({
    percent: (100 * reached) / Math.max(parts.length, 1),
    done,
    total: parts.length,
    ageMs: Date.now() - job.added.getTime(),
  })
}

function errorFile(
  services: Services,
  principal: Principal,
  { job: { id }, parts }: FoundImport,
  part: number,
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
      const reference = `AsyncJob/${id}`
      await recordBulk(services, principal, { reference, step: 'download', details: { part } })
      return Readable.from(errorLines(services, id, part), { objectMode: false })
    },
  }
}

async function* errorLines({ database }: Services, id: string, part: number) {
  for (let after = 0; ; ) {
    const page = await database.query<{ line: number; outcome: string }>({
      name: 'import-errors',
      text: `select line::float8, outcome from import_error
        where job = $1 and part = $2 and line > $3 order by line limit $4`,
      values: [id, part, after, ERRORS_AT_ONCE],
    })
    const last = page.at(-1)
    if (last === undefined) return
    yield Buffer.from(page.map(({ outcome }) => `${outcome}\n`).join(''))
    after = last.line
  }
}

/** Represents an import as an AsyncJob, which the SDK can read and cancel. */
export function importAsJob(services: Services, { job, parts }: FoundImport): Version {
  const { id, state, request, added, ended } = job
  return jobVersion(id, endedAt(job), {
    status: state === 'failed' ? 'error' : state,
    requestTime: added.toISOString(),
    request,
    ...(ended === null ? {} : { transactionTime: ended.toISOString() }),
    ...(state === 'completed' ? { output: importOutput(services, job, parts) } : {}),
  })
}

const COUNTS = ['count', 'created', 'updated', 'unchanged', 'skipped'] as const

function importOutput(services: Services, job: ImportJob, parts: readonly ImportPart[]) {
  const { output, error } = importManifest(services, job, parts)
  const inputs = output.map((input): Output => {
    const parts: readonly Output[] = [
      ['type', 'valueCode', input.type],
      ['inputUrl', 'valueUri', input.inputUrl],
      ...COUNTS.map((name): Output => [name, 'valueInteger', input[name]]),
    ]
    return ['output', 'part', parts]
  })
  return parametersResource([...inputs, ...fileOutputs('error', error)])
}
