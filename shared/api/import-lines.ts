/** Lines of an import → resources, or why a line is none. */
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Principal } from '../access/principal.ts'
import { badRequest, badStructure, HttpError, tooLarge } from '../errors.ts'
import { isPlatformType, isResourceType } from '../fhir/definitions.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject, isResource, type Resource } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { isLegalId, normalId } from '../store/context.ts'
import {
  type ConditionalReference,
  conditionalReferences,
  findMatches,
  targetOf,
} from './conditional-references.ts'
import { acceptResource, type Interaction } from './interaction.ts'
import { mapStrings } from './map-strings.ts'
import { readPreferences } from './negotiate.ts'

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

/** A resource with a question mark in its text may hold a reference that is a search. */
interface Parsed extends ReadLine {
  readonly mayAsk: boolean
}

/** As JSON may write one; the escape begins some others, too. */
const QUESTION_MARKS = ['?', '\\u003']

/** Lines are read in portions, so that others get their turn. */
const PORTION = 32

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
  const parsed: Parsed[] = []
  for (const [i, { number, start, end, bytes }] of lines.entries()) {
    if (i % PORTION === PORTION - 1) await nextTurn()
    const { read, foreignTime } = await readLine(interaction, type, bytes)
    const mayAsk = QUESTION_MARKS.some((text) => bytes?.includes(text))
    parsed.push({ number, start, end, read, foreignTime, mayAsk })
  }
  return withLiteralReferences(interaction, parsed)
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
export function refusalOf(error: unknown): HttpError {
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
  lines: readonly Parsed[],
): Promise<readonly ReadLine[]> {
  if (lines.every(({ mayAsk }) => !mayAsk)) return lines
  const asked = new Map<string, ConditionalReference['condition']>()
  const found = lines.map((line) => {
    if (line.read instanceof HttpError) return line.read
    if (!line.mayAsk) return []
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

export function idOf({ read }: ReadLine): string | undefined {
  return read instanceof HttpError ? undefined : read.id
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
