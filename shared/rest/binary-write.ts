/**
 * Create and update of a Binary, as a resource or raw content. https://hl7.org/fhir/R4/binary.html#rest
 * Content is stored first and removed if the write fails; after a crash the sweep removes it.
 */
import { Readable } from 'node:stream'
import { may } from '../access/policy.ts'
import {
  badRequest,
  forbidden,
  HttpError,
  type Issue,
  isAbsent,
  preconditionFailed,
  tooLarge,
} from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject, type Resource, targetIn } from '../fhir/resource.ts'
import { readChunks } from '../outbound/storage/storage.ts'
import {
  cleanFilename,
  decodeBase64,
  isSameContent,
  removeContent,
  settleContent,
  storeContent,
  type Upload,
  withoutContent,
  withStoredContent,
} from '../request/binary/content.ts'
import { demandsExistence, writeOptions } from '../request/reply.ts'
import type { FhirContext, FhirReply } from '../request/request.ts'
import type { WriteResult } from '../store/rows/version.ts'
import { acceptResource, finishWrite, mayAskBots, requireSameId } from './interaction.ts'
import { beforeWrite, dryRunPatch } from './pre-commit.ts'

/** `POST Binary`. Errors: 400, 403, 413. */
export async function createBinary(context: FhirContext): Promise<FhirReply> {
  requireRight(context, 'create')
  return writeSent(context, (draft) => create(context, draft, undefined))
}

export async function createBinaryFrom(
  context: FhirContext,
  body: Resource,
  id: string | undefined,
): Promise<FhirReply> {
  requireRight(context, 'create')
  return create(context, await resourceDraft(context, body), id)
}

async function create(
  context: FhirContext,
  draft: Draft,
  id: string | undefined,
): Promise<FhirReply> {
  const { principal, services } = context
  const { id: _id, ...resource } = draft.resource
  const sent = id === undefined ? resource : { ...resource, id }
  const next = await beforeWrite(context, 'create', sent)
  return write(context, draft, (url) =>
    services.repository.create(principal, url === undefined ? next : { ...next, url }, {
      keepId: next.id !== undefined,
    }),
  )
}

/** `PUT Binary/{id}`. Errors: 400, 403, 404, 412, 413. */
export async function updateBinary(context: FhirContext, id: string): Promise<FhirReply> {
  requireRight(context, 'update')
  await requireReachable(context, id)
  return writeSent(context, (draft) => update(context, draft, id), id)
}

export async function updateBinaryFrom(
  context: FhirContext,
  body: Resource,
  id: string,
): Promise<FhirReply> {
  requireRight(context, 'update')
  return update(context, await resourceDraft(context, body), id)
}

async function update(context: FhirContext, sent: Draft, id: string): Promise<FhirReply> {
  const { principal, request, services } = context
  const { repository } = services
  const options = writeOptions(request)
  const named = { ...sent, resource: { ...sent.resource, id } }
  const draft = await askedAbout(context, named, id)
  return write(context, draft, async (url) => {
    const change = (current: Resource) => changed(current, draft, url)
    try {
      return await repository.patch(principal, { type: 'Binary', id }, change, options)
    } catch (error) {
      if (!isAbsent(error)) throw error
      if (demandsExistence(request)) throw preconditionFailed()
      const resource = url === undefined ? draft.resource : { ...draft.resource, url }
      return await repository.update(principal, resource, options)
    }
  })
}

/** Runs pre-commit bots on an update, before its content is read. */
async function askedAbout(context: FhirContext, draft: Draft, id: string): Promise<Draft> {
  if (!mayAskBots(context)) return draft
  const change = async (current: Resource) => changed(current, draft, undefined)
  const options = writeOptions(context.request)
  const made = await dryRunPatch(context, { type: 'Binary', id, apply: change, options }).catch(
    (error: unknown) => {
      if (!isAbsent(error)) throw error
      return undefined
    },
  )
  const whole = made === undefined ? draft.resource : { ...made.resource, id }
  const next = await beforeWrite(context, 'update', whole, options.ifMatch)
  return next === whole ? draft : { ...draft, resource: withoutContent(next), isBare: false }
}

/** A resource replaces everything except omitted content; bare content keeps other elements. */
function changed(current: Resource, draft: Draft, url: string | undefined): Resource {
  const { resource, isBare } = draft
  const next = isBare ? overlaid(current, resource) : resource
  if (url === undefined) return withStoredContent(current, next)
  const place = isSameContent(url, current.url) ? current.url : url
  return { ...withoutContent(next), url: place }
}

function overlaid(current: Resource, resource: Resource): Resource {
  const { meta: { author: _author, ...meta } = {}, ...rest } = current
  return { ...rest, ...resource, meta }
}

interface Draft {
  readonly resource: Resource
  readonly warnings: readonly Issue[]
  readonly content: Upload | undefined
  readonly filename: string | undefined
  /** True when only content was sent: the resource comes from headers. */
  readonly isBare: boolean
}

async function write(
  { services, principal, ...interaction }: FhirContext,
  { content, filename, isBare, warnings }: Draft,
  store: (url: string | undefined) => Promise<WriteResult>,
): Promise<FhirReply> {
  const url =
    content === undefined
      ? undefined
      : await storeContent(services, principal.project.id, content, {
          filename,
          isData: !isBare,
        })
  try {
    const written = await store(url)
    // Content already stored stays there.
    const isKept = url !== undefined && written.content?.includes(url)
    if (isKept) await settleContent(services, url)
    else if (url !== undefined) await removeContent(services, url)
    return finishWrite({ services, principal, ...interaction }, written, warnings)
  } catch (error) {
    // After other failures the resource may be stored; the sweep checks.
    const isRefused = error instanceof HttpError && error.status < 500
    if (url !== undefined && isRefused) await removeContent(services, url)
    throw error
  }
}

interface Sent {
  readonly contentType: string
  readonly upload: Upload
  /** The whole body, where it may be a resource. */
  readonly json?: Buffer
}

const RESOURCE_TYPE = 'application/fhir+json'

/** Errors: 413 for a resource above `maxBodyBytes`. */
async function readSent({ request, services }: FhirContext): Promise<Sent> {
  const { body, headers } = request
  const upload = request.upload ?? Buffer.from(body ?? '')
  const contentType = headers['content-type']?.trim() || 'application/octet-stream'
  const mayBeResource = !request.isContent && contentType.toLowerCase().startsWith(RESOURCE_TYPE)
  if (!mayBeResource) return { contentType, upload }
  const { start, whole } = await readStart(upload, services.config.maxBodyBytes)
  if (whole) return { contentType, upload: start, json: start }
  if (isNamed(start)) throw tooLarge()
  return { contentType, upload: joined(start, upload) }
}

function isNamed(start: Buffer): boolean {
  return /^\s*\{\s*"resourceType"\s*:\s*"Binary"/.test(start.toString('latin1', 0, 200))
}

/** Reads and writes the body, in the thread for large JSON; a resource in it must have the given `id`, if any. */
async function writeSent(
  context: FhirContext,
  write: (draft: Draft) => Promise<FhirReply>,
  id?: string,
): Promise<FhirReply> {
  const { request, services } = context
  const { contentType, upload, json } = await readSent(context)
  const isLarge = json !== undefined && json.length > services.config.largeBodyBytes
  if (isLarge && request.offload !== undefined) {
    return await request.offload({ ...request, upload: json })
  }
  const resource = json === undefined ? undefined : readResource(json)
  if (resource === undefined) return write(await bareDraft(context, contentType, upload))
  if (id !== undefined) requireSameId(resource.id, id)
  return write(await resourceDraft(context, resource))
}

/** Returns undefined for other JSON or non-JSON, which is content. */
function readResource(bytes: Buffer): Resource | undefined {
  try {
    const body = parseBody(bytes)
    return isObject(body) && body.resourceType === 'Binary' ? (body as Resource) : undefined
  } catch (error) {
    if (isNamed(bytes)) throw error
    return undefined
  }
}

async function readStart(
  upload: Upload,
  maxBytes: number,
): Promise<{ start: Buffer; whole: boolean }> {
  if (Buffer.isBuffer(upload)) return { start: upload, whole: true }
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of readChunks(upload)) {
    chunks.push(chunk)
    size += chunk.length
    if (size > maxBytes) return { start: Buffer.concat(chunks), whole: false }
  }
  return { start: Buffer.concat(chunks), whole: true }
}

function joined(start: Buffer, rest: Upload): Readable {
  async function* both() {
    yield start
    yield* Buffer.isBuffer(rest) ? [rest] : readChunks(rest)
  }
  return Readable.from(both(), { objectMode: false })
}

async function bareDraft(
  interaction: FhirContext,
  contentType: string,
  content: Upload,
): Promise<Draft> {
  const context = interaction.request.headers['x-security-context']?.trim()
  const { resource, warnings } = await acceptBinary(interaction, {
    resourceType: 'Binary',
    contentType,
    ...(context ? { securityContext: { reference: context } } : {}),
  })
  return { resource, warnings, content, filename: requestedFilename(interaction), isBare: true }
}

async function resourceDraft(context: FhirContext, body: Resource): Promise<Draft> {
  const { data, url: _url, ...rest } = body
  const accepted = await acceptBinary(context, rest)
  const content = data === undefined ? undefined : readData(data)
  return { ...accepted, content, filename: requestedFilename(context), isBare: false }
}

async function acceptBinary(context: FhirContext, body: unknown) {
  const accepted = await acceptResource(context, 'Binary', body)
  const { securityContext } = accepted.resource
  if (securityContext !== undefined) requireContext(securityContext)
  return accepted
}

function requestedFilename({ request }: FhirContext): string | undefined {
  return cleanFilename(request.query.get('_filename'))
}

function readData(data: unknown): Buffer {
  const bytes = typeof data === 'string' && data !== '' ? decodeBase64(data) : undefined
  if (bytes === undefined) throw badRequest('Invalid base64Binary format', 'Binary.data')
  return bytes
}

/** An unreadable context would hide the Binary from everyone. */
function requireContext(securityContext: unknown): void {
  const reference = targetIn(securityContext)
  if (reference === undefined || !isResourceType(reference.type) || reference.type === 'Binary') {
    throw badRequest(
      'securityContext must be a literal reference to a resource other than a Binary',
      'Binary.securityContext',
    )
  }
}

function requireRight({ principal }: FhirContext, interaction: 'create' | 'update'): void {
  if (!may(principal, 'Binary', interaction)) throw forbidden()
}

/** Rejects, before the content is sent, an unknown id that the caller may not choose. Errors: 404. */
async function requireReachable({ services, principal }: FhirContext, id: string): Promise<void> {
  try {
    await services.repository.read(principal, 'Binary', id)
  } catch (error) {
    if (!isAbsent(error)) throw error
    const mayChoose = principal.isSuperAdmin || principal.project.updateAsCreate
    if (error.status === 404 && !mayChoose) throw error
  }
}
