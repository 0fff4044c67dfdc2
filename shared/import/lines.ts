/** Parses import lines into resources or errors. */
import type { Principal } from '../access/principal.ts'
import { badRequest, badStructure, HttpError, LeaseLost, tooLarge } from '../core/errors.ts'
import { nextTurn } from '../core/yielding.ts'
import { isPlatformType, isResourceType } from '../fhir/definitions.ts'
import { mapStrings, parseBody } from '../fhir/json.ts'
import { asArray, isObject, isResource, type Resource } from '../fhir/resource.ts'
import { readPreferences } from '../request/negotiate.ts'
import type { FhirContext } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import {
  type ConditionalReference,
  conditionalReferences,
  findMatches,
  requireSingleMatch,
} from '../rest/conditional-references.ts'
import { acceptResource } from '../rest/interaction.ts'
import { isCondition } from '../search/language/search-request.ts'
import { isLegalId, normalId } from '../store/rows/context.ts'
import type { PlannedCreates } from '../store/write/planned-rows.ts'

export interface ImportLine {
  /** From 1. */
  readonly number: number
  /** The number of the first blank line before it, or its own. */
  readonly firstNumber: number
  /** Start offset, including blank lines before it. */
  readonly start: number
  readonly end: number
  /** Undefined for a line that is too long. */
  readonly bytes: Buffer | undefined
}

export interface ReadLine extends ImportLine {
  /** Undefined for a line that could not be read. */
  readonly id: string | undefined
  /** A plan takes less memory than a resource; if it fails, the line is read again. */
  readonly read: Resource | Planned | HttpError
  /** `meta.lastUpdated` in the source system. */
  readonly foreignTime: string | undefined
  /** Conditional ones, for `resolveReferences`. */
  readonly references: readonly ConditionalReference[]
}

/** The id of a new resource, unless the id is taken. */
interface Planned {
  readonly planned: string
}

export interface ReadLines {
  readonly lines: readonly ReadLine[]
  /** Absent if no line is planned. */
  readonly plans: PlannedCreates | undefined
}

const IMPORTED_TIME = 'fhir/StructureDefinition/imported-lastUpdated'

/** Ways to write one in JSON; the escape also matches other characters. */
const QUESTION_MARKS = ['?', '\\u003']

/** Yields between portions; planning runs one portion behind, which keeps code in the CPU cache. */
const PORTION = 32

/** Excludes accounts, access rights, bots and binary content. */
export function isImportable(type: string): boolean {
  return isResourceType(type) && !isPlatformType(type) && type !== 'Binary'
}

interface LinesToRead {
  readonly type: string
  readonly lines: readonly ImportLine[]
  readonly plans: PlannedCreates | undefined
}

/** Parses and validates; `plans` also prepares the writes for free ids. */
export async function readLines(
  services: Services,
  principal: Principal,
  { type, lines, plans }: LinesToRead,
): Promise<ReadLines> {
  const context = lineInteraction(services, principal)
  const done: ReadLine[] = []
  for (let from = 0; from < lines.length; from += PORTION) {
    const parsed: ReadLine[] = []
    for (const line of lines.slice(from, from + PORTION)) {
      parsed.push(await readLine(context, type, line))
    }
    await nextTurn()
    if (plans === undefined) done.push(...parsed)
    else for (const line of parsed) done.push(await planned(context, line, plans))
  }
  const checked = done.map((line) => {
    if (!isRead(line.read) || !mayAsk(line)) return line
    try {
      return { ...line, references: conditionalReferences(context, line.read) }
    } catch (error) {
      return { ...line, read: asLineError(error) }
    }
  })
  return { lines: checked, plans }
}

/** Plans lines; the write handles unplanned lines, including rejected ones. */
async function planned(
  { services, principal }: FhirContext,
  line: ReadLine,
  plans: PlannedCreates,
): Promise<ReadLine> {
  const { read, foreignTime } = line
  if (!isRead(read) || mayAsk(line)) return line
  try {
    const resource =
      foreignTime === undefined ? read : withImportedTime(services.config, read, foreignTime)
    const isPlanned = await services.repository.planCreate(principal, resource, plans)
    return isPlanned ? { ...line, read: { planned: read.id ?? '' } } : line
  } catch (error) {
    asLineError(error)
    return line
  }
}

/** True for text with a question mark, which may be a conditional reference. */
function mayAsk({ bytes }: ImportLine): boolean {
  return QUESTION_MARKS.some((text) => bytes?.includes(text))
}

/** Stores the source system's `lastUpdated` as an extension: `lastUpdated` is the import time. */
export function withImportedTime(
  { baseUrl }: Services['config'],
  resource: Resource,
  valueInstant: string,
): Resource {
  const url = `${baseUrl}${IMPORTED_TIME}`
  const { meta } = resource
  const given = isObject(meta) ? asArray(meta.extension) : []
  const others = given.filter((item) => !(isObject(item) && item.url === url))
  return { ...resource, meta: { ...meta, extension: [...others, { url, valueInstant }] } }
}

async function readLine(context: FhirContext, type: string, line: ImportLine): Promise<ReadLine> {
  const { bytes } = line
  try {
    if (bytes === undefined) throw tooLarge()
    const body = parseBody(bytes)
    if (!isResource(body)) throw badStructure('The line is not a resource')
    const { id, meta } = body
    if (typeof id !== 'string' || id === '') throw badRequest('Missing id', 'id')
    if (!isLegalId(id)) throw badRequest('Incorrect resource ID', 'id')
    const { resource } = await acceptResource(context, type, body)
    const time = isObject(meta) ? meta.lastUpdated : undefined
    const foreignTime = typeof time === 'string' ? time : undefined
    const normal = normalId(id)
    const read = resource.id === normal ? resource : { ...resource, id: normal }
    return { ...line, id: normal, read, foreignTime, references: [] }
  } catch (error) {
    const read = asLineError(error)
    return { ...line, id: undefined, read, foreignTime: undefined, references: [] }
  }
}

/** Returns the error of the line; rethrows server errors. */
export function asLineError(error: unknown): HttpError {
  if (isRefusal(error)) return error
  throw error
}

/** True for an error that would repeat. */
export function isRefusal(error: unknown): error is HttpError {
  return error instanceof HttpError && error.status < 500 && !(error instanceof LeaseLost)
}

/** True for a line that may refer to an earlier one of the same input: its search may find resources of `type`. */
export function mayFollow(type: string, { references }: ReadLine): boolean {
  return references.some(
    ({ condition }) => condition.type === type || !condition.conditions.every(isCondition),
  )
}

/** Replaces conditional references. One statement per 200 searches. */
export async function resolveReferences(
  services: Services,
  principal: Principal,
  lines: readonly ReadLine[],
): Promise<readonly ReadLine[]> {
  const references = lines.flatMap((line) => line.references)
  if (references.length === 0) return lines
  const searches = new Map(references.map(({ text, condition }) => [text, condition]))
  const matches = await findMatches(lineInteraction(services, principal), searches)
  return lines.map((line) => {
    if (!isRead(line.read) || line.references.length === 0) return line
    try {
      const targets = new Map(
        line.references.map((item) => [item.text, requireSingleMatch(item, matches)]),
      )
      const literal = (text: string, name: string | undefined) =>
        (name === 'reference' && targets.get(text)) || text
      return { ...line, read: mapStrings(line.read, literal) }
    } catch (error) {
      return { ...line, read: asLineError(error) }
    }
  })
}

const MOST_LATE_LINES = 10_000
const MOST_LATE_BYTES = 16 * 1024 * 1024

/** Lines with missing targets, which later lines may create: they wait for the end of the part, uncommitted. */
export class LateLines {
  readonly #lines = new Map<string, ReadLine>()
  #bytes = 0

  /** Copies the line; false when it cannot wait. */
  add(line: ReadLine): boolean {
    const { id, bytes } = line
    if (id === undefined || bytes === undefined || this.#lines.size >= MOST_LATE_LINES) return false
    if (this.#bytes + bytes.length > MOST_LATE_BYTES) return false
    this.#bytes += bytes.length
    this.#lines.set(id, { ...line, bytes: Buffer.from(bytes) })
    return true
  }

  /** Removes and returns the waiting line of a resource. */
  take(id: string | undefined): ReadLine | undefined {
    const line = id === undefined ? undefined : this.#lines.get(id)
    if (id !== undefined) this.#lines.delete(id)
    return line
  }

  /** The last line comes first, since each refers to a later one. */
  get waiting(): readonly ReadLine[] {
    return [...this.#lines.values()].sort((a, b) => b.number - a.number)
  }
}

export function plannedId({ read }: ReadLine): string | undefined {
  if (read instanceof HttpError) return undefined
  return isPlanned(read) ? read.planned : read.id
}

/** No resource has an element of that name. */
function isPlanned(read: ReadLine['read']): read is Planned {
  return 'planned' in read
}

/** True for a line that is neither rejected nor planned. */
export function isRead(read: ReadLine['read']): read is Resource {
  return !(read instanceof HttpError) && !isPlanned(read)
}

/** Treats each line as the body of a separate request. */
function lineInteraction(services: Services, principal: Principal): FhirContext {
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
