/** Slices: values of one element told apart by their content. https://hl7.org/fhir/R4/profiling.html#slicing */

import { bindingFault } from './bindings.ts'
import { patternOf } from './profile-patterns.ts'
import {
  at,
  type Item,
  type ItemCheck,
  maxOf,
  type Run,
  rangeText,
  requireTime,
} from './profile-run.ts'
import type { Discriminator, ElementNode } from './profile-tree.ts'
import { isObject } from './resource.ts'
import type { Property } from './shapes.ts'

type IsMember = (item: Item) => boolean
type Test = (value: unknown) => boolean

/** A function that counts and checks the values of each slice; `label` is the element's name. */
export function compileSlices(
  node: ElementNode,
  properties: readonly Property[],
  compileItem: (slice: ElementNode, property: Property) => ItemCheck,
): (items: readonly Item[], label: string, run: Run) => void {
  const { slicing } = node.element ?? {}
  const slices = [...node.slices].flatMap(([name, slice]) => {
    const isMember = membership(slicing?.discriminator ?? defaultsFor(node), slice)
    if (isMember === undefined) return []
    const checks = new Map(properties.map((item) => [item, compileItem(slice, item)]))
    const { min = 0, max } = slice.element ?? {}
    return [{ name, isMember, checks, min, max: maxOf(max) ?? Number.POSITIVE_INFINITY }]
  })
  const isClosed = slicing?.rules === 'closed' && slices.length === node.slices.size
  return (items, label, run) => {
    let rest = items
    for (const { name, isMember, checks, min, max } of slices) {
      const members = rest.filter(isMember)
      const taken = new Set(members)
      rest = rest.filter((item) => !taken.has(item))
      requireTime(run)
      if (members.length < min || members.length > max) {
        const range = `expected ${rangeText(min, max)}, but found ${members.length}`
        run.faults.rule(`Incorrect number of values provided for slice '${name}': ${range}`, label)
      }
      for (const item of members) at(item, run, () => checks.get(item.property)?.(item, run))
    }
    if (!isClosed) return
    for (const item of rest) {
      at(item, run, () => run.faults.rule('Value is in none of the slices that are allowed'))
    }
  }
}

/** Extensions are told apart by url, choices by type, also where the profile does not say so. */
function defaultsFor({ name }: ElementNode): readonly Discriminator[] {
  const isExtension = name === 'extension' || name === 'modifierExtension'
  return [isExtension ? { type: 'value', path: 'url' } : { type: 'type', path: '$this' }]
}

/** Undefined when nothing of the slice can be told by plain comparison. */
function membership(
  discriminators: readonly Discriminator[],
  slice: ElementNode,
): IsMember | undefined {
  const tests = discriminators.flatMap((discriminator) => memberTest(discriminator, slice) ?? [])
  return tests.length === 0 ? undefined : (item) => tests.every((test) => test(item))
}

function memberTest({ type, path }: Discriminator, slice: ElementNode): IsMember | undefined {
  const steps = path === '$this' ? [] : path.split('.')
  if (type === 'type') return typeTest(steps, slice)
  if (type === 'exists') {
    const test = existenceTest(steps, slice)
    return test && ((item) => test(item.value))
  }
  if (type !== 'value' && type !== 'pattern') return undefined
  const test = valueTest(steps, slice)
  return test && ((item) => test(item.value))
}

function typeTest(steps: readonly string[], slice: ElementNode): IsMember | undefined {
  const [first, ...more] = steps
  const types = slice.element?.type ?? []
  if (first === undefined) {
    const codes = types.map(({ code }) => code)
    return ({ value, property }) =>
      codes.includes(property.type) || codes.includes(resourceTypeOf(value))
  }
  if (first === 'resolve()' && more.length === 0) {
    const targets = types.flatMap(({ targetProfile = [] }) => targetProfile.map(lastPart))
    return ({ value }) => targets.some((target) => referenceText(value).includes(`${target}/`))
  }
  const [child] = [slice.children.get(first)]
  const codes = child?.element?.type?.map(({ code }) => code)
  if (codes === undefined || more.length > 0) return undefined
  return ({ value }) =>
    valuesIn(value, first).some((inner) => codes.includes(resourceTypeOf(inner)))
}

function existenceTest(steps: readonly string[], slice: ElementNode): Test | undefined {
  const [first, ...more] = steps
  const child = first === undefined ? undefined : slice.children.get(first)
  if (first === undefined || more.length > 0 || child?.element === undefined) return undefined
  const { min = 0, max } = child.element
  if (max === '0') return (value) => valuesIn(value, first).length === 0
  return min > 0 ? (value) => valuesIn(value, first).length > 0 : undefined
}

/** What the slice fixes at, above or below the end of the path. */
function valueTest(steps: readonly string[], node: ElementNode): Test | undefined {
  const pattern = patternOf(node.element)
  if (pattern !== undefined) return pattern
  const [first, ...rest] = steps
  if (first === undefined) return bindingTest(node) ?? childrenTest(node)
  const child = node.children.get(first)
  const inner =
    child === undefined ? undefined : (valueTest(rest, child) ?? slicesTest(rest, child))
  if (inner !== undefined) return (value) => valuesIn(value, first).some(inner)
  const [profile] = node.element?.type?.flatMap((type) => type.profile ?? []) ?? []
  if (first !== 'url' || profile === undefined) return undefined
  // The url of an extension is that of its definition: https://hl7.org/fhir/R4/extensibility.html
  const url = profile.replace(/\|.*$/, '')
  return (value) => isObject(value) && value.url === url
}

function bindingTest({ element }: ElementNode): Test | undefined {
  const { strength, valueSet } = element?.binding ?? {}
  if (strength !== 'required' || valueSet === undefined) return undefined
  return (value) => bindingFault(value, valueSet) === undefined
}

function childrenTest(node: ElementNode): Test | undefined {
  const tests = [...node.children].flatMap(([name, child]) => {
    const test = valueTest([], child) ?? slicesTest([], child)
    return test === undefined ? [] : [(value: unknown) => valuesIn(value, name).some(test)]
  })
  return tests.length === 0 ? undefined : (value) => tests.every((test) => test(value))
}

function slicesTest(steps: readonly string[], node: ElementNode): Test | undefined {
  const tests = [...node.slices.values()].flatMap((slice) => valueTest(steps, slice) ?? [])
  return tests.length === 0 ? undefined : (value) => tests.some((test) => test(value))
}

/** Values of an element; of a choice by its name without the type. */
function valuesIn(value: unknown, name: string): readonly unknown[] {
  if (!isObject(value)) return []
  const found = Object.keys(value)
    .filter(
      (key) => key === name || (key.startsWith(name) && /^[A-Z]/.test(key.slice(name.length))),
    )
    .flatMap((key) => value[key])
  return found.filter((item) => item !== undefined && item !== null)
}

function resourceTypeOf(value: unknown): string {
  return isObject(value) && typeof value.resourceType === 'string' ? value.resourceType : ''
}

function referenceText(value: unknown): string {
  return isObject(value) && typeof value.reference === 'string' ? value.reference : ''
}

function lastPart(url: string): string {
  return url.slice(url.lastIndexOf('/') + 1)
}
