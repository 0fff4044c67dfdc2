/** The elements below an element, by the name that FHIRPath calls them: `value` is `valueQuantity`, too. */

import { isPrimitive } from '../fhir/primitives.ts'
import { isObject } from '../fhir/resource.ts'
import { propertiesOf } from './extract.ts'
import { NO_VALUE } from './invariant-values.ts'

export interface Child {
  readonly property: string
  readonly type: string | undefined
  readonly isPrimitive: boolean
}

/** Of an element that is of one of the types; undefined: any resource. */
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
export function descendantsOf(items: readonly unknown[]): readonly unknown[] {
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
