/** Slices divide the values of one element by their content. https://hl7.org/fhir/R4/profiling.html#slicing */

import { codesOf } from '../bindings.ts'
import type { Property } from '../shapes.ts'
import { type Membership, membership, type Others } from './members.ts'
import { at, type Item, type ItemCheck, maxOf, type Run, rangeText } from './run.ts'
import type { Discriminator, ElementNode } from './tree.ts'

type SlicesCheck = (items: readonly Item[], label: string, run: Run) => void

interface Slice {
  readonly name: string
  readonly members: Membership
  readonly checks: ReadonlyMap<Property, ItemCheck>
  readonly min: number
  readonly max: number
  /** Slices of the slice. */
  readonly inner: SlicesCheck
}

type Compile = (slice: ElementNode, property: Property) => ItemCheck

/** A function that counts and checks the values of each slice; `label` is the element's name. */
export function compileSlices(
  node: ElementNode,
  properties: readonly Property[],
  others: Others,
  compileItem: Compile,
): SlicesCheck {
  if (node.slices.size === 0) return () => {}
  const { slicing } = node.element ?? {}
  const { discriminator = defaultsFor(node), rules, ordered } = slicing ?? {}
  const slices = [...node.slices].flatMap(([name, slice]): Slice[] => {
    const members = membership(discriminator, slice, others)
    if (members === undefined) return []
    const checks = new Map(properties.map((item) => [item, compileItem(slice, item)]))
    const { min = 0, max } = slice.element ?? {}
    const inner = compileSlices(slice, properties, others, compileItem)
    return [{ name, members, checks, min, max: maxOf(max) ?? Number.POSITIVE_INFINITY, inner }]
  })
  return (items, label, run) => {
    const known = slices.filter((slice) => isKnown(slice, run))
    const areAll = known.length === node.slices.size
    const isClosed = rules === 'closed' && areAll
    const isOpenAtEnd = rules === 'openAtEnd' && areAll
    let rest = items
    const places = new Map<Item, number>()
    for (const [place, slice] of known.entries()) {
      const members = rest.filter((item) => slice.members.has(item, run))
      for (const item of members) places.set(item, place)
      if (members.length > 0) rest = rest.filter((item) => !places.has(item))
      run.spend(items.length)
      checkSlice(slice, members, label, run)
    }
    for (const item of isClosed ? rest : []) {
      at(item, run, () => run.faults.rule('Value is in none of the slices that are allowed'))
    }
    if (ordered && !isInOrder(items, places)) run.faults.rule('Slices are not in order', label)
    if (isOpenAtEnd && hasRestBefore(items, places)) {
      run.faults.rule('Values outside of the slices must come after them', label)
    }
  }
}

function isKnown({ members }: Slice, { codes }: Run): boolean {
  return members.valueSets.values().every((valueSet) => codesOf(valueSet, codes) !== undefined)
}

function checkSlice(slice: Slice, members: readonly Item[], label: string, run: Run): void {
  const { name, min, max, checks, inner } = slice
  if (members.length < min || members.length > max) {
    const range = `expected ${rangeText(min, max)}, but found ${members.length}`
    run.faults.rule(`Incorrect number of values provided for slice '${name}': ${range}`, label)
  }
  for (const item of members) at(item, run, () => checks.get(item.property)?.(item, run))
  inner(members, label, run)
}

function isInOrder(items: readonly Item[], places: ReadonlyMap<Item, number>): boolean {
  const found = items.flatMap((item) => places.get(item) ?? [])
  return found.every((place, index) => index === 0 || place >= (found[index - 1] ?? 0))
}

function hasRestBefore(items: readonly Item[], places: ReadonlyMap<Item, number>): boolean {
  const first = items.findIndex((item) => !places.has(item))
  return first !== -1 && items.slice(first).some((item) => places.has(item))
}

/** Extensions are discriminated by url, choices by type, also where the profile does not say so. */
function defaultsFor({ name }: ElementNode): readonly Discriminator[] {
  const isExtension = name === 'extension' || name === 'modifierExtension'
  return [isExtension ? { type: 'value', path: 'url' } : { type: 'type', path: '$this' }]
}
