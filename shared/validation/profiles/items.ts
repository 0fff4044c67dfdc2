/** How many values an element has, and which. */

import type { Property } from '../shapes.ts'
import { type Item, maxOf, type Run, rangeText } from './run.ts'
import type { ElementNode } from './tree.ts'

export interface Range {
  readonly min: number
  readonly max: number
}

/** Undefined where the profile is as its type. */
export function rangeOf({ element }: ElementNode, property: Property): Range | undefined {
  const min = element?.min ?? 0
  const max = maxOf(element?.max) ?? property.max
  return min > property.min || max < property.max ? { min, max } : undefined
}

/** Errors go to the run, at the element's name. */
export function checkCount(count: number, range: Range | undefined, label: string, run: Run): void {
  if (range === undefined || (count >= range.min && count <= range.max)) return
  const text =
    count === 0
      ? 'Missing required property'
      : `Invalid number of values: expected ${rangeText(range.min, range.max)}, but found ${count}`
  run.faults.rule(text, label)
}

/** The values of an element; of a primitive also those that are extensions alone. */
export function itemsOf(parent: Record<string, unknown>, property: Property): readonly Item[] {
  const value = parent[property.name]
  const sibling = property.check === undefined ? undefined : parent[`_${property.name}`]
  if (!property.isArray) {
    if (value === undefined && sibling === undefined) return []
    return [{ value: value ?? null, property, index: undefined, sibling }]
  }
  const values = Array.isArray(value) ? value : []
  const siblings = Array.isArray(sibling) ? sibling : []
  return Array.from({ length: Math.max(values.length, siblings.length) }, (_, index) => ({
    value: values[index] ?? null,
    property,
    index,
    sibling: siblings[index],
  }))
}
