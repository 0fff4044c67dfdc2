/** `_summary` and `_elements` (also `_fields`). https://hl7.org/fhir/R4/search.html#summary, #elements */
import { badRequest, tooCostly } from '../core/errors.ts'
import { singleValue } from '../core/query.ts'
import { typeElements } from './definitions.ts'
import type { ElementDefinition } from './definitions-data.ts'
import { parseJson } from './json.ts'
import { asArray, isObject } from './resource.ts'

export type View = (text: string) => string

const LISTS = ['_elements', '_fields'] as const
const VIEWED = [...LISTS, '_summary'] as const
/** Each costs a comparison for each element of each resource. */
const MOST_NAMES = 200

/** Returns the view of a query; undefined for the whole resource. Errors: 400 for a bad value or too many names. */
export function parseView(type: string, query: URLSearchParams): View | undefined {
  if (!VIEWED.some((name) => query.has(name))) return undefined
  const wanted = namedElements(query).map((path) => path.split('.'))
  if (wanted.length > 0) return keep(type, named(wanted))
  const summary = singleValue(query, '_summary')
  switch (summary) {
    case undefined:
    case 'false':
    case 'count':
      return undefined
    case 'true':
      return keep(type, inSummary)
    case 'text':
      return keep(type, ({ path }) => path === 'text')
    case 'data':
      return subset(({ text: _text, ...rest }) => rest)
    default:
      throw badRequest(`Invalid value of _summary: ${summary.slice(0, 100)}`, '_summary')
  }
}

/** Returns the distinct elements that a query names. Errors: 400 for more than MOST_NAMES. */
export function namedElements(
  query: URLSearchParams,
  lists: readonly (typeof LISTS)[number][] = LISTS,
): readonly string[] {
  const names = lists
    .flatMap((list) => query.getAll(list))
    .join(',')
    .split(',')
  const paths = new Set(names.map((name) => name.trim().replaceAll('[x]', '')))
  paths.delete('')
  if (paths.size <= MOST_NAMES) return [...paths]
  throw tooCostly(`_elements may name ${MOST_NAMES} elements`, '_elements')
}

/** Errors: 400 for an unknown element in `_elements`. `_fields` may also name search parameters. */
export function requireElements(types: readonly string[], query: URLSearchParams): void {
  if (!query.has('_elements')) return
  for (const path of namedElements(query, ['_elements'])) {
    if (types.some((type) => hasElement(type, '', path.split('.')))) continue
    throw badRequest(`There is no element ${path.slice(0, 64)}`, '_elements')
  }
}

const UNIVERSAL = new Set(['resourceType', 'id', 'extension'])

/** `prefix` is the path prefix of the children, see `childScope`. */
function hasElement(owner: string, prefix: string, [first = '', ...rest]: string[]): boolean {
  if (rest.length === 0 && UNIVERSAL.has(first)) return true
  return typeElements(owner).some((element) => {
    const name = element.path.slice(prefix.length)
    if (!element.path.startsWith(prefix) || name.includes('.')) return false
    if (first !== name && !propertyNames(element, name).includes(first)) return false
    if (rest.length === 0) return true
    if (element.choice) return element.types.some(({ code }) => hasElement(code, '', rest))
    const [inside, below] = childScope(owner, element)
    return hasElement(inside, below, rest)
  })
}

type Choice = boolean | Choose
/** `name` is the last step of the element path. */
type Choose = (element: ElementDefinition, name: string) => Choice

const inSummary: Choose = (element) => {
  if (element.summary !== true) return false
  return isBackbone(element) ? inSummary : true
}

/** `name` includes the whole element, `name.family` only that child. */
function named(paths: readonly (readonly string[])[]): Choose {
  return (element, name) => {
    const names = [name, ...propertyNames(element, name)]
    const own = paths.filter(([first = '']) => names.includes(first))
    if (own.length === 0) return false
    return own.some((path) => path.length === 1) || named(own.map(([, ...below]) => below))
  }
}

function keep(type: string, choose: Choose): View {
  const always = new Set(['resourceType', 'id', 'meta'])
  return subset((resource) => cut(resource, { owner: type, prefix: '', choose, always }))
}

interface Cutting {
  readonly owner: string
  readonly prefix: string
  readonly choose: Choose
  readonly always: ReadonlySet<string>
}

/** Always keeps mandatory and modifier elements: without them the rest may be misread. */
function cut(
  value: Readonly<Record<string, unknown>>,
  { owner, prefix, choose, always }: Cutting,
): Record<string, unknown> {
  const choices = new Map<string, { choice: Choice; element: ElementDefinition }>()
  for (const element of typeElements(owner)) {
    const name = element.path.slice(prefix.length)
    if (!element.path.startsWith(prefix) || name.includes('.')) continue
    const chosen = choose(element, name)
    const choice = chosen === false && (element.min || element.modifier) ? true : chosen
    if (choice === false) continue
    for (const one of propertyNames(element, name)) choices.set(one, { choice, element })
  }
  const kept = Object.entries(value).flatMap(([name, child]): [string, unknown][] => {
    const found = choices.get(name.replace(/^_/, ''))
    if (always.has(name)) return [[name, child]]
    if (found === undefined) return []
    if (typeof found.choice === 'boolean') return [[name, child]]
    return [[name, cutChild(child, owner, found.element, found.choice)]]
  })
  return Object.fromEntries(kept)
}

const ONLY_ID: ReadonlySet<string> = new Set(['id'])

function cutChild(
  value: unknown,
  owner: string,
  element: ElementDefinition,
  choose: Choose,
): unknown {
  if (Array.isArray(value)) return value.map((item) => cutChild(item, owner, element, choose))
  if (!isObject(value)) return value
  const [inside, prefix] = childScope(owner, element)
  return cut(value, { owner: inside, prefix, choose, always: ONLY_ID })
}

/** Returns the type that defines an element's children, and their path prefix. */
function childScope(owner: string, element: ElementDefinition): [type: string, prefix: string] {
  if (element.content !== undefined) {
    const [type = '', ...path] = element.content.split('.')
    return [type, `${path.join('.')}.`]
  }
  if (isBackbone(element)) return [owner, `${element.path}.`]
  return [element.types[0]?.code ?? '', '']
}

function isBackbone({ types: [only], content }: ElementDefinition): boolean {
  return content !== undefined || only?.code === 'BackboneElement' || only?.code === 'Element'
}

function propertyNames({ choice, types }: ElementDefinition, name: string): string[] {
  if (!choice) return [name]
  return types.map(({ code }) => name + code.charAt(0).toUpperCase() + code.slice(1))
}

const SUBSETTED = {
  system: 'http://terminology.hl7.org/CodeSystem/v3-ObservationValue',
  code: 'SUBSETTED',
}

/** Tags the result SUBSETTED, so that clients do not take it for the whole. */
function subset(cut: (resource: Record<string, unknown>) => Record<string, unknown>): View {
  return (text) => {
    const resource = parseJson(text)
    if (!isObject(resource)) return text
    const meta = isObject(resource.meta) ? resource.meta : {}
    const tags = asArray(meta.tag)
    return JSON.stringify(cut({ ...resource, meta: { ...meta, tag: [...tags, SUBSETTED] } }))
  }
}
