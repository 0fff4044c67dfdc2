/**
 * URLs of Binaries in resources: stored as `Binary/{id}`, shown as signed URLs to callers with read access to the
 * Binary. External attachments may be downloaded.
 */

import type { Principal } from '../../access/principal.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { leaseNext, releaseLeased } from '../../postgres/leases.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { WritePart } from '../../store/rows/context.ts'
import { JOBS, jobLease, type LeasedJob } from '../../store/rows/upkeep-jobs.ts'
import { namesBinary, withoutBase } from '../reply.ts'
import type { Services } from '../services.ts'

const BINARY = /^Binary\/([A-Za-z0-9\-.]{1,64})(?:\/_history\/[^/?]+)?$/
const STORAGE = /^([A-Za-z0-9\-.]{1,64})\/\d+(?:\?|$)/

/** Returns `Binary/{id}` for any URL of a Binary of this server; other text is unchanged. */
export function toBinaryPath(baseUrl: string, fhirUrls: readonly string[], text: string): string {
  const storage = `${baseUrl}storage/`
  const id = text.startsWith(storage)
    ? STORAGE.exec(text.slice(storage.length))?.[1]
    : BINARY.exec(withoutBase(fhirUrls, text))?.[1]
  return id === undefined ? text : `Binary/${id}`
}

// Quotes within JSON strings are escaped, so this matches members only.
const MEMBER = /("(?:url|path)":\s*)"Binary\/([A-Za-z0-9\-.]{1,64})"/g

/** Signs the Binaries in the JSON text of a reply. */
export async function signAttachments(
  services: Services,
  principal: Principal,
  text: string,
): Promise<string> {
  const sign = await createSigner(services, principal, [text])
  return sign(text)
}

/** Signs the Binaries that the texts mention: one statement for all, one signature each. */
export async function createSigner(
  { repository, signedUrls }: Services,
  principal: Principal,
  texts: readonly string[],
): Promise<(text: string) => string> {
  const ids = new Set<string>()
  for (const text of texts) {
    if (!namesBinary(text)) continue
    for (const { 2: id = '', index } of text.matchAll(MEMBER)) {
      if (!isRequest(text, index)) ids.add(id)
    }
  }
  if (ids.size === 0) return (text) => text
  const heads = await repository.readBinaries(principal, [...ids])
  const signed = new Map(
    [...heads].map(([id, { projectId, ver }]) => [
      id,
      signedUrls.sign({ project: projectId, id, ver, membershipId: principal.membershipId }),
    ]),
  )
  return (text) => {
    if (!namesBinary(text)) return text
    return text.replace(MEMBER, (member: string, name: string, id: string, offset: number) => {
      const url = signed.get(id)
      if (url === undefined || isRequest(text, offset)) return member
      return name + JSON.stringify(url)
    })
  }
}

/** `request.url` of a bundle entry is an API path, not an attachment. */
function isRequest(text: string, offset: number): boolean {
  return /"request":\s*$/.test(text.slice(0, text.lastIndexOf('{', offset)).slice(-20))
}

/* Downloads of external attachments are rows of table `job`, added by the statement that writes the version. */

export interface DownloadInput {
  readonly projectId: string
  readonly type: string
  readonly id: string
  readonly ver: number
}

export interface Download extends LeasedJob {
  readonly input: DownloadInput
  /** Includes this one. */
  readonly attempt: number
}

const EXTERNAL = /"url":\s*"https:\/\//

/** Skips versions without external URLs, in another Project than the writer's, or written by the service itself. */
export function downloadPart(isOn: boolean): WritePart<DownloadInput> {
  return {
    types: isOn ? undefined : new Set(),
    buildRow({ principal, place, resource, tail }) {
      const { projectId, id, ver } = place
      if (!EXTERNAL.test(tail) || principal.membershipId === undefined) return undefined
      if (projectId !== principal.project.id) return undefined
      // The address may name a host that the Bot may not call, and carry data to it.
      if (principal.declared?.hosts !== undefined) return undefined
      return { projectId, type: resource.resourceType, id, ver }
    },
    sql(downloads, bind) {
      const numbers = bind(`{${downloads.map(({ n }) => n).join(',')}}`, 'int[]')
      const inputs = bind(
        downloads.map(({ item }) => JSON.stringify(item)),
        'text[]',
      )
      const insert = `dl as (insert into job (id, project, kind, state, input)
    select gen_random_uuid(), w.project, 'download', 'waiting', x.input::jsonb
    from ${dialect.unnest(numbers, inputs)} as x(n, input) join w using (n))`
      return { name: 'downloads', sql: [insert] }
    },
    planned: (rows) => `dl as (insert into job (id, project, kind, state, input)
    select gen_random_uuid(), $1::int, 'download', 'waiting', input::jsonb
    from ${rows})`,
  }
}

/** Leases one job per Project at a time, so that slow hosts of one do not hold up the others. */
export async function leaseDownload(connection: Connection): Promise<Download | undefined> {
  return await leaseNext<Download>(connection, JOBS, {
    name: 'download-lease',
    // Workers of the previous version record no lease, only the time when others may take the job.
    where: `x.kind = 'download' and (x.held is not null or x.touched <= clock_timestamp())
      and x.project <> all(array(select o.project from job o
        where o.kind = 'download' and o.state = 'active' and o.held > clock_timestamp()))`,
    orderBy: 'x.touched',
    set: `state = 'active', started = coalesce(x.started, clock_timestamp()),
      progress = to_jsonb(coalesce(x.progress::int, 0) + 1)`,
    returning: 'x.id, x.input, x.progress::int as attempt',
  })
}

/** Retries after `delayMs`. Returns false when the lease was lost. */
export async function repeatDownload(
  connection: Connection,
  job: LeasedJob,
  delayMs: number,
): Promise<boolean> {
  return await releaseLeased(connection, JOBS, jobLease(job), {
    name: 'download-repeat',
    set: `state = 'waiting', held = null,
      touched = clock_timestamp() + $3::float8 * interval '1 ms'`,
    values: [delayMs],
  })
}
