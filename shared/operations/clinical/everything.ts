/** `$everything` of Patient, Encounter and Group. https://hl7.org/fhir/R4/patient-operation-everything.html */
import { hash } from 'node:crypto'
import { attempt, badRequest, badStructure } from '../../core/errors.ts'
import { yieldTurn } from '../../core/yielding.ts'
import { type Link, type SearchEntry, searchEntry } from '../../fhir/bundle.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { mapStrings, parseJson } from '../../fhir/json.ts'
import { parseReference, type Resource } from '../../fhir/resource.ts'
import { parseDate } from '../../fhir/values.ts'
import { type Inputs, readInputs, toInteraction } from '../../request/parameters.ts'
import { absoluteUrl, versionText } from '../../request/reply.ts'
import type { FhirContext, InputTexts, Operation } from '../../request/request.ts'
import { type PageEntry, pageReply } from '../../rest/interaction.ts'
import type { CompartmentPosition } from '../../search/compartment.ts'
import { parseDateValue } from '../../search/language/values.ts'
import { resourceCompartments } from '../../store/index/indexes.ts'
import { isUuid } from '../../store/rows/context.ts'
import type { Version } from '../../store/rows/version.ts'

const MAX_COUNT = 10_000
const DEFAULT_COUNT = 1000
const MAX_OFFSET = 10_000
const MAX_ROUNDS = 3
/** Included resources remembered in the cursor; beyond this, some may repeat. */
const MAX_REMEMBERED = 1500

const INCLUDED = new Set([
  'Organization',
  'Location',
  'Practitioner',
  'PractitionerRole',
  'Medication',
  'Device',
])

const INPUTS: InputTexts = {
  start: 'text: Care from then on',
  end: 'text: Care until then',
  _since: 'text: Only changes since this time',
  _type: 'text*: A comma list of types',
  _count: 'whole: Resources of a page',
  _offset: 'whole: Resources to skip',
  _cursor: 'text: Of the next page',
}

export const everything: Operation = {
  name: 'everything',
  on: [
    { type: 'Patient', level: 'instance' },
    { type: 'Encounter', level: 'instance' },
    { type: 'Group', level: 'instance' },
  ],
  standard: 'type',
  methods: ['GET', 'POST'],
  onlyReads: true,
  inputs: INPUTS,
  text: { summary: 'Read all data of a patient, encounter or group', answer: 'Bundle' },
  async run(call) {
    const inputs = readInputs(call)
    const context = toInteraction(call)
    const { services, principal, id = '' } = call
    const type = call.type as 'Patient' | 'Encounter' | 'Group'
    const cursor = readCursor(inputs.text('_cursor'))
    const types = readTypes(inputs)
    const count = Math.min(readCount(inputs, '_count', DEFAULT_COUNT), MAX_COUNT)
    const page = await services.repository.compartment(principal, {
      type,
      id,
      types,
      since: readInstant(inputs, '_since'),
      ...readCareDates(inputs),
      count,
      offset: readOffset(inputs, cursor),
      after: cursor?.after,
    })
    const isWanted = (name: string) =>
      (INCLUDED.has(name) || (type === 'Encounter' && name === 'Patient')) &&
      (types.length === 0 || types.includes(name))
    const seen = new Set(cursor?.seen)
    const included = await includedBy(context, page.versions, { isWanted, seen, type, id })
    const entries = [
      ...page.versions.map((version) => searchsetEntry(context, version, 'match')),
      ...included.map((version) => searchsetEntry(context, version, 'include')),
    ]
    const links: Link[] = [pageLink(context, inputs, 'self', undefined)]
    if (page.next !== undefined) {
      links.push(pageLink(context, inputs, 'next', writeCursor(page.next, seen)))
    }
    const isFirst = cursor === undefined && !inputs.whole('_offset')
    const isWhole = count > 0 && isFirst && page.next === undefined
    const total = isWhole ? page.versions.length : undefined
    return pageReply(context, { type: 'searchset', total, links }, entries)
  },
}

function readCount(inputs: Inputs, name: string, otherwise: number): number {
  const count = inputs.whole(name) ?? otherwise
  if (count < 0) throw badRequest(`"${name}" must not be negative`, name)
  return count
}

function readOffset(inputs: Inputs, cursor: Cursor | undefined): number {
  const offset = readCount(inputs, '_offset', 0)
  if (offset > MAX_OFFSET) throw badRequest(`"_offset" must be at most ${MAX_OFFSET}`, '_offset')
  if (cursor !== undefined && offset > 0) {
    throw badRequest('Cannot use both offset and cursor', '_cursor')
  }
  return offset
}

/** Accepts comma lists and repeats. Errors: 400 for an unknown type. */
function readTypes(inputs: Inputs): readonly string[] {
  const types = inputs.texts('_type').flatMap((text) => text.split(','))
  for (const type of types) {
    if (!isResourceType(type)) throw badStructure('Unknown resource type', '_type')
  }
  return types
}

function readDateRange(inputs: Inputs, name: string): { low: number; high: number } | undefined {
  const text = inputs.text(name)
  if (text === undefined) return undefined
  if (!/^\d/.test(text)) throw badRequest(`"${name}" must be a date`, name)
  return parseDateValue(text)
}

/** Errors: 400 for a start after the end. */
function readCareDates(inputs: Inputs) {
  const start = readDateRange(inputs, 'start')?.low
  const end = readDateRange(inputs, 'end')?.high
  if (start !== undefined && end !== undefined && start >= end) {
    throw badRequest('"start" must not be after "end"', 'start')
  }
  return { start, end }
}

function readInstant(inputs: Inputs, name: string): Date | undefined {
  // An unencoded plus sign arrives as a space.
  const text = inputs.text(name)?.replace(' ', '+')
  if (text === undefined) return undefined
  const range = parseDate(text)
  if (range === undefined) throw badRequest(`"${name}" must be an instant or a date`, name)
  return new Date(range.low)
}

interface IncludedType {
  readonly isWanted: (type: string) => boolean
  readonly seen: Set<string>
  readonly type: string
  readonly id: string
}

/** Reads references of the matches transitively, each once; adds to `seen`. */
async function includedBy(
  { services, principal }: FhirContext,
  matches: readonly Version[],
  { isWanted, seen, type, id }: IncludedType,
): Promise<readonly Version[]> {
  const included: Version[] = []
  let open: Version[] = [...matches]
  for (let round = 0; round < MAX_ROUNDS && open.length > 0; round++) {
    const targets = new Map<string, { readonly type: string; readonly id: string }>()
    for (const version of open) {
      for (const reference of referencesIn(version)) {
        const name = `${reference.type}/${reference.id}`
        if (isWanted(reference.type) && !seen.has(digest(name))) targets.set(name, reference)
      }
      await yieldTurn()
    }
    if (targets.size === 0) break
    const found = await services.repository.readMany(principal, [...targets.values()])
    for (const name of targets.keys()) seen.add(digest(name))
    // Compartment resources are matches, on this page or another.
    open = []
    for (const item of found) {
      if (item !== undefined && !isMatch(item, type, id)) open.push(item)
      await yieldTurn()
    }
    included.push(...open)
  }
  return included
}

function isMatch(version: Version, type: string, id: string): boolean {
  if (type === 'Group') return false
  const resource = parsed(version)
  return resourceCompartments(type === 'Encounter' ? type : 'Patient', resource).includes(
    `${type}/${id}`,
  )
}

function parsed({ content = '{}' }: Version): Resource {
  return parseJson(content) as Resource
}

function referencesIn(version: Version): { type: string; id: string }[] {
  const found: { type: string; id: string }[] = []
  mapStrings(parsed(version), (text, name) => {
    const reference = name === 'reference' ? parseReference(text) : undefined
    if (reference !== undefined) found.push(reference)
    return text
  })
  return found
}

export function searchsetEntry(
  context: FhirContext,
  version: Version,
  mode: SearchEntry['mode'],
): PageEntry {
  const fullUrl = absoluteUrl(context.services, `${version.type}/${version.id}`)
  const write = () => searchEntry({ fullUrl, resource: versionText(context, version), mode })
  return { content: version.content ?? '', write }
}

function pageLink(
  { services, request }: FhirContext,
  inputs: Inputs,
  relation: Link['relation'],
  cursor: string | undefined,
): Link {
  const query = new URLSearchParams(request.query)
  // Body parameters go into the next link, which is a GET.
  for (const name of Object.keys(INPUTS)) {
    query.delete(name)
    for (const value of inputs.texts(name)) query.append(name, String(value))
  }
  if (cursor !== undefined) {
    query.delete('_offset')
    query.set('_cursor', cursor)
  }
  query.sort()
  const text = query.toString()
  return {
    relation,
    url: absoluteUrl(services, text === '' ? request.path : `${request.path}?${text}`),
  }
}

interface Cursor {
  readonly after: CompartmentPosition
  readonly seen: readonly string[]
}

/** Short enough for a link, long enough to avoid collisions. */
function digest(reference: string): string {
  return hash('sha256', reference, 'base64url').slice(0, 8)
}

function writeCursor(after: CompartmentPosition, seen: ReadonlySet<string>): string {
  const position = Buffer.from(JSON.stringify([after.type, after.id])).toString('base64url')
  return `${position}.${[...seen].slice(-MAX_REMEMBERED).join('')}`
}

/** Errors: 400 for an invalid cursor, which holds a position and no secret. */
function readCursor(text: string | undefined): Cursor | undefined {
  if (text === undefined) return undefined
  const [position = '', remembered = ''] = text.split('.')
  const parts = attempt(() => JSON.parse(Buffer.from(position, 'base64url').toString()))
  const [type, id]: readonly unknown[] = Array.isArray(parts) ? parts : []
  const isPlace = typeof type === 'string' && typeof id === 'string' && isUuid(id)
  if (isPlace && (type === '' || isResourceType(type))) {
    return { after: { type, id }, seen: remembered.match(/.{8}/g) ?? [] }
  }
  throw badRequest('Invalid cursor', '_cursor')
}
