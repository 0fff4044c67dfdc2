/** Access, AuditEvents and status replies that exports and imports share. */
import { type Principal, servicePrincipal } from '../access/principal.ts'
import { Cache } from '../core/cache.ts'
import { tooManyRequests } from '../core/errors.ts'
import { asArray } from '../fhir/resource.ts'
import { type Acting, actingSession, coversScope } from '../identity/principals.ts'
import { restEvent } from '../request/admin-audit.ts'
import type { Output } from '../request/parameters.ts'
import { emptyReply } from '../request/reply.ts'
import type { FhirReply } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import type { Version } from '../store/rows/version.ts'

export type BulkCaller = Pick<Principal, 'profile' | 'profileDisplay' | 'membershipId' | 'project'>

export interface BulkRecord {
  readonly reference: string
  readonly step: 'kick-off' | 'completed' | 'download' | 'cancel'
  readonly details: Readonly<Record<string, string | number>>
}

/** Writes an AuditEvent about an export or import, without content. */
export async function recordBulk(
  { repository }: Pick<Services, 'repository'>,
  { project, profile, profileDisplay, membershipId }: BulkCaller,
  { reference, step, details }: BulkRecord,
): Promise<void> {
  const detail = Object.entries(details).map(([type, value]) => ({
    type,
    valueString: String(value),
  }))
  const entity = { what: { reference }, detail }
  const event = restEvent({ profile, membershipId }, project, 'operation', entity)
  const subtype = { system: 'http://hl7.org/fhir/uv/bulkdata', code: step }
  // An AsyncJob is not a stored resource.
  const unchecked = { ...project, checkReferencesOnWrite: false }
  await repository.create(servicePrincipal(unchecked, { profile, profileDisplay }), {
    ...event,
    subtype: [...asArray(event.subtype), subtype],
    action: step === 'download' ? 'R' : 'E',
  })
}

/** True for the member that started the job, for admins of the Project and for super admins. */
export function maySeeJob(
  principal: Principal,
  { project, caller }: { readonly project: number; readonly caller: Acting },
): boolean {
  const isOwn = caller.membershipId === principal.membershipId && coversScope(principal, caller)
  const isHere = project === principal.project.number && (isOwn || principal.isProjectAdmin)
  return principal.isSuperAdmin || isHere
}

type Caller = Pick<Principal, 'profile' | 'clientId'> & Acting

export async function activePrincipal(
  { principals }: Services,
  caller: Caller,
): Promise<Principal | undefined> {
  const session = await actingSession(principals, caller)
  if (session === undefined) return undefined
  const { profile, clientId } = caller
  return { ...session.principal, profile, clientId }
}

const BUCKET = 30
const REFILL_PER_SECOND = 5
const polled = new Cache<string, { left: number; at: number }>({
  name: 'export-polls',
  max: 10_000,
})

/** Errors: 429 for sustained polling many times a second. */
export function limitPolling(id: string): void {
  const now = Date.now()
  const { left, at } = polled.get(id) ?? { left: BUCKET, at: now }
  const filled = Math.min(BUCKET, left + ((now - at) / 1000) * REFILL_PER_SECOND)
  // A rejected call takes no token, so even a fast caller gets an occasional answer.
  polled.set(id, { left: filled < 1 ? filled : filled - 1, at: now })
  if (filled < 1) throw tooManyRequests(1)
}

const SLOW_FROM_MS = 10_000
const MOST_RETRY_SECONDS = 10

interface Progress {
  /** From 0 to 100. */
  readonly percent: number
  readonly done: number
  readonly total: number
  readonly ageMs: number
}

/** The status of a running job. */
export function progressReply({ percent, done, total, ageMs }: Progress): FhirReply {
  const seconds = Math.min(MOST_RETRY_SECONDS, Math.max(1, Math.floor(ageMs / SLOW_FROM_MS)))
  return emptyReply(202, {
    'X-Progress': `${Math.floor(percent)}% complete, ${done} of ${total} parts`,
    'Retry-After': String(seconds),
    'Cache-Control': 'no-store',
  })
}

/** The manifest of a completed job. */
export function manifestReply(body: string, expires: Date | null): FhirReply {
  return {
    status: 200,
    headers: {
      'Content-Type': 'application/json',
      'Cache-Control': 'private, no-store',
      ...(expires === null ? {} : { Expires: expires.toUTCString() }),
    },
    body,
  }
}

export function fileOutputs(
  name: string,
  files: readonly { readonly type: string; readonly url: string }[],
): readonly Output[] {
  return files.map(({ type, url }) => {
    const parts: readonly Output[] = [
      ['type', 'valueCode', type],
      ['url', 'valueUri', url],
    ]
    return [name, 'part', parts]
  })
}

export function jobVersion(id: string, lastUpdated: Date, members: object): Version {
  const meta = { versionId: '1', lastUpdated: lastUpdated.toISOString() }
  const content = JSON.stringify({ resourceType: 'AsyncJob', id, meta, ...members })
  return { type: 'AsyncJob', id, ver: 1, lastUpdated, content, metaAt: 0, metaExtension: '' }
}
