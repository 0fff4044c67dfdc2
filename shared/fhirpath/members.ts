/** Child elements by FHIRPath name (`value` includes `valueQuantity`), and three-valued logic. */
import { capitalised, isResourceType, typeElements } from '../fhir/definitions.ts'
import { isPrimitive } from '../fhir/primitives.ts'
import { isObject } from '../fhir/resource.ts'
import type { Expression } from './parse.ts'
import { NO_VALUE, NOT_PLAIN } from './values.ts'

export class UnknownElement extends Error {}

/** JSON properties of element `name` of `Patient.contact` or `HumanName`. */
export function elementProperties(
  parent: string,
  name: string,
): { property: string; type: string }[] {
  const [owner = '', ...below] = parent.split('.')
  const prefix = below.map((part) => `${part}.`).join('')
  const elements = typeElements(owner).filter((element) => element.path.startsWith(prefix))
  for (const element of elements) {
    const own = element.path.slice(prefix.length)
    if (element.choice && (own === name || name.startsWith(own))) {
      const all = element.types.map(({ code }) => ({
        property: own + capitalised(code),
        type: code,
      }))
      const chosen = own === name ? all : all.filter((item) => item.property === name)
      if (chosen.length > 0) return chosen
    }
    if (own !== name) continue
    if (element.content) return [{ property: name, type: element.content }]
    const [only] = element.types
    const isBackbone = only?.code === 'BackboneElement' || only?.code === 'Element'
    return [{ property: name, type: isBackbone ? `${parent}.${name}` : (only?.code ?? 'string') }]
  }
  return []
}

export interface Child {
  readonly property: string
  readonly type: string | undefined
  readonly isPrimitive: boolean
}

/** Children of an element of any of the types; of any resource when undefined. */
export function childElements(
  types: readonly string[] | undefined,
  name: string,
): readonly Child[] {
  if (types === undefined || types.includes('Resource')) {
    return [{ property: name, type: undefined, isPrimitive: false }]
  }
  const found = new Map<string, Child>()
  for (const parent of types) {
    for (const { property, type } of elementProperties(parent, name)) {
      found.set(property, { property, type, isPrimitive: isPrimitive(type) })
    }
  }
  return [...found.values()]
}

export function childTypes(children: readonly Child[]): readonly string[] | undefined {
  if (children.some(({ type }) => type === undefined)) return undefined
  return children.flatMap(({ type }) => type ?? [])
}

/** Adds the values to `found`; NO_VALUE for elements with only an id or extensions. */
export function collect(focus: unknown, children: readonly Child[], found: unknown[]): void {
  if (!isObject(focus)) return
  for (const { property, isPrimitive } of children) {
    const value = focus[property]
    if (Array.isArray(value)) for (const item of value) found.push(item ?? NO_VALUE)
    else if (value !== undefined && value !== null) found.push(value)
    else if (isPrimitive && focus[`_${property}`] !== undefined) found.push(NO_VALUE)
  }
}

/** True when a path from the focus yields anything, without collecting values. */
export function presence(
  path: readonly string[],
  startTypes: readonly string[] | undefined,
): (focus: unknown) => boolean {
  let types = startTypes
  const steps = path.map((name) => {
    const children = childElements(types, name)
    types = childTypes(children)
    return children
  })
  return steps.reduceRight<(focus: unknown) => boolean>(
    (next, children) => (focus) => leads(focus, children, next),
    () => true,
  )
}

function leads(
  focus: unknown,
  children: readonly Child[],
  next: (value: unknown) => boolean,
): boolean {
  if (!isObject(focus)) return false
  for (const { property, isPrimitive } of children) {
    const value = focus[property]
    if (Array.isArray(value) ? value.some(next) : value !== undefined && next(value)) return true
    if (isPrimitive && focus[`_${property}`] !== undefined && next(NO_VALUE)) return true
  }
  return false
}

function collectDescendants(items: readonly unknown[]): readonly unknown[] {
  const found: unknown[] = []
  const open = items.filter(isObject)
  for (let item = open.pop(); item !== undefined; item = open.pop()) {
    for (const member of Object.values(item)) {
      for (const value of Array.isArray(member) ? member : [member]) {
        if (value === null || value === undefined) continue
        found.push(value)
        if (isObject(value)) open.push(value)
      }
    }
  }
  return found
}

/** Type of a `resolve()` result in a search expression: only its type name is known, nothing is read. */
export const RESOLVED = '#resolved'

/** Type of a Reference or canonical, from its text or `Reference.type`. */
export function referenceType(node: unknown): string | undefined {
  const text = isObject(node) ? node.reference : node
  if (typeof text === 'string') {
    const match = /(?:^|\/)([A-Z][A-Za-z]+)\/[A-Za-z0-9\-.]{1,64}(?:\/_history\/[^/]+)?$/.exec(text)
    if (match) return match[1]
  }
  return isObject(node) && typeof node.type === 'string' ? node.type : undefined
}

/** True for a name that denotes the resource itself in an expression on `type`. */
export function isResourceRoot(type: string, name: string): boolean {
  if (name === type) return true
  return (name === 'Resource' || name === 'DomainResource') && isResourceType(type)
}

export const FOLLOWED: ReadonlyMap<string, (source: Compiled) => Compiled> = new Map([
  ['trace', (source: Compiled) => source],
  ['count', mapped((found) => [found.length], [])],
  ['first', mapped((found) => found.slice(0, 1))],
  ['tail', mapped((found) => found.slice(1))],
  ['descendants', mapped(collectDescendants, undefined)],
  ['resolve', mapped((found) => found.flatMap((item) => referenceType(item) ?? []), [RESOLVED])],
])

/** Without `types`, the values keep the types of the path. */
function mapped(
  change: (found: readonly unknown[]) => readonly unknown[],
  ...types: [types?: readonly string[]]
): (source: Compiled) => Compiled {
  return (source) => ({
    evaluate: (focus, variables) => change(source.evaluate(focus, variables)),
    types: types.length === 0 ? source.types : types[0],
  })
}

export interface Variables {
  /** Element that the invariant applies to. */
  readonly context: unknown
  /** `%resource`: the innermost enclosing resource. */
  readonly resource: unknown
  readonly rootResource: unknown
}

export type Truth = (focus: unknown, variables: Variables) => boolean | undefined

export type Evaluate = (focus: unknown, variables: Variables) => readonly unknown[]

export interface Compiled {
  readonly evaluate: Evaluate
  readonly types: readonly string[] | undefined
}

type Connect = (left: Truth, right: Truth) => Truth

/** Binary logic; the right operand is skipped when the left one decides. */
export const LOGIC: ReadonlyMap<string, Connect> = new Map<string, Connect>([
  [
    'and',
    (left, right) => (focus, variables) => {
      const a = left(focus, variables)
      if (a === false) return false
      const b = right(focus, variables)
      return b === false ? false : a && b
    },
  ],
  ['or', (left, right) => either(left, right, (a) => a)],
  ['implies', (left, right) => either(left, right, (a) => (a === undefined ? undefined : !a))],
  [
    'xor',
    (left, right) => (focus, variables) => {
      const a = left(focus, variables)
      const b = right(focus, variables)
      return a === undefined || b === undefined ? undefined : a !== b
    },
  ],
])

function either(
  left: Truth,
  right: Truth,
  ofLeft: (a: boolean | undefined) => boolean | undefined,
): Truth {
  return (focus, variables) => {
    const a = ofLeft(left(focus, variables))
    if (a === true) return true
    const b = right(focus, variables)
    return b === true ? true : a === undefined ? undefined : b
  }
}

/** https://hl7.org/fhirpath/N1/#singleton-evaluation-of-collections */
export function singleton(found: readonly unknown[]): boolean | undefined {
  if (found.length === 0) return undefined
  if (found.length > 1) throw NOT_PLAIN
  return typeof found[0] === 'boolean' ? found[0] : true
}

export const TESTS: ReadonlyMap<string, (found: readonly unknown[]) => boolean> = new Map([
  ['exists', (found: readonly unknown[]) => found.length > 0],
  ['empty', (found: readonly unknown[]) => found.length === 0],
  [
    'hasValue',
    (found: readonly unknown[]) =>
      found.length === 1 && found[0] !== NO_VALUE && !isObject(found[0]),
  ],
  ['isDistinct', isDistinct],
  ['allFalse', (found: readonly unknown[]) => found.every((item) => item === false)],
])

/** An element without a value equals nothing. */
function isDistinct(found: readonly unknown[]): boolean {
  const values = found.filter((item) => item !== NO_VALUE)
  for (const item of values) if (typeof item !== 'string') throw NOT_PLAIN
  return new Set(values).size === values.length
}

/** True for a path that starts at a variable and so does not depend on the focus. */
export function isConstant(expression: Expression): boolean {
  if (expression.kind === 'variable') return expression.name !== 'this'
  return expression.kind === 'member' && expression.of !== undefined && isConstant(expression.of)
}

/** Caches the result while the variables are the same object. */
export function onceFor(evaluate: Evaluate): Evaluate {
  let known: { variables: Variables; found: readonly unknown[] } | undefined
  return (focus, variables) => {
    if (known?.variables !== variables) known = { variables, found: evaluate(focus, variables) }
    return known.found
  }
}
