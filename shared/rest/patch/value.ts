/** The value of a FHIRPath Patch operation: a `value[x]`, or named parts for a type without a name. */

import { isObject } from '../../fhir/resource.ts'
import type { Property, Shape } from '../../validation/shapes.ts'
import { PatchFault } from './patch.ts'
import { propertyFor, put, type Slot } from './place.ts'

export type PatchValue =
  | (Slot & { readonly type: string })
  | { readonly type: ''; readonly parts: readonly NamedValue[] }

interface NamedValue {
  readonly name: string
  readonly value: PatchValue
}

/** Undefined when the part has no value. */
export function readPatchValue(part: Record<string, unknown> = {}): PatchValue | undefined {
  if (isObject(part.resource)) return { type: '', value: part.resource }
  if (Array.isArray(part.part)) return readParts(part.part)
  const key = Object.keys(part).find((name) => /^_?value[A-Z]/.test(name))
  if (key === undefined) return undefined
  const name = key.replace(/^_/, '')
  return { type: name.slice('value'.length), value: part[name], twin: part[`_${name}`] }
}

function readParts(parts: readonly unknown[]): PatchValue | undefined {
  const values: NamedValue[] = []
  for (const part of parts) {
    if (!isObject(part) || typeof part.name !== 'string') return undefined
    const value = readPatchValue(part)
    if (value === undefined) return undefined
    values.push({ name: part.name, value })
  }
  return { type: '', parts: values }
}

/** The property that a value gets as an element of a shape. */
export function requireProperty(shape: Shape, element: string, { type }: PatchValue): Property {
  const property = propertyFor(shape, element, type)
  if (property === undefined)
    throw new PatchFault(`has no element "${element.slice(0, 64)}" for the value`)
  return property
}

/** The value as it stands under its property. */
export function slotOf(property: Property, value: PatchValue): Slot {
  if (!('parts' in value)) return { value: value.value, twin: value.twin }
  const shape = property.shape?.()
  if (shape === undefined) throw new PatchFault('cannot take parts as its value')
  const elements = new Map<Property, Slot[]>()
  for (const { name, value: part } of value.parts) {
    const inner = requireProperty(shape, name, part)
    const slots = elements.get(inner) ?? []
    if (slots.length > 0 && !inner.isArray) throw new PatchFault(`has two values for "${name}"`)
    slots.push(slotOf(inner, part))
    elements.set(inner, slots)
  }
  return { value: [...elements].reduce((object, [inner, slots]) => put(object, inner, slots), {}) }
}
