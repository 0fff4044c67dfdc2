/** `Observation/$lastn`, over the newest 10,000 matches. https://hl7.org/fhir/R4/observation-operation-lastn.html */
import { badRequest } from '../../core/errors.ts'
import { yieldTurn } from '../../core/yielding.ts'
import { isObject, type Resource, toObjects } from '../../fhir/resource.ts'
import { readJson, readQuery } from '../../request/negotiate.ts'
import { toInteraction, tokenText } from '../../request/parameters.ts'
import type { FhirRequest, Operation } from '../../request/request.ts'
import { searchByQuery } from '../../rest/criteria.ts'
import { pageReply } from '../../rest/interaction.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { Version } from '../../store/rows/version.ts'
import { searchsetEntry } from './everything.ts'

const PAGE = 1000
const MOST_PAGES = 10
const MOST_OF_A_CODE = 1000
const PAGING = ['_sort', '_count', '_cursor', '_offset']

/** Errors: 400 without a patient and a category or code, and for parameters of sorting and paging. */
export const lastn: Operation = {
  name: 'lastn',
  on: [{ type: 'Observation', level: 'type' }],
  standard: 'type',
  methods: ['GET', 'POST'],
  onlyReads: true,
  text: {
    summary: 'Read the newest observations of each code',
    query: {
      patient: 'text!: The patient',
      category: 'text: Or code',
      code: 'text: Or category',
      max: 'whole: Of each code',
    },
    answer: 'Bundle',
  },
  async run(call) {
    const query = readLastnQuery(call.request)
    const max = parseMax(query.get('max') ?? '1')
    query.delete('max')
    requireNarrow(query)
    for (const name of PAGING) {
      if (query.has(name)) throw badRequest('$lastn returns all in one page, newest first', name)
    }
    query.set('_sort', '-date')
    const groups: Group[] = []
    const byKey = new Map<string, Group>()
    let cursor: string | undefined
    for (let page = 0, rank = 0; page < MOST_PAGES; page++) {
      const { versions, next } = await searchByQuery(call, 'Observation', query, {
        count: PAGE,
        cursor,
      })
      for (const version of versions) {
        const observation = parseVersion(version)
        const time = effectiveTime(observation)
        add(groups, byKey, conceptKeys(observation.code), { version, time, rank: rank++ })
        await yieldTurn()
      }
      cursor = next
      if (next === undefined) break
    }
    const newest = groups.flatMap((group) => pickNewest(group, max))
    const context = toInteraction(call)
    const entries = newest
      .sort((a, b) => a.rank - b.rank)
      .map(({ version }) => searchsetEntry(context, version, 'match'))
    return pageReply(context, { type: 'searchset', total: entries.length, links: [] }, entries)
  },
}

interface Ranked {
  readonly version: Version
  readonly time: string | undefined
  readonly rank: number
}

interface Group {
  items: Ranked[]
  readonly keys: string[]
}

/** Merges groups when an Observation has a coding of each. */
function add(groups: Group[], byKey: Map<string, Group>, keys: string[], item: Ranked): void {
  const [first, ...others] = new Set(keys.flatMap((key) => byKey.get(key) ?? []))
  const group = first ?? { items: [], keys: [] }
  if (first === undefined) groups.push(group)
  for (const other of others) {
    group.items.push(...other.items)
    group.keys.push(...other.keys)
    for (const key of other.keys) byKey.set(key, group)
    groups.splice(groups.indexOf(other), 1)
  }
  group.items.push(item)
  for (const key of keys) {
    if (!byKey.has(key)) group.keys.push(key)
    byKey.set(key, group)
  }
}

/** Includes Observations with the same time as the last one. */
function pickNewest({ items }: Group, max: number): Ranked[] {
  const sorted = items.sort((a, b) => a.rank - b.rank)
  const last = sorted[max - 1]
  return sorted.filter((item, index) => {
    return index < max || (item.time !== undefined && item.time === last?.time)
  })
}

function effectiveTime(observation: Resource): string | undefined {
  const { effectiveDateTime, effectiveInstant } = observation
  const time = effectiveDateTime ?? effectiveInstant
  return typeof time === 'string' ? time : undefined
}

/** Identifies a CodeableConcept by its codings, otherwise by its text. */
export function conceptKeys(concept: unknown): string[] {
  if (!isObject(concept)) return ['']
  const keys = toObjects(concept.coding).flatMap(({ system, code }) =>
    code === undefined ? [] : [`${system}|${code}`],
  )
  return keys.length > 0 ? keys : [String(concept.text ?? '').toLowerCase()]
}

function readLastnQuery(request: FhirRequest): URLSearchParams {
  const query = new URLSearchParams(request.query)
  if (request.method === 'GET' || request.body === undefined || request.body.length === 0) {
    return query
  }
  if (request.headers['content-type']?.startsWith('application/x-www-form-urlencoded')) {
    for (const [name, value] of readQuery(String(request.body))) query.append(name, value)
    return query
  }
  const body = readJson(request)
  const list = isObject(body) && body.resourceType === 'Parameters' ? body.parameter : undefined
  if (!Array.isArray(list)) throw badRequest('Expected a Parameters resource')
  for (const item of list.filter(isObject)) {
    if (typeof item.name !== 'string') throw badRequest('A parameter needs a name')
    const member = Object.keys(item).find((key) => key.startsWith('value'))
    const value = member === undefined ? undefined : item[member]
    const reference = isObject(value) ? value.reference : undefined
    const isPlain = typeof value === 'number' || typeof value === 'boolean'
    const text = isPlain ? String(value) : (reference ?? value)
    query.append(item.name, tokenText(item.name, text, 'Parameters.parameter'))
  }
  return query
}

function parseMax(text: string): number {
  const max = /^\d{1,6}$/.test(text) ? Number(text) : 0
  if (max < 1) throw badRequest('"max" must be a positive whole number', 'max')
  return Math.min(max, MOST_OF_A_CODE)
}

/** "The server SHALL support … patient or subject, and category or code": otherwise it would read everything. */
function requireNarrow(query: URLSearchParams): void {
  const has = (...names: string[]) =>
    [...query.keys()].some((key) => names.includes(key.split(/[:.]/, 1)[0] ?? ''))
  if (has('patient', 'subject') && has('category', 'code')) return
  throw badRequest('$lastn needs a patient or subject, and a category or code')
}
