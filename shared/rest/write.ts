/**
 * Writes one resource for REST, bundle entries, GraphQL and bots: accept (interaction.ts), ask a pre-commit bot
 * (pre-commit.ts), write (store/write/write.ts), record (audited-writes.ts), reply (interaction.ts).
 * https://hl7.org/fhir/R4/http.html#create
 */
import { randomUUIDv7 } from 'node:crypto'
import { SUBSCRIPTION } from '../access/subscription.ts'
import {
  allOk,
  badRequest,
  type Issue,
  isAbsent,
  outcome,
  preconditionFailed,
} from '../core/errors.ts'
import { isObject, parseReference, type Resource } from '../fhir/resource.ts'
import { newProject } from '../projects/provision.ts'
import { isBinary, withStoredContent } from '../request/binary/content.ts'
import { readJson, readPatchBody } from '../request/negotiate.ts'
import { charge, WRITE } from '../request/quota.ts'
import {
  demandsExistence,
  emptyReply,
  formatEtag,
  outcomeReply,
  writeOptions,
} from '../request/reply.ts'
import type { FhirContext, FhirReply } from '../request/request.ts'
import type { Repository } from '../store/repository.ts'
import type { Deletion, WriteOptions, WriteResult } from '../store/rows/version.ts'
import type { TransactionLocks } from '../store/transaction.ts'
import {
  createSocketSubscription,
  deleteSocketSubscription,
  isOfSocket,
  rejectSocketChange,
  storedOrHeld,
} from '../subscriptions/socket-subscriptions.ts'
import { afterDeletion, afterDeletions, writeAudited } from './audited-writes.ts'
import { createBinary, createBinaryFrom, updateBinary, updateBinaryFrom } from './binary-write.ts'
import { literalReferences, withLiteralReferences } from './conditional-references.ts'
import {
  type Accepted,
  acceptResource,
  finishWrite,
  mayAskBots,
  requireSameId,
  validateForWrite,
} from './interaction.ts'
import { compilePatch } from './patch/fhirpath.ts'
import { beforeDelete, beforeWrite, patchWithPreCommit } from './pre-commit.ts'

export async function create(context: FhirContext, type: string): Promise<FhirReply> {
  if (type === 'Binary') return createBinary(context)
  return createFrom(context, type, readJson(context.request), undefined)
}

/** Creates under the given id or a new one. */
export async function createFrom(
  context: FhirContext,
  type: string,
  body: unknown,
  id: string | undefined,
): Promise<FhirReply> {
  const { services, principal } = context
  if (type === 'Binary' && isBinary(body)) return createBinaryFrom(context, body, id)
  const { resource, warnings } = await acceptNew(context, type, body)
  if (isPlainCreate(context) && isOfSocket(resource)) {
    const made = await createSocketSubscription(services, principal, resource, id)
    return finishWrite(context, made, warnings)
  }
  const made = id === undefined ? resource : { ...resource, id }
  const next = mayAskBots(context) ? await beforeWrite(context, 'create', made) : made
  const keepId = next.id !== undefined
  return writeAudited(context, type, async (inside) => {
    const written = await inside.services.repository.create(principal, next, { keepId })
    return finishWrite(inside, written, warnings)
  })
}

/** False for conditions, which find stored resources alone, and for ids that the client chooses. */
function isPlainCreate({ request: { method, headers } }: FhirContext): boolean {
  return method === 'POST' && headers['if-none-exist'] === undefined
}

/** A stored version, with the warnings of its validation. */
export interface Written {
  readonly version: WriteResult
  readonly warnings: readonly Issue[]
}

/** Creates an operation's resources atomically; they may refer to each other. `check` sees the prior state. */
export async function createTogether(
  context: FhirContext,
  made: readonly Resource[],
  check: (inside: Repository) => Promise<void> = async () => {},
  locks?: TransactionLocks,
): Promise<readonly Written[]> {
  const { services, principal, request } = context
  await charge(services, principal, { request, units: WRITE * made.length })
  const accepted: Accepted[] = []
  for (const body of made) {
    const { resource, warnings } = await acceptNew(context, body.resourceType, body)
    const id = body.id ?? randomUUIDv7()
    accepted.push({ resource: await beforeWrite(context, 'create', { ...resource, id }), warnings })
  }
  return services.repository.transaction(async (inside) => {
    await check(inside)
    const written: Written[] = []
    for (const { resource, warnings } of accepted) {
      const version = await inside.create(principal, resource, { keepId: true })
      written.push({ version, warnings })
    }
    return written
  }, locks)
}

export interface ReadVersion {
  readonly resource: Resource
  /** The version that was read. */
  readonly ver: number
}

/**
 * Updates and deletes resources in one transaction; `check` sees the prior state. Errors: 412 if one of them is no
 * longer at its version.
 */
export async function changeTogether(
  context: FhirContext,
  { updates, deletions }: Readonly<Record<'updates' | 'deletions', readonly ReadVersion[]>>,
  check: (inside: Repository) => Promise<void>,
  locks: TransactionLocks,
): Promise<{ readonly updated: readonly Written[] }> {
  const { services, principal, request } = context
  await charge(services, principal, {
    request,
    units: WRITE * (updates.length + deletions.length),
  })
  const accepted: (Accepted & ReadVersion)[] = []
  for (const { resource: body, ver } of updates) {
    const { id = '', resourceType } = body
    const { resource, warnings } = await acceptUpdate(context, resourceType, id, body)
    const next = await beforeWrite(context, 'update', { ...resource, id }, [ver])
    accepted.push({ resource: next, ver, warnings })
  }
  for (const { resource, ver } of deletions) {
    await beforeDelete(context, resource.resourceType, resource.id ?? '', [ver])
  }
  const { updated, deleted } = await services.repository.transaction(async (inside) => {
    await check(inside)
    const updated: Written[] = []
    const deleted: Deletion[] = []
    for (const { resource, ver, warnings } of accepted) {
      const version = await inside.update(principal, resource, { ifMatch: [ver] })
      updated.push({ version, warnings })
    }
    for (const { resource, ver } of deletions) {
      const options = { ifMatch: [ver] }
      deleted.push(
        await inside.delete(principal, resource.resourceType, resource.id ?? '', options),
      )
    }
    return { updated, deleted }
  }, locks)
  await afterDeletions(context, deleted)
  return { updated }
}

/** Validates a new resource and drops a client-chosen id. Errors: 400. */
export async function acceptNew(
  context: FhirContext,
  type: string,
  body: unknown,
): Promise<Accepted> {
  const sent = withAccount(context, withoutId(body))
  // Projects get the same defaults however they are created.
  const whole = type === 'Project' ? newProject(sent, context.services.config) : sent
  const hasQuestion = context.request.body?.includes('?') === true
  const literal = hasQuestion ? await withLiteralReferences(context, whole) : whole
  return acceptResource(context, type, literal)
}

/** Applies `?_account=Type/id` to a new resource; the store restricts it to administrators. Errors: 400. */
export function withAccount({ request }: FhirContext, body: unknown): unknown {
  const reference = request.query.get('_account')
  if (reference === null || !isObject(body)) return body
  if (parseReference(reference) === undefined) throw badRequest('_account must be Type/id')
  const { meta = {} } = body
  return isObject(meta) ? { ...body, meta: { ...meta, accounts: [{ reference }] } } : body
}

/** The server assigns the id; any id sent is dropped. */
function withoutId(body: unknown): unknown {
  if (!isObject(body)) return body
  const { id: _id, ...rest } = body
  return rest
}

export async function update(context: FhirContext, type: string, id: string): Promise<FhirReply> {
  if (type === 'Binary') return updateBinary(context, id)
  return updateFrom(context, { type, id, body: readJson(context.request) })
}

interface SentChange {
  readonly type: string
  readonly id: string
  /** The resource, or a patch. */
  readonly body: unknown
  readonly check?: WriteOptions['check']
}

export async function updateFrom(
  context: FhirContext,
  { type, id, body, check }: SentChange,
): Promise<FhirReply> {
  const { services, principal, request } = context
  if (type === 'Binary' && isBinary(body)) {
    requireSameId(body.id, id)
    return updateBinaryFrom(context, body, id)
  }
  const { resource, warnings } = await acceptUpdate(context, type, id, body)
  const options = { ...writeOptions(request), check }
  if (demandsExistence(request)) await requireExisting(context, type, id)
  const next = await beforeWrite(context, 'update', { ...resource, id }, options.ifMatch)
  return writeAudited(context, type, async (inside) => {
    const stored = () => inside.services.repository.update(principal, next, options)
    const held = () => rejectSocketChange(services, principal, id)
    const written = await (type === SUBSCRIPTION ? storedOrHeld(stored, held) : stored())
    return finishWrite(inside, written, warnings)
  })
}

export async function acceptUpdate(
  context: FhirContext,
  type: string,
  id: string,
  body: unknown,
): Promise<Accepted> {
  if (isObject(body) && body.resourceType === type) requireSameId(body.id, id)
  const literal = await withLiteralReferences(context, body)
  return acceptResource(context, type, literal)
}

export async function patch(context: FhirContext, type: string, id: string): Promise<FhirReply> {
  return patchFrom(context, { type, id, body: readPatchBody(context.request) })
}

export async function patchFrom(
  context: FhirContext,
  { type, id, body, check }: SentChange,
): Promise<FhirReply> {
  const { services, principal, request } = context
  const change = patchedBy(context, type, body)
  const options = { ...writeOptions(request), largest: services.config.maxBodyBytes, check }
  if (demandsExistence(request)) await requireExisting(context, type, id)
  return writeAudited(context, type, async (inside) => {
    const stored = () => patchWithPreCommit(inside, { type, id, apply: change, options })
    const held = () => rejectSocketChange(services, principal, id)
    const written = await (type === SUBSCRIPTION ? storedOrHeld(stored, held) : stored())
    return finishWrite(inside, written)
  })
}

/** Applies a patch to a version and validates the result. Errors: 400 for an invalid patch. */
export function patchedBy(
  context: FhirContext,
  type: string,
  body: unknown,
): (current: Resource) => Promise<Resource> {
  const patched = compilePatch(body)
  const hasQuestion = JSON.stringify(body).includes('?')
  return async (current) => {
    const next = patched(current)
    const kept = type === 'Binary' ? withStoredContent(current, next) : next
    const literal = hasQuestion ? await literalReferences(context, kept) : kept
    const { resource } = await validateForWrite(context, literal)
    return resource
  }
}

export async function remove(context: FhirContext, type: string, id: string): Promise<FhirReply> {
  const { services, principal, request } = context
  const options = writeOptions(request)
  if (demandsExistence(request)) await requireExisting(context, type, id)
  await beforeDelete(context, type, id, options.ifMatch)
  const { deletion, warnings } = await writeAudited(context, type, async (inside) => {
    const stored = () => inside.services.repository.delete(principal, type, id, options)
    const held = () => deleteSocketSubscription(services, principal, id)
    const deletion = await (type === SUBSCRIPTION ? storedOrHeld(stored, held) : stored())
    return { deletion, warnings: await afterDeletion(inside, deletion) }
  })
  const headers = { ETag: formatEtag(deletion) }
  if (context.preferences.returned === 'minimal') return emptyReply(200, headers)
  return outcomeReply(200, outcome(allOk.id, ...allOk.issue, ...warnings), headers)
}

/** `If-Match: *` returns 412 for a missing resource. */
async function requireExisting(context: FhirContext, type: string, id: string): Promise<void> {
  const { services, principal } = context
  try {
    await services.repository.read(principal, type, id)
  } catch (error) {
    if (isAbsent(error)) throw preconditionFailed()
    throw error
  }
}
