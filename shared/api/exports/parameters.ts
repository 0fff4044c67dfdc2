/**
 * Parameters of `$export`, from the query and from a Parameters resource: every fault is found before
 * anything is refused, so that a client learns of all at once.
 * https://hl7.org/fhir/uv/bulkdata/STU2/export.html#query-parameters
 */
import { badRequest, invalid } from '../../errors.ts'
import { type Issue, issue } from '../../fhir/outcome.ts'
import { isObject, isResource } from '../../fhir/resource.ts'
import { parseDate } from '../../fhir/values-date.ts'
import type { FhirRequest } from '../handle.ts'
import { readJson } from '../negotiate.ts'

/** A value as it was given, and where. */
interface Given {
  readonly name: string
  readonly text: string
  readonly isInBody: boolean
}

export interface ExportParameters {
  readonly types: readonly string[] | undefined
  readonly since: string | undefined
  readonly until: string | undefined
}

/** A fault that `handling=lenient` may pass over, unless that would widen the export silently. */
interface Fault {
  readonly issue: Issue
  readonly isFatal: boolean
}

export interface ReadParameters {
  readonly parameters: ExportParameters
  /** What was passed over. */
  readonly dropped: readonly Issue[]
}

/** Steer answers in general, and say nothing of an export. */
const IGNORED = new Set(['_format', '_pretty', '_summary'])
const LISTS = new Set(['_type'])
const SINGLE = new Set(['_outputFormat', '_since', '_until'])
const FORMATS = new Set(['application/fhir+ndjson', 'application/ndjson', 'ndjson'])

/** Errors: 400 with an issue for each fault, 415. */
export function readParameters(request: FhirRequest, isLenient: boolean): ReadParameters {
  const faults: Fault[] = []
  const given = [...fromQuery(request.query), ...fromBody(request, faults)]
  const named = given.filter(({ name }) => !IGNORED.has(name))
  for (const name of new Set(named.map((one) => one.name))) {
    if (LISTS.has(name) || SINGLE.has(name)) continue
    faults.push(fault('not-supported', `Unknown parameter ${name.slice(0, 64)}`, name.slice(0, 64)))
  }
  const texts = (name: string) =>
    named.filter((one) => one.name === name).flatMap(({ text }) => (text === '' ? [] : text))
  const one = (name: string): string | undefined => {
    const [first, second] = texts(name)
    if (second !== undefined) {
      faults.push(fault('invalid', `${name} may be given once`, name, true))
    }
    return first
  }
  const list = (name: string) => {
    const all = texts(name).flatMap((text) => text.split(',').map((item) => item.trim()))
    return [...new Set(all.filter((item) => item !== ''))]
  }
  checkFormat(one('_outputFormat'), faults)
  const types = list('_type')
  const parameters: ExportParameters = {
    types: types.length === 0 ? undefined : types,
    since: instant('_since', one('_since'), faults),
    until: instant('_until', one('_until'), faults),
  }
  return { parameters, dropped: settle(faults, isLenient) }
}

/** Errors: 400 unless the faults may be passed over. */
export function settle(faults: readonly Fault[], isLenient: boolean): readonly Issue[] {
  const refused = isLenient ? faults.filter(({ isFatal }) => isFatal) : faults
  if (refused.length > 0) throw invalid(refused.map((one) => one.issue))
  return faults.map((one) => ({ ...one.issue, severity: 'warning' }))
}

export function fault(code: string, text: string, expression: string, isFatal = false): Fault {
  return { issue: issue('error', code, text, expression), isFatal }
}

function fromQuery(query: URLSearchParams): readonly Given[] {
  return [...query].map(([name, text]) => ({ name, text, isInBody: false }))
}

/** Errors: 400 for a body that is neither empty nor Parameters. */
function fromBody(request: FhirRequest, faults: Fault[]): readonly Given[] {
  const { method, body } = request
  if (method !== 'POST' || body === undefined || body.length === 0) return []
  const resource = readJson(request)
  if (isObject(resource) && Object.keys(resource).length === 0) return []
  if (!isResource(resource) || resource.resourceType !== 'Parameters') {
    throw badRequest('The body must be empty or a Parameters resource')
  }
  const { parameter = [] } = resource
  if (!Array.isArray(parameter)) throw badRequest('Expected a list', 'Parameters.parameter')
  return parameter.flatMap((item: unknown, i): Given | readonly Given[] => {
    const path = `Parameters.parameter[${i}]`
    if (!isObject(item) || typeof item.name !== 'string') {
      throw badRequest('A parameter needs a name', path)
    }
    const text = textOf(item)
    if (text !== undefined) return { name: item.name, text, isInBody: true }
    faults.push(fault('invalid', `${item.name.slice(0, 64)} has no value of a known kind`, path))
    return []
  })
}

const PRIMITIVES = [
  'valueString',
  'valueCode',
  'valueInstant',
  'valueDateTime',
  'valueUri',
] as const

function textOf(item: Readonly<Record<string, unknown>>): string | undefined {
  for (const name of PRIMITIVES) {
    const value = item[name]
    if (typeof value === 'string') return value
  }
  const { valueBoolean, valueReference, valueCoding } = item
  if (typeof valueBoolean === 'boolean') return String(valueBoolean)
  if (isObject(valueReference) && typeof valueReference.reference === 'string') {
    return valueReference.reference
  }
  if (isObject(valueCoding) && typeof valueCoding.code === 'string') return valueCoding.code
  return undefined
}

/** A plus sign that was not percent-encoded arrives as a space. */
function withPlus(text: string): string {
  return text.trim().replaceAll(' ', '+')
}

function checkFormat(format: string | undefined, faults: Fault[]): void {
  if (format === undefined || FORMATS.has(withPlus(format))) return
  const text = 'The only output format is application/fhir+ndjson'
  faults.push(fault('not-supported', text, '_outputFormat', true))
}

// https://hl7.org/fhir/R4/datatypes.html#instant
const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/

/** In UTC. */
function instant(name: string, given: string | undefined, faults: Fault[]): string | undefined {
  if (given === undefined) return undefined
  const text = withPlus(given)
  const range = INSTANT.test(text) ? parseDate(text) : undefined
  if (range !== undefined) return new Date(range.low).toISOString()
  faults.push(fault('invalid', `${name} must be an instant, as 2026-01-31T12:00:00Z`, name, true))
  return undefined
}
