/** Operation input, parsed by the operation's definitions. https://hl7.org/fhir/R4/operations.html#request */
import { badRequest, badStructure, type HttpError, notSupported } from '../core/errors.ts'
import { isResourceType, operationParameters } from '../fhir/definitions.ts'
import { toNumber } from '../fhir/json.ts'
import { isObject, isResource, type Resource } from '../fhir/resource.ts'
import { type DateRange, parseDate } from '../fhir/values.ts'
import { escapeValue } from '../search/language/values.ts'
import { readJson, readPreferences, wantsStrict } from './negotiate.ts'
import { jsonReply } from './reply.ts'
import type { FhirContext, FhirReply, InputKind, InputTexts, OperationCall } from './request.ts'

interface ParameterDefinition {
  readonly name: string
  readonly kind: InputKind
  readonly isList: boolean
  readonly parts: readonly ParameterDefinition[]
}

export interface Inputs {
  text(name: string): string | undefined
  whole(name: string): number | undefined
  flag(name: string): boolean | undefined
  /** The begin or the end of a date or time, given as text. Errors: 400. */
  time(name: string, end: 'low' | 'high'): Date | undefined
  object(name: string): Readonly<Record<string, unknown>> | undefined
  resource(name: string): Resource | undefined
  texts(name: string): readonly string[]
  objects(name: string): readonly Readonly<Record<string, unknown>>[]
  parts(name: string): readonly Inputs[]
  /** Errors: 400 when absent. */
  required(name: string): string
}

type Values = ReadonlyMap<string, readonly unknown[]>

function createInputs(values: Values): Inputs {
  const all = <T>(name: string) => (values.get(name) ?? []) as readonly T[]
  return {
    text: (name) => all<string>(name)[0],
    whole: (name) => all<number>(name)[0],
    flag: (name) => all<boolean>(name)[0],
    time(name, end) {
      const period = readPeriod(all<string>(name)[0], name)
      return period && new Date(period[end])
    },
    object: (name) => all<Readonly<Record<string, unknown>>>(name)[0],
    resource: (name) => all<Resource>(name)[0],
    texts: all,
    objects: all,
    parts: all,
    required(name) {
      const [value] = all<string>(name)
      if (value === undefined) throw badRequest(`Missing required parameter "${name}"`, name)
      return value
    },
  }
}

/** Undefined without text. Errors: 400. */
export function readPeriod(text: string | null | undefined, name: string): DateRange | undefined {
  if (text === null || text === undefined) return undefined
  const period = parseDate(text)
  if (period === undefined) throw badRequest(`${name} must be a date or a time`, name)
  return period
}

type Called = Pick<OperationCall, 'operation' | 'type' | 'request'>

interface Taken {
  readonly definitions: readonly ParameterDefinition[]
  readonly isStrict: boolean
}

const OF_ANSWERS = new Set(['_format', '_pretty'])

/**
 * Ignores unknown names unless `Prefer: handling=strict`. Errors: 400 for values of another kind and for standard
 * parameters that the operation does not declare; 415.
 */
export function readInputs(call: Called): Inputs {
  return read(call, wantsStrict(call.request.headers.prefer))
}

/**
 * Rejects unknown names, too, and empty values in the query of a change: for changes that would be made to more than
 * was meant without the input.
 */
export function readKnownInputs(call: Called): Inputs {
  const { method, query } = call.request
  const [name] = method === 'GET' ? [] : ([...query].find(([, text]) => text === '') ?? [])
  if (name !== undefined) throw badRequest(`"${name.slice(0, 64)}" is empty`, name.slice(0, 64))
  return read(call, true)
}

function read(call: Called, isStrict: boolean): Inputs {
  const { request } = call
  const definitions = inputDefinitions(call)
  const taken = { definitions, isStrict }
  const values = fromQuery(request.query, taken)
  if (request.method === 'GET' || request.body === undefined || request.body.length === 0) {
    return createInputs(values)
  }
  const body = readJson(request)
  if (isObject(body) && body.resourceType === undefined) {
    return createInputs(joined(values, fromObject(body, taken, '')))
  }
  if (!isResource(body)) throw badRequest('Expected a Parameters resource or a JSON object')
  if (body.resourceType === 'Parameters') {
    requireMembers(body)
    const given = fromParameters(body.parameter, taken, 'Parameters.parameter')
    return createInputs(joined(values, given))
  }
  const [taker, second] = definitions.filter(({ kind }) => kind === 'resource')
  if (taker === undefined || second !== undefined) {
    throw badRequest(`Expected a Parameters resource, but found ${body.resourceType.slice(0, 64)}`)
  }
  return createInputs(joined(values, new Map([[taker.name, [body]]])))
}

/** Errors: 400 for a parameter in the query and in the body, of which one would be ignored. */
function joined(query: Values, body: Values): Values {
  for (const name of body.keys()) {
    if (query.has(name)) throw badRequest(`"${name}" is in the query and in the body`, name)
  }
  return new Map([...query, ...body])
}

const MEMBERS = new Set(['resourceType', 'id', 'meta', 'implicitRules', 'language', 'parameter'])

/** Errors: 400 for a member that Parameters do not have, such as a misspelt `parameter`. */
export function requireMembers(body: Readonly<Record<string, unknown>>): void {
  const unknown = Object.keys(body).find((name) => !MEMBERS.has(name.replace(/^_/, '')))
  if (unknown === undefined) return
  const name = unknown.slice(0, 64)
  throw badStructure(`Invalid additional property "${name}"`, `Parameters.${name}`)
}

/** Includes the parameters of the standard that the operation does not declare, as `refused`. */
function inputDefinitions({ operation, type }: Called): readonly ParameterDefinition[] {
  const { name, standard, inputs } = operation
  const all = operationParameters(`${standard === 'type' ? type : standard}/${name}`)
  const refused = all.map((path) => [path, 'refused*: '] as const)
  return parseInputs({ ...Object.fromEntries(refused), ...inputs })
}

function parseInputs(inputs: InputTexts, prefix = ''): readonly ParameterDefinition[] {
  return Object.entries(inputs).flatMap(([path, text]) => {
    const name = path.slice(prefix.length)
    if (!path.startsWith(prefix) || name.includes('.')) return []
    const [, kind, many] = /^(\w+)!?(\*?): /.exec(text) ?? []
    const parts = kind === 'part' ? parseInputs(inputs, `${path}.`) : []
    return { name, kind: kind as InputKind, isList: many === '*', parts }
  })
}

function refuseUnknown({ isStrict }: Taken, name: string, path: string): void {
  if (isStrict) throw badRequest(`Unknown parameter "${name.slice(0, 64)}"`, path)
}

function fromQuery(query: URLSearchParams, taken: Taken): Map<string, readonly unknown[]> {
  const { definitions } = taken
  const values = new Map<string, readonly unknown[]>()
  for (const name of query.keys()) {
    const isKnown = OF_ANSWERS.has(name) || definitions.some((one) => one.name === name)
    if (!isKnown) refuseUnknown(taken, name, name)
  }
  for (const definition of definitions) {
    const { name, kind } = definition
    const texts = query.getAll(name).filter((text) => text !== '')
    if (texts.length === 0) continue
    requireOne(definition, texts.length, name)
    values.set(
      name,
      texts.map((text) => fromText(kind, text, name)),
    )
  }
  return values
}

function fromText(kind: InputKind, text: string, name: string): unknown {
  switch (kind) {
    case 'text':
    case 'reference':
    case 'token':
      if (text.includes('\0')) throw badRequest('Null bytes are not allowed', name)
      return text
    case 'whole':
      if (/^-?\d{1,9}$/.test(text)) return Number(text)
      throw badRequest(`"${name}" must be a whole number`, name)
    case 'flag':
      if (text === 'true' || text === 'false') return text === 'true'
      throw badRequest(`"${name}" must be true or false`, name)
    case 'refused':
      throw notOffered(name, name)
    default:
      throw badRequest(`"${name}" is not a primitive and must be sent by POST`, name)
  }
}

function notOffered(name: string, path: string): HttpError {
  return notSupported(`Parameter "${name}" is not supported`, path)
}

function fromParameters(
  given: unknown,
  taken: Taken,
  path: string,
): Map<string, readonly unknown[]> {
  const values = new Map<string, unknown[]>()
  if (given === undefined) return values
  if (!Array.isArray(given)) throw badRequest('Expected a list of parameters', path)
  for (const [index, item] of given.entries()) {
    const place = `${path}[${index}]`
    if (!isObject(item) || typeof item.name !== 'string') {
      throw badRequest('A parameter needs a name', place)
    }
    const definition = taken.definitions.find(({ name }) => name === item.name)
    if (definition === undefined) {
      refuseUnknown(taken, item.name, place)
      continue
    }
    requireOneValue(item, place)
    const list = values.get(definition.name) ?? []
    list.push(valueIn(definition, item, taken, place))
    requireOne(definition, list.length, place)
    values.set(definition.name, list)
  }
  return values
}

const NO_VALUES = new Set(['name', 'id', 'extension'])

/** Errors: 400 for a parameter with several values, of which only one would be used. */
function requireOneValue(item: Readonly<Record<string, unknown>>, path: string): void {
  const values = Object.keys(item).filter((name) => !NO_VALUES.has(name) && !name.startsWith('_'))
  if (values.length < 2) return
  const names = values.map((name) => name.slice(0, 64)).join(', ')
  throw badRequest(`A parameter has one value, not ${names}`, path)
}

function fromObject(
  given: Readonly<Record<string, unknown>>,
  taken: Taken,
  path: string,
): Map<string, readonly unknown[]> {
  const { definitions } = taken
  const values = new Map<string, readonly unknown[]>()
  for (const name in given) {
    if (!definitions.some((one) => one.name === name)) refuseUnknown(taken, name, `${path}${name}`)
  }
  for (const definition of definitions) {
    const { name } = definition
    const value = given[name]
    if (value === undefined || value === null) continue
    const place = `${path}${name}`
    const items = Array.isArray(value) ? value : [value]
    requireOne(definition, items.length, place)
    values.set(
      name,
      items.map((item) => plainValue(definition, item, taken, place)),
    )
  }
  return values
}

function plainValue(
  { name, kind, parts }: ParameterDefinition,
  value: unknown,
  { isStrict }: Taken,
  path: string,
): unknown {
  if (kind === 'part') {
    const taken = { definitions: parts, isStrict }
    if (isObject(value)) return createInputs(fromObject(value, taken, `${path}.`))
    throw badRequest(`"${name}" must be an object`, path)
  }
  if (kind === 'resource') return resourceIn(name, value, path)
  // Medplum's forms send text.
  if (kind === 'flag' && (value === 'true' || value === 'false')) return value === 'true'
  return valueOfKind(name, kind, value, path)
}

function requireOne({ name, isList }: ParameterDefinition, count: number, path: string): void {
  if (!isList && count > 1) throw badRequest(`"${name}" may be given once`, path)
}

function valueIn(
  { name, kind, parts }: ParameterDefinition,
  item: Readonly<Record<string, unknown>>,
  { isStrict }: Taken,
  path: string,
): unknown {
  if (kind === 'part') {
    if (item.part === undefined) throw badRequest(`"${name}" must have parts`, path)
    const taken = { definitions: parts, isStrict }
    return createInputs(fromParameters(item.part, taken, `${path}.part`))
  }
  if (kind === 'resource') return resourceIn(name, item.resource, path)
  const member = Object.keys(item).find((key) => /^value[A-Z]/.test(key))
  return valueOfKind(name, kind, member === undefined ? undefined : item[member], path)
}

function resourceIn(name: string, value: unknown, path: string): Resource {
  if (isResource(value) && isResourceType(value.resourceType)) return value
  throw badRequest(`"${name}" must hold a resource`, path)
}

function valueOfKind(
  name: string,
  kind: Exclude<InputKind, 'part' | 'resource'>,
  value: unknown,
  path: string,
): unknown {
  switch (kind) {
    case 'text':
      if (value === '') throw badRequest(`"${name}" is empty`, path)
      if (typeof value === 'string') return value
      throw badRequest(`"${name}" must be a string`, path)
    case 'reference': {
      const text = isObject(value) ? value.reference : value
      if (typeof text === 'string' && text !== '') return text
      throw badRequest(`"${name}" must be a reference`, path)
    }
    case 'token':
      return tokenText(name, value, path)
    case 'whole': {
      const number = toNumber(value)
      if (Number.isSafeInteger(number)) return number
      throw badRequest(`"${name}" must be a whole number`, path)
    }
    case 'flag':
      if (typeof value === 'boolean') return value
      throw badRequest(`"${name}" must be a boolean`, path)
    case 'object':
      if (isObject(value)) return value
      throw badRequest(`"${name}" must be an object`, path)
    case 'refused':
      throw notOffered(name, path)
    default:
      return kind satisfies never
  }
}

/** Codings of a concept are alternatives. Errors: 400 for a concept without a code. */
export function tokenText(name: string, value: unknown, path: string): string {
  if (typeof value === 'string' && value !== '') return value
  const concept = isObject(value) && Array.isArray(value.coding) ? value.coding : [value]
  const tokens = concept.filter(isObject).flatMap(({ system, code }) => {
    if (typeof code !== 'string') return []
    const isNamed = typeof system === 'string'
    return [isNamed ? `${escapeValue(system)}|${escapeValue(code)}` : escapeValue(code)]
  })
  if (tokens.length > 0) return tokens.join(',')
  throw badRequest(`"${name}" must have a code`, path)
}

/** `[name, value member, value]`; undefined, null and empty strings are left out. */
export type Output =
  | readonly [name: string, member: 'part', parts: readonly Output[]]
  | readonly [name: string, member: `value${string}` | 'resource', value: unknown]

export function parametersReply(outputs: readonly Output[]): FhirReply {
  return jsonReply(200, parametersResource(outputs))
}

export function parametersResource(outputs: readonly Output[]): Resource {
  const parameter = toParameters(outputs)
  // FHIR forbids empty arrays, objects and strings: https://hl7.org/fhir/R4/json.html
  return { resourceType: 'Parameters', ...(parameter.length === 0 ? {} : { parameter }) }
}

export function toParameters(outputs: readonly Output[]): readonly object[] {
  return outputs.flatMap(([name, member, value]) => {
    if (member === 'part') return { name, part: toParameters(value) }
    return (value ?? '') === '' ? [] : { name, [member]: value }
  })
}

/** Converts the call of an operation that returns resources. Errors: 406. */
export function toInteraction({ services, principal, request }: OperationCall): FhirContext {
  return { services, principal, request, preferences: readPreferences(request) }
}
