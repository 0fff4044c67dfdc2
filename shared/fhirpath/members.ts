/** The elements below an element, by the name that FHIRPath calls them: `value` is `valueQuantity`, too. */

import { elementsOf, isResourceType } from '../fhir/definitions.ts'
import { isPrimitive } from '../fhir/primitives.ts'
import { isObject } from '../fhir/resource.ts'
import type { Compiled } from './logic.ts'
import { NO_VALUE } from './values.ts'

/** An expression that names an element which its type has not. */
export class UnknownElement extends Error {}

/** Properties that the element `name` of `Patient.contact` or `HumanName` may be written as. */
export function propertiesOf(parent: string, name: string): { property: string; type: string }[] {
  const [owner = '', ...below] = parent.split('.')
  const prefix = below.map((part) => `${part}.`).join('')
  const elements = elementsOf(owner).filter((element) => element.path.startsWith(prefix))
  for (const element of elements) {
    const own = element.path.slice(prefix.length)
    if (element.choice && (own === name || name.startsWith(own))) {
      const all = element.types.map(({ code }) => ({ property: own + capital(code), type: code }))
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

function capital(code: string): string {
  return code.charAt(0).toUpperCase() + code.slice(1)
}

export interface Child {
  readonly property: string
  readonly type: string | undefined
  readonly isPrimitive: boolean
}

/** The children of an element that has one of the types; undefined: any resource. */
export function childrenOf(types: readonly string[] | undefined, name: string): readonly Child[] {
  if (types === undefined || types.includes('Resource')) {
    return [{ property: name, type: undefined, isPrimitive: false }]
  }
  const found = new Map<string, Child>()
  for (const parent of types) {
    for (const { property, type } of propertiesOf(parent, name)) {
      found.set(property, { property, type, isPrimitive: isPrimitive(type) })
    }
  }
  return [...found.values()]
}

/** Undefined: any resource. */
export function typesOf(children: readonly Child[]): readonly string[] | undefined {
  if (children.some(({ type }) => type === undefined)) return undefined
  return children.flatMap(({ type }) => type ?? [])
}

/** Adds the values; NO_VALUE stands for those that have only an id or extensions. */
export function collect(focus: unknown, children: readonly Child[], found: unknown[]): void {
  if (!isObject(focus)) return
  for (const { property, isPrimitive } of children) {
    const value = focus[property]
    if (Array.isArray(value)) for (const item of value) found.push(item ?? NO_VALUE)
    else if (value !== undefined && value !== null) found.push(value)
    else if (isPrimitive && focus[`_${property}`] !== undefined) found.push(NO_VALUE)
  }
}

/** Whether a path of the focus leads to anything, found without collecting it. */
export function presence(
  path: readonly string[],
  startTypes: readonly string[] | undefined,
): (focus: unknown) => boolean {
  let types = startTypes
  const steps = path.map((name) => {
    const children = childrenOf(types, name)
    types = typesOf(children)
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

/** All that is below, values with their objects. */
function descendantsOf(items: readonly unknown[]): readonly unknown[] {
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

/** The type of what `resolve()` answers in a search expression: a type's name; nothing is ever read. */
export const RESOLVED = '#resolved'

/** Type of a Reference or canonical by its text, else by `Reference.type`. */
export function referenceType(node: unknown): string | undefined {
  const text = isObject(node) ? node.reference : node
  if (typeof text === 'string') {
    const match = /(?:^|\/)([A-Z][A-Za-z]+)\/[A-Za-z0-9\-.]{1,64}(?:\/_history\/[^/]+)?$/.exec(text)
    if (match) return match[1]
  }
  return isObject(node) && typeof node.type === 'string' ? node.type : undefined
}

/** True for the name by which an expression on `type` begins at the resource itself. */
export function isRootOf(type: string, name: string): boolean {
  if (name === type) return true
  return (name === 'Resource' || name === 'DomainResource') && isResourceType(type)
}

/** Functions without arguments that follow the values of a path. */
export const FOLLOWED: ReadonlyMap<string, (source: Compiled) => Compiled> = new Map([
  ['trace', (source: Compiled) => source],
  ['count', mapped((found) => [found.length], [])],
  ['first', mapped((found) => found.slice(0, 1))],
  ['tail', mapped((found) => found.slice(1))],
  ['descendants', mapped(descendantsOf, undefined)],
  ['resolve', mapped((found) => found.flatMap((item) => referenceType(item) ?? []), [RESOLVED])],
])

/** Without `types` the values are of those of the path. */
function mapped(
  change: (found: readonly unknown[]) => readonly unknown[],
  ...types: [types?: readonly string[]]
): (source: Compiled) => Compiled {
  return (source) => ({
    evaluate: (focus, variables) => change(source.evaluate(focus, variables)),
    types: types.length === 0 ? source.types : types[0],
  })
}
