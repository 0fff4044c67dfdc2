/**
 * Downloads external attachments into Binaries and updates the resource: those new in a version and still in the
 * newest.
 */
import { Readable } from 'node:stream'
import { type Principal, systemPrincipal } from '../../../shared/access/principal.ts'
import { findSetting, system } from '../../../shared/access/project-context.ts'
import { timings } from '../../../shared/core/config/waits.ts'
import { ignoreClientError, isAbsent } from '../../../shared/core/errors.ts'
import { isObject, isResource, type Resource } from '../../../shared/fhir/resource.ts'
import { createRenewal, type Loop, startLoop, withLease } from '../../../shared/jobs/loop.ts'
import { FetchRefused, openOutbound } from '../../../shared/outbound/fetch-outside.ts'
import {
  type Download,
  type DownloadInput,
  leaseDownload,
  repeatDownload,
} from '../../../shared/request/binary/attachments.ts'
import {
  cleanFilename,
  removeContent,
  safeContentType,
  settleContent,
  storeContent,
} from '../../../shared/request/binary/content.ts'
import type { Services } from '../../../shared/request/services.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import { JOBS, jobLease, removeJob } from '../../../shared/store/rows/upkeep-jobs.ts'
import { getShape, type Property, type Shape } from '../../../shared/validation/shapes.ts'

const LANES = 4
const EVERY_MS = 1000
const ATTEMPTS = 3
const DELAY_MS = 2000
const TIMEOUT_MS = 300_000
const MAX_BYTES = 100 * 1024 * 1024
const TOO_LARGE = 'The attachment is larger than 100 MB'
/** Limit per version; further attachments stay external. */
const MOST = 100

class Gone extends Error {}

/** Runs until `stop`, which releases the current work. */
export function startDownloads(services: Services): Loop {
  const { log, database } = services
  let taking: Promise<Download | undefined> = Promise.resolve(undefined)
  // One after the other: lanes that take at the same moment would take jobs of one Project.
  const take = () => {
    taking = taking.catch(() => undefined).then(() => leaseDownload(database))
    return taking
  }
  return startLoop({ log, name: 'Downloads', everyMs: EVERY_MS, lanes: LANES }, async (signal) =>
    takeAndRun(services, await take(), signal),
  )
}

async function takeAndRun(
  services: Services,
  download: Download | undefined,
  signal: AbortSignal,
): Promise<boolean> {
  const { database, log } = services
  if (download === undefined) return false
  const { input, attempt } = download
  const renewal = createRenewal(services, JOBS, jobLease(download))
  // Dropped after repeated worker crashes.
  const left = await withLease(renewal, signal, async (leased) =>
    attempt > ATTEMPTS ? 0 : await fetchNew(services, download, leased),
  )
  if (signal.aborted && left > 0) await repeatDownload(database, download, 0)
  else if (left > 0 && attempt < ATTEMPTS)
    await repeatDownload(database, download, attempt * DELAY_MS)
  else await removeJob(database, download)
  const { projectId: project, type, id } = input
  log.info({ project, type, id, attempt, left }, 'Download of attachments')
  return true
}

async function fetchNew(
  services: Services,
  { input }: Download,
  signal: AbortSignal,
): Promise<number> {
  const { projectId, type, id } = input
  const project = await services.principals.project(projectId)
  if (project === undefined) return 0
  const principal = systemPrincipal(project)
  const isWanted = await createUrlFilter(services, projectId)
  const [current] = await services.repository.readMany(principal, [{ type, id }])
  if (current?.content === undefined) return 0
  const there = attachmentsByUrl(parseVersion(current))
  const added = await addedBy(services, principal, input)
  const wanted = added.filter((url) => there.has(url) && isWanted(url)).slice(0, MOST)
  const limit = AbortSignal.any([signal, AbortSignal.timeout(timings.downloadsMs)])
  let left = 0
  for (const url of wanted) {
    if (limit.aborted) {
      left++
      continue
    }
    try {
      await fetchOne(services, principal, {
        reference: `${type}/${id}`,
        attachment: there.get(url) ?? {},
        url,
        signal: limit,
      })
    } catch (error) {
      if (!(error instanceof FetchRefused)) left++
      const reason = error instanceof Error ? error.message : 'fault'
      services.log.warn({ project: projectId, type, id, reason }, 'An attachment was not fetched')
    }
  }
  return left
}

/** Returns a filter by the Project's settings, which excludes URLs of this service. */
async function createUrlFilter(
  { repository, config }: Services,
  projectId: string,
): Promise<(url: string) => boolean> {
  const { setting } = parseVersion(await repository.read(system, 'Project', projectId))
  if (findSetting(setting, 'autoDownloadEnabled')?.valueBoolean === false) return () => false
  const prefixes = (name: string) =>
    String(findSetting(setting, name)?.valueString ?? '')
      .split(',')
      .map((text) => text.trim())
      .filter((text) => text !== '')
  const allowed = prefixes('autoDownloadAllowedUrlPrefixes')
  const ignored = prefixes('autoDownloadIgnoredUrlPrefixes')
  const isIn = (url: string, list: readonly string[]) => list.some((text) => url.startsWith(text))
  return (url) =>
    url.startsWith('https://') &&
    !url.startsWith(config.baseUrl) &&
    (allowed.length === 0 || isIn(url, allowed)) &&
    !isIn(url, ignored)
}

async function addedBy(
  { repository }: Services,
  principal: Principal,
  { type, id, ver }: DownloadInput,
): Promise<readonly string[]> {
  const at = async (vid: number) => {
    if (vid === 0) return new Map<string, Attachment>()
    const version = await repository
      .readVersion(principal, type, id, String(vid))
      .catch(ignoreClientError)
    return version?.content === undefined
      ? new Map<string, Attachment>()
      : attachmentsByUrl(parseVersion(version))
  }
  const [before, after] = await Promise.all([at(ver - 1), at(ver)])
  return [...after.keys()].filter((url) => !before.has(url))
}

function attachmentsByUrl(resource: Resource): ReadonlyMap<string, Attachment> {
  const found = new Map<string, Attachment>()
  mapAttachments(resource, (attachment) => {
    if (typeof attachment.url === 'string') found.set(attachment.url, attachment)
    return attachment
  })
  return found
}

interface Attached {
  readonly reference: string
  readonly attachment: Attachment
  readonly url: string
  readonly signal: AbortSignal
}

async function fetchOne(
  services: Services,
  principal: Principal,
  { reference, attachment, url, signal }: Attached,
): Promise<void> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)])
  const headers = { 'accept-encoding': 'identity' }
  const asked = { url, method: 'GET', headers, body: undefined, redirect: 'follow' }
  const { hookTargets } = services.config
  const opened = await openOutbound(asked, hookTargets, limit)
  const { status, headers: answered, body } = opened
  try {
    if (!opened.url.startsWith('https:')) throw new FetchRefused('The address leads to http')
    if (status !== 200) throw new Error(`The address was answered with status ${status}`)
    if (Number(answered['content-length'] ?? 0) > MAX_BYTES) throw new FetchRefused(TOO_LARGE)
    const { contentType = answered['content-type'], title } = attachment
    const filename = typeof title === 'string' ? cleanFilename(title) : undefined
    const content = Readable.from(bounded(body))
    const place = await storeContent(services, principal.project.id, content, {
      filename,
      isData: false,
    })
    const isKept = await keep(services, principal, {
      reference,
      url,
      binary: {
        resourceType: 'Binary',
        contentType: safeContentType(contentType),
        securityContext: { reference },
        url: place,
      },
    }).catch(async (error: unknown) => {
      await removeContent(services, place)
      throw error
    })
    await (isKept ? settleContent(services, place) : removeContent(services, place))
  } finally {
    body.destroy()
  }
}

async function* bounded(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let bytes = 0
  for await (const chunk of body) {
    bytes += chunk.length
    if (bytes > MAX_BYTES) throw new FetchRefused(TOO_LARGE)
    yield chunk
  }
}

interface Fetched {
  readonly reference: string
  readonly url: string
  readonly binary: Resource
}

/** Returns false, and stores nothing, when the resource no longer needs the Binary. */
function keep(
  { repository }: Services,
  principal: Principal,
  { reference, url, binary }: Fetched,
): Promise<boolean> {
  const [type = '', id = ''] = reference.split('/')
  return repository
    .transaction(async (transaction) => {
      const { id: binaryId } = await transaction.create(principal, binary)
      const change = (current: Resource): Resource => {
        let isThere = false
        const changed = mapAttachments(current, (attachment) => {
          if (attachment.url !== url) return attachment
          isThere = true
          return { ...attachment, url: `Binary/${binaryId}` }
        })
        if (!isThere) throw new Gone()
        // The service is the author of the change.
        const { author: _author, ...meta } = current.meta ?? {}
        return { ...changed, meta }
      }
      await transaction.patch(principal, { type, id }, change)
      return true
    })
    .catch((error: unknown) => {
      if (error instanceof Gone || isAbsent(error)) return false
      throw error
    })
}

interface Attachment {
  readonly url?: unknown
  readonly contentType?: unknown
  readonly title?: unknown
}

/** Returns the same object when unchanged; otherwise copies along the changed path. */
function mapAttachments(
  resource: Resource,
  change: (attachment: Attachment) => Attachment,
): Resource {
  // An object keeps its shape.
  return mapNode(resource, getShape(resource.resourceType), change) as Resource
}

type Change = (attachment: Attachment) => Attachment

function mapNode(node: object, shape: Shape, change: Change): object {
  let changed: Record<string, unknown> | undefined
  for (const [name, value] of Object.entries(node)) {
    const property = shape.properties.get(name)
    if (property === undefined || property.check !== undefined) continue
    const mapped = Array.isArray(value)
      ? mapItems(value, property, change)
      : mapValue(value, property, change)
    if (mapped === value) continue
    changed ??= { ...node }
    changed[name] = mapped
  }
  return changed ?? node
}

function mapItems(items: readonly unknown[], property: Property, change: Change): unknown {
  const mapped = items.map((item) => mapValue(item, property, change))
  return mapped.every((item, i) => item === items[i]) ? items : mapped
}

function mapValue(value: unknown, property: Property, change: Change): unknown {
  if (!isObject(value)) return value
  if (property.type === 'Attachment') return change(value)
  const shape = isResource(value) ? getShape(value.resourceType) : property.shape?.()
  return shape === undefined ? value : mapNode(value, shape, change)
}
