/** Parameters of `$export` as they were given: in the query, in a Parameters resource, or in both. */

import { badRequest, type Issue, invalid, issue } from '../../errors.ts'
import { isObject, isResource } from '../../fhir/resource.ts'
import { readJson } from '../../request/negotiate.ts'
import type { FhirRequest } from '../../request/request.ts'

export interface Given {
  readonly name: string
  readonly text: string
}

export function fromQuery(query: URLSearchParams): readonly Given[] {
  return [...query].map(([name, text]) => ({ name, text }))
}

/** Errors: 400 for a body that is neither empty nor Parameters. */
export function fromBody(request: FhirRequest, faults: Fault[]): readonly Given[] {
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
    if (text !== undefined) return { name: item.name, text }
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

/** `handling=lenient` may pass over it, unless that would widen the export silently. */
export interface Fault {
  readonly issue: Issue
  readonly isFatal: boolean
}

export function fault(code: string, text: string, expression: string, isFatal = false): Fault {
  return { issue: issue('error', code, text, expression), isFatal }
}

/** Returns the faults that are passed over. Errors: 400 with an issue for each, unless all may be. */
export function settle(faults: readonly Fault[], isLenient: boolean): readonly Issue[] {
  const refused = isLenient ? faults.filter(({ isFatal }) => isFatal) : faults
  if (refused.length > 0) throw invalid(refused.map((one) => one.issue))
  return faults.map((one) => ({ ...one.issue, severity: 'warning' }))
}
