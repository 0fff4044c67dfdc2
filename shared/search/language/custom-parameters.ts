/** Search parameters defined by a Project. https://hl7.org/fhir/R4/searchparameter.html */

import { badRequest, HttpError, notSupported } from '../../core/errors.ts'
import {
  isResourceType,
  searchParameter,
  searchParameters,
  typeDefinition,
} from '../../fhir/definitions.ts'
import type { OwnParameter, SearchParameter, SearchParamType } from '../../fhir/definitions-data.ts'
import { asArray, type Resource, toObjects } from '../../fhir/resource.ts'
import { compileTenantNodes } from '../../fhirpath/custom.ts'
import { compileExpression } from '../../fhirpath/extract.ts'
import { UnknownElement } from '../../fhirpath/members.ts'

export type Definition = Omit<OwnParameter, 'stamp' | 'isReady'>

const TYPES: ReadonlySet<string> = new Set([
  'token',
  'reference',
  'string',
  'date',
  'number',
  'quantity',
  'uri',
  'composite',
])
const CODE = /^[A-Za-z][A-Za-z0-9_-]{0,63}$/

/** Returns a definition per base type, unless it repeats the standard. Errors: 400 with the element at fault. */
export function parameterDefinitions(resource: Resource): readonly Definition[] {
  const { status, code, url, type, base, expression } = resource
  if (status !== 'active') return []
  if (typeof code !== 'string' || !CODE.test(code)) {
    throw fault('code', `A search parameter cannot be called ${String(code).slice(0, 64)}`)
  }
  if (typeof type !== 'string' || !TYPES.has(type)) {
    throw notSupported(`Search parameters of type ${type} are not supported`, at('type'))
  }
  if (typeof expression !== 'string') throw fault('expression', `${code} has no expression`)
  const bases = asArray(base)
  if (bases.length === 0) throw fault('base', `${code} has no base`)
  const common = {
    code,
    type: type as SearchParamType,
    url: String(url),
    ...readTargets(resource),
    ...(type === 'composite' ? { components: readComponents(resource, bases) } : {}),
  }
  return bases.flatMap((name) => {
    if (typeof name !== 'string' || !isResourceType(name) || name === 'Binary') {
      throw fault('base', `${String(name).slice(0, 64)} is not a searchable resource type`)
    }
    const standard = searchParameter(name, code)
    if (standard?.url === common.url) return []
    if (standard !== undefined) {
      throw fault('code', `${name} has a search parameter ${code} already: ${standard.url}`)
    }
    const own = partFor(name, expression)
    if (own === undefined) throw fault('expression', `${code} has no expression for ${name}`)
    return [{ ...common, base: name, expression: own, isGeneral: isGeneral(name, own, common) }]
  })
}

/** Returns the alternatives of a union that apply to a type. */
export function partFor(base: string, expression: string): string | undefined {
  const own = splitUnion(expression).filter((part) => {
    const root = /^\(*([A-Z]\w*)/.exec(part)?.[1]
    return root === undefined || root === base || root === 'Resource' || root === 'DomainResource'
  })
  return own.length === 0 ? undefined : own.join(' | ')
}

/** Splits at bars outside brackets and strings. */
function splitUnion(expression: string): string[] {
  const parts: string[] = []
  let depth = 0
  let start = 0
  for (const { 0: token, index } of expression.matchAll(/'(?:\\.|[^'\\])*'|[()|]/g)) {
    if (token === '(') depth++
    if (token === ')') depth--
    if (token !== '|' || depth > 0) continue
    parts.push(expression.slice(start, index).trim())
    start = index + 1
  }
  return [...parts, expression.slice(start).trim()]
}

const READABLE: Readonly<Record<SearchParamType, ReadonlySet<string>>> = {
  token: new Set([
    'code',
    'Coding',
    'CodeableConcept',
    'Identifier',
    'ContactPoint',
    'boolean',
    'string',
    'id',
    'uri',
    'url',
    'canonical',
    'oid',
    'uuid',
  ]),
  reference: new Set(['Reference', 'canonical', 'uri', 'url']),
  string: new Set(['string', 'markdown', 'code', 'id', 'HumanName', 'Address']),
  date: new Set(['date', 'dateTime', 'instant', 'Period', 'Timing']),
  number: new Set(['integer', 'decimal', 'positiveInt', 'unsignedInt', 'Range']),
  quantity: new Set(['Quantity', 'Money', 'Range', 'Age', 'Duration', 'Count', 'Distance']),
  uri: new Set(['uri', 'url', 'canonical', 'oid', 'uuid']),
  composite: new Set(),
  special: new Set(),
}

export function isReadable(parameter: SearchParamType, type: string): boolean {
  return parameter === 'composite' || READABLE[parameter].has(type)
}

/** Errors: 400 for an invalid expression, an unknown element or values that cannot be indexed. */
function isGeneral(
  base: string,
  expression: string,
  { code, type }: Pick<Definition, 'code' | 'type'>,
): boolean {
  let types: readonly string[] = []
  try {
    types = compileExpression(base, expression).map((leg) => leg.type)
  } catch (error) {
    if (error instanceof UnknownElement) throw fault('expression', error.message)
    if (type === 'composite') {
      throw notSupported(`${code} needs a plain path`, at('expression'))
    }
    compileGeneral(expression)
    return true
  }
  if (types.some((one) => isReadable(type, one))) return false
  const found = [...new Set(types)].join(', ')
  throw fault('expression', `${code} of type ${type} cannot read ${found}`)
}

function compileGeneral(expression: string): void {
  try {
    compileTenantNodes(expression)
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    throw fault('expression', error.message)
  }
}

function readTargets({ target }: Resource): { targets?: readonly string[] } {
  const names = Array.isArray(target) ? target.filter((name) => typeof name === 'string') : []
  const targets = names.filter((name) => typeDefinition(name)?.kind === 'resource')
  return targets.length === 0 ? {} : { targets }
}

function readComponents(
  { component }: Resource,
  bases: readonly unknown[],
): NonNullable<SearchParameter['components']> {
  const items = toObjects(component)
  if (items.length < 2) throw fault('component', 'A composite has two components at least')
  const known = bases.flatMap((base) => [...searchParameters(String(base)).values()])
  return items.map(({ definition, expression }) => {
    const found = known.find(({ url }) => url === definition)
    if (found === undefined || found.type === 'composite' || found.type === 'special') {
      throw fault('component', `No search parameter ${String(definition).slice(0, 200)}`)
    }
    return { type: found.type, expression: String(expression) }
  })
}

function fault(element: string, text: string): HttpError {
  return badRequest(text, at(element))
}

const at = (element: string) => `SearchParameter.${element}`
