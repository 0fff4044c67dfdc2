/**
 * Lines of an import → resources. Those that can be written share one transaction, a few statements for
 * some hundreds of lines; a transaction that fails is halved until each line at fault stands alone.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Principal } from '../access/principal.ts'
import { badRequest, badStructure, HttpError, preconditionFailed, tooLarge } from '../errors.ts'
import { isPlatformType, isResourceType } from '../fhir/definitions.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject, isResource, type Resource } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { isLegalId, normalId } from '../store/context.ts'
import type { TakenPart } from '../store/import-parts.ts'
import type { WriteResult } from '../store/repository.ts'
import {
  type ConditionalReference,
  conditionalReferences,
  findMatches,
  targetOf,
} from './conditional-references.ts'
import { acceptResource, type Interaction } from './interaction.ts'
import { charge, unitsOf } from './load.ts'
import { mapStrings } from './map-strings.ts'
import { readPreferences } from './negotiate.ts'
import { forgetDefinitions } from './profiles.ts'

/** A line as it stands in the input. */
export interface ImportLine {
  /** From 1. */
  readonly number: number
  /** Byte it begins at, blank lines before it included. */
  readonly start: number
  /** Byte behind its end. */
  readonly end: number
  /** Undefined when it is longer than a line may be. */
  readonly bytes: Buffer | undefined
}

/** A line with what it is to write, or why it is not. */
export interface ReadLine extends Omit<ImportLine, 'bytes'> {
  readonly read: Resource | HttpError
  /** `meta.lastUpdated` where it comes from. */
  readonly foreignTime: string | undefined
}

/** The part is another worker's by now, or its import was cancelled. */
export class PartLost extends Error {}

/** Lines are read in portions, so that others get their turn. */
const PORTION = 32
const IMPORTED_TIME = 'fhir/StructureDefinition/imported-lastUpdated'

/** People, their rights and programs are not taken over by file, nor is content. */
export function isImportable(type: string): boolean {
  return isResourceType(type) && !isPlatformType(type) && type !== 'Binary'
}

/** Parses and validates. */
export async function readLines(
  services: Services,
  principal: Principal,
  type: string,
  lines: readonly ImportLine[],
): Promise<readonly ReadLine[]> {
  const interaction = interactionOf(services, principal)
  const read: ReadLine[] = []
  for (const [i, { bytes, ...line }] of lines.entries()) {
    if (i % PORTION === PORTION - 1) await nextTurn()
    read.push({ ...line, ...(await readLine(interaction, type, bytes)) })
  }
  return withLiteralReferences(interaction, read)
}

async function readLine(
  interaction: Interaction,
  type: string,
  bytes: Buffer | undefined,
): Promise<Pick<ReadLine, 'read' | 'foreignTime'>> {
  try {
    if (bytes === undefined) throw tooLarge()
    const body = parseBody(bytes)
    if (!isResource(body)) throw badStructure('The line is no resource')
    const { id, meta } = body
    if (typeof id !== 'string' || id === '') throw badRequest('Missing id', 'id')
    if (!isLegalId(id)) throw badRequest('Incorrect resource ID', 'id')
    const { resource } = await acceptResource(interaction, type, body)
    const time = isObject(meta) ? meta.lastUpdated : undefined
    const foreignTime = typeof time === 'string' ? time : undefined
    return { read: { ...resource, id: normalId(id) }, foreignTime }
  } catch (error) {
    return { read: refusalOf(error), foreignTime: undefined }
  }
}

/** Failures of ours are not the line's. */
function refusalOf(error: unknown): HttpError {
  if (isRefusal(error)) return error
  throw error
}

/** What would be the same the next time. */
export function isRefusal(error: unknown): error is HttpError {
  return error instanceof HttpError && error.status < 500
}

/** One statement for 200 searches of all lines. */
async function withLiteralReferences(
  interaction: Interaction,
  lines: readonly ReadLine[],
): Promise<readonly ReadLine[]> {
  const asked = new Map<string, ConditionalReference['condition']>()
  const found = lines.map((line) => {
    if (line.read instanceof HttpError) return line.read
    try {
      const references = conditionalReferences(interaction, line.read)
      for (const { text, condition } of references) asked.set(text, condition)
      return references
    } catch (error) {
      return refusalOf(error)
    }
  })
  const matches = await findMatches(interaction, asked)
  return lines.map((line, i) => {
    const references = found[i] ?? []
    if (references instanceof HttpError) return { ...line, read: references }
    if (references.length === 0 || line.read instanceof HttpError) return line
    try {
      const targets = new Map(references.map((item) => [item.text, targetOf(item, matches)]))
      const literal = (text: string, name: string | undefined) =>
        (name === 'reference' && targets.get(text)) || text
      return { ...line, read: mapStrings(line.read, literal) }
    } catch (error) {
      return { ...line, read: refusalOf(error) }
    }
  })
}

/**
 * Writes lines that follow each other, and notes in the same transaction that they are done. Answers how many
 * were refused. Errors: 5xx, when the lines may be written again; PartLost.
 */
export async function writeLines(
  services: Services,
  principal: Principal,
  part: TakenPart,
  lines: readonly ReadLine[],
): Promise<number> {
  const units = unitsOf({ kind: 'update', type: part.type ?? '', id: '' }) * lines.length
  await charge(services, principal, { mayWait: true }, units, true)
  let failed = 0
  for (const run of untilTwins(await withTimes(services, principal, part, lines))) {
    failed += await writeOrHalve(services, principal, part, run)
  }
  return failed
}

/** What of an import stands alone in a statement: no resource twice. */
function untilTwins(lines: readonly ReadLine[]): readonly (readonly ReadLine[])[] {
  const runs: ReadLine[][] = []
  let run: ReadLine[] = []
  let ids = new Set<string>()
  for (const line of lines) {
    const id = idOf(line)
    if (id !== undefined && ids.has(id)) {
      runs.push(run)
      run = []
      ids = new Set()
    }
    if (id !== undefined) ids.add(id)
    run.push(line)
  }
  return [...runs, run]
}

export function idOf({ read }: ReadLine): string | undefined {
  return read instanceof HttpError ? undefined : read.id
}

/** A line that is to be left alone, since its resource is there. */
const SKIPPED = preconditionFailed()

/**
 * When a resource was last changed in the system that it comes from is kept as an extension: `lastUpdated` is the
 * time of the write here. What comes back to where it was exported has nothing to keep.
 */
async function withTimes(
  services: Services,
  principal: Principal,
  { type, mode }: TakenPart,
  lines: readonly ReadLine[],
): Promise<readonly ReadLine[]> {
  const skips = mode === 'ifNoneMatch'
  if (!skips && lines.every(({ foreignTime }) => foreignTime === undefined)) return lines
  const { repository, config } = services
  const asked = lines.map((line) => ({ type: type ?? '', id: idOf(line) ?? '' }))
  const stored = await repository.readMany(principal, asked)
  return lines.map((line, i) => {
    const { read, foreignTime } = line
    const version = stored[i]
    if (read instanceof HttpError) return line
    if (skips && version !== undefined) return { ...line, read: SKIPPED }
    if (foreignTime === undefined) return line
    if (version?.lastUpdated.getTime() === Date.parse(foreignTime)) return line
    return { ...line, read: withTime(read, `${config.baseUrl}${IMPORTED_TIME}`, foreignTime) }
  })
}

function withTime(resource: Resource, url: string, valueInstant: string): Resource {
  const { meta } = resource
  const given = isObject(meta) && Array.isArray(meta.extension) ? meta.extension : []
  const others = given.filter((item) => !(isObject(item) && item.url === url))
  return { ...resource, meta: { ...meta, extension: [...others, { url, valueInstant }] } }
}

async function writeOrHalve(
  services: Services,
  principal: Principal,
  part: TakenPart,
  lines: readonly ReadLine[],
): Promise<number> {
  if (lines.length === 0) return 0
  try {
    return await write(services, principal, part, lines)
  } catch (error) {
    const refusal = refusalOf(error)
    const writable = lines.filter((line) => idOf(line) !== undefined)
    if (writable.length < 2) {
      const settled = lines.map((line) =>
        idOf(line) === undefined ? line : { ...line, read: refusal },
      )
      return await write(services, principal, part, settled)
    }
    const half = Math.ceil(lines.length / 2)
    const failed = await writeOrHalve(services, principal, part, lines.slice(0, half))
    return failed + (await writeOrHalve(services, principal, part, lines.slice(half)))
  }
}

async function write(
  services: Services,
  principal: Principal,
  { job, part, lease, type, mode }: TakenPart,
  lines: readonly ReadLine[],
): Promise<number> {
  const resources = lines.flatMap(({ read }) => (read instanceof HttpError ? [] : [read]))
  const refused = lines.flatMap(({ number, read }) =>
    read instanceof HttpError ? [{ number, read }] : [],
  )
  // In that mode a condition is the only one there is: what fails by it is there already.
  const isSkipped = (error: HttpError) => mode === 'ifNoneMatch' && error.status === 412
  const failures = refused.flatMap(({ number, read }) =>
    isSkipped(read) ? [] : [{ line: number, outcome: lineFailure(number, read) }],
  )
  const first = lines[0]
  const last = lines.at(-1)
  if (first === undefined || last === undefined) return 0
  const options = { keepId: true, onlyIfAbsent: mode === 'ifNoneMatch' }
  await services.repository.transaction(async (transaction) => {
    transaction.readAhead(
      principal,
      resources.map(({ id = '' }) => ({ type: type ?? '', id })),
    )
    const written = await transaction.together<WriteResult>(
      resources.map((resource) => (inner) => inner.update(principal, resource, options)),
      (_, error) => error,
    )
    const count = (outcome: WriteResult['outcome']) =>
      written.filter((result) => result.outcome === outcome).length
    const isOurs = await transaction.advanceImport({
      job,
      part,
      lease,
      bytes: [first.start, last.end],
      lines: [first.number, last.number + 1],
      created: count('created'),
      updated: count('updated'),
      unchanged: count('unchanged'),
      skipped: refused.length - failures.length,
      failures,
    })
    if (!isOurs) throw new PartLost()
  })
  if (type !== null && resources.length > 0) forgetDefinitions(services, type)
  return failures.length
}

/** A line of an error file. */
export function lineFailure(line: number, { outcome }: HttpError): string {
  const issue = outcome.issue.map((item) => ({
    ...item,
    diagnostics:
      item.diagnostics === undefined ? `Line ${line}` : `Line ${line}: ${item.diagnostics}`,
  }))
  return JSON.stringify({ resourceType: 'OperationOutcome', issue })
}

/** Lines are written as if each was the body of a request of its own. */
function interactionOf(services: Services, principal: Principal): Interaction {
  const request = {
    method: 'PUT',
    path: '',
    query: new URLSearchParams(),
    headers: {},
    body: undefined,
    requestId: '',
    traceId: '',
  }
  return { services, principal, request, preferences: readPreferences(request) }
}
