/** Parses the parameters of `$export`. Strict requests fail with one issue per error; lenient ones skip the parameter. */

import type { Principal } from '../access/principal.ts'
import { badRequest, HttpError, type Issue, invalid, issue } from '../core/errors.ts'
import { isResourceType, resourceTypes, typeElements } from '../fhir/definitions.ts'
import { toStorable } from '../fhir/json.ts'
import { isObject, isResource, parseReference } from '../fhir/resource.ts'
import { parseDate } from '../fhir/values.ts'
import { readJson, readQuery } from '../request/negotiate.ts'
import { withoutBase } from '../request/reply.ts'
import type { FhirRequest } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { expandCodeConditions } from '../rest/codes.ts'
import { parseCallerSearch } from '../rest/criteria.ts'
import type { ElementChoice, ExportLevel, ProvenanceChoice, TypeFilter } from './rows/jobs.ts'
import { buildTypeFilter, fits, isExportable } from './rows/scope.ts'

export interface ExportParameters {
  readonly types: readonly string[] | undefined
  readonly since: string | undefined
  readonly until: string | undefined
  readonly elements: readonly ElementChoice[]
  readonly patients: readonly string[] | undefined
  readonly provenance: ProvenanceChoice | undefined
  readonly partialManifests: boolean
  /** Default: by type. */
  readonly organizedBy: 'Patient' | undefined
}

interface ReadParameters {
  readonly parameters: ExportParameters
  readonly typeFilters: readonly string[]
  readonly faults: readonly Fault[]
}

const IGNORED = new Set(['_format', '_pretty', '_summary'])
const KNOWN = new Set([
  '_type',
  '_elements',
  '_typeFilter',
  'patient',
  'includeAssociatedData',
  '_outputFormat',
  '_since',
  '_until',
  'allowPartialManifests',
  'organizeOutputBy',
])
const FORMATS = new Set(['application/fhir+ndjson', 'application/ndjson', 'ndjson'])
const PROVENANCE: ReadonlyMap<string, ProvenanceChoice> = new Map([
  ['LatestProvenanceResources', 'latest'],
  ['RelevantProvenanceResources', 'relevant'],
])

/** `bases`: addresses of this service, which references may begin with. Errors: 400 for an unreadable body, 415. */
export function readParameters(
  request: FhirRequest,
  level: ExportLevel,
  bases: readonly string[],
): ReadParameters {
  const faults: Fault[] = []
  const given = [
    ...Array.from(request.query, ([name, text]) => ({ name, text })),
    ...fromBody(request, faults),
  ]
  const named = given.filter(({ name }) => !IGNORED.has(name))
  for (const name of new Set(named.map((one) => one.name))) {
    if (KNOWN.has(name)) continue
    const shortened = name.slice(0, 64)
    faults.push(fault('not-supported', `${shortened} is not an export parameter`, shortened))
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
  const list = (name: string, comma: string | RegExp = ',') => {
    const all = texts(name).flatMap((text) => text.split(comma).map((item) => item.trim()))
    return [...new Set(all.filter((item) => item !== ''))]
  }
  checkFormat(one('_outputFormat'), faults)
  const types = list('_type')
  const references = list('patient').map((text) => withoutBase(bases, text))
  const parameters: ExportParameters = {
    types: types.length === 0 ? undefined : types,
    since: instant('_since', one('_since'), faults),
    until: instant('_until', one('_until'), faults),
    elements: list('_elements').flatMap((name) => element(name, faults)),
    patients: patients(request, level, references, faults),
    provenance: provenance(list('includeAssociatedData'), faults),
    partialManifests: flag('allowPartialManifests', one('allowPartialManifests'), faults),
    organizedBy: organizedBy(one('organizeOutputBy'), faults),
  }
  return { parameters, typeFilters: list('_typeFilter', BETWEEN_FILTERS), faults }
}

/** A comma belongs to the value unless another filter follows. */
const BETWEEN_FILTERS = /,(?=\s*[A-Z][A-Za-z]*\?)/

const ALWAYS: ReadonlySet<string> = new Set(['resourceType', 'id', 'meta'])

function element(text: string, faults: Fault[]): ElementChoice | readonly [] {
  const [first = '', second, ...below] = text.replaceAll('[x]', '').split('.')
  const [type, name] = /^[A-Z]/.test(first) ? [first, second] : [undefined, first]
  const isDeep = below.length > 0 || (type === undefined && second !== undefined)
  if (name === undefined || name === '' || isDeep) {
    faults.push(fault('invalid', `${text.slice(0, 64)} is not a root element`, '_elements'))
    return []
  }
  const owners = type === undefined ? resourceTypes : [type].filter(isResourceType)
  const isKnown = (owner: string) =>
    typeElements(owner).some(({ path }) => path.replace('[x]', '') === name)
  if (owners.some(isKnown) || (owners.length > 0 && ALWAYS.has(name))) return { type, name }
  faults.push(fault('invalid', `There is no element ${text.slice(0, 64)}`, '_elements'))
  return []
}

function patients(
  { method }: FhirRequest,
  level: ExportLevel,
  references: readonly string[],
  faults: Fault[],
): readonly string[] | undefined {
  if (references.length === 0) return undefined
  if (method !== 'POST') {
    faults.push(fault('not-supported', 'patient goes with POST', 'patient', true))
  }
  if (level !== 'patient' && level !== 'group') {
    const text = 'patient goes with an export of patients or of a Group'
    faults.push(fault('invalid', text, 'patient', true))
  }
  return references.flatMap((text) => {
    const { type, id } = parseReference(text) ?? {}
    if (type === 'Patient' && id !== undefined) return [id]
    faults.push(
      fault('invalid', `${text.slice(0, 64)} is not a reference to a Patient`, 'patient', true),
    )
    return []
  })
}

function provenance(values: readonly string[], faults: Fault[]): ProvenanceChoice | undefined {
  const choices = values.flatMap((value) => {
    const choice = PROVENANCE.get(value)
    if (choice !== undefined) return [choice]
    const text = `${value.slice(0, 64)} is not supported`
    faults.push(fault('not-supported', text, 'includeAssociatedData'))
    return []
  })
  return choices.find((choice) => choice === 'relevant') ?? choices[0]
}

function organizedBy(type: string | undefined, faults: Fault[]): 'Patient' | undefined {
  if (type === undefined || type === 'Patient') return type
  const text = `Output is organized by Patient, or by types, not by ${type.slice(0, 64)}`
  faults.push(fault('not-supported', text, 'organizeOutputBy'))
  return undefined
}

function flag(name: string, text: string | undefined, faults: Fault[]): boolean {
  if (text !== undefined && text !== 'true' && text !== 'false') {
    faults.push(fault('invalid', `${name} must be true or false`, name))
  }
  return text === 'true'
}

/** An unencoded plus sign arrives as a space. */
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

function instant(name: string, given: string | undefined, faults: Fault[]): string | undefined {
  if (given === undefined) return undefined
  const text = withPlus(given)
  const range = INSTANT.test(text) ? parseDate(text) : undefined
  const utc = range === undefined ? '' : new Date(range.low).toISOString()
  // Years outside 1 to 9999 have a sign or are 0000.
  if (/^(?!0000)\d{4}-/.test(utc)) return utc
  faults.push(fault('invalid', `${name} must be an instant, as 2026-01-31T12:00:00Z`, name, true))
  return undefined
}

interface Given {
  readonly name: string
  readonly text: string
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
    const { name } = item
    const text = parameterText(item) ?? ''
    if (text.trim() !== '') return { name, text }
    const said = `${name.slice(0, 64)} has no value of a known kind`
    faults.push(fault('invalid', said, path, KNOWN.has(name)))
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

function parameterText(item: Readonly<Record<string, unknown>>): string | undefined {
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

/** `handling=lenient` may ignore it, unless that would silently widen the export. */
export interface Fault {
  readonly issue: Issue
  readonly isFatal: boolean
}

export function fault(code: string, text: string, expression: string, isFatal = false): Fault {
  const details = { expression: toStorable(expression) }
  return { issue: issue('error', code, toStorable(text), details), isFatal }
}

/** Returns the ignored faults. Errors: 400 with an issue for each, unless all can be ignored. */
export function resolveFaults(faults: readonly Fault[], isLenient: boolean): readonly Issue[] {
  const refused = isLenient ? faults.filter(({ isFatal }) => isFatal) : faults
  if (refused.length > 0) throw invalid(refused.map((one) => one.issue))
  return faults.map((one) => ({ ...one.issue, severity: 'warning' }))
}

// Each is a search of one type: https://hl7.org/fhir/uv/bulkdata/STU2/export.html#_typefilter-query-parameter
const NAME = '_typeFilter'
/** These parameters affect the result of a search, not its matches. */
const RESULT =
  /^_(sort|count|include|revinclude|summary|total|elements|contained|containedType|offset|cursor|score|explain|fields|format|pretty|deleted)(:|$)/

/** Errors: 403 for a type or parameter the member may not search by. */
export async function readTypeFilters(
  asking: { readonly services: Services; readonly principal: Principal },
  texts: readonly string[],
  level: ExportLevel,
  types: readonly string[] | undefined,
) {
  const filters: TypeFilter[] = []
  const faults: Fault[] = []
  for (const text of texts) {
    const found = await readFilter(asking, text, level, types)
    if ('isFatal' in found) faults.push(found)
    else filters.push(found)
  }
  return { filters, faults }
}

async function readFilter(
  asking: { readonly services: Services; readonly principal: Principal },
  text: string,
  level: ExportLevel,
  types: readonly string[] | undefined,
): Promise<TypeFilter | Fault> {
  const { services, principal } = asking
  const at = text.indexOf('?')
  const type = at === -1 ? text : text.slice(0, at)
  const shortened = type.slice(0, 64)
  if (at < 1) return fault('invalid', `A filter is Type?query, not ${text.slice(0, 64)}`, NAME)
  if (!isResourceType(type)) return fault('invalid', `Unknown type ${shortened}`, NAME)
  if (!isExportable(principal, type)) return fault('not-supported', `${type} is not exported`, NAME)
  if (types !== undefined && !types.includes(type)) {
    return fault('invalid', `${type} is filtered but is not in _type`, NAME)
  }
  if (!fits(level, type)) {
    return fault('invalid', `${type} is filtered but is not in the compartment of a patient`, NAME)
  }
  try {
    const query = readQuery(text.slice(at + 1))
    const result = [...query.keys()].find((name) => RESULT.test(name))
    if (result !== undefined) {
      return fault('not-supported', `${result.slice(0, 64)} is not a filter`, NAME)
    }
    const request = await expandCodeConditions(
      asking,
      parseCallerSearch(asking, type, query, 'strict'),
    )
    const filter = { type, conditions: request.conditions }
    await buildTypeFilter(
      services.repository.withStore((store) => store),
      principal,
      type,
      [filter],
    )
    return filter
  } catch (error) {
    if (!(error instanceof HttpError) || error.status !== 400) throw error
    return fault('invalid', `${type}: ${error.message}`, NAME)
  }
}
