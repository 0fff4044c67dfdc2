/**
 * Locates and changes FHIRPath nodes in JSON. A Slot holds both halves of a primitive, its value and its `_name`
 * object, so that they move together. https://hl7.org/fhir/R4/json.html#primitive
 */
import type { ResourceNode } from 'fhirpath'
import { isResourceType } from '../../fhir/definitions.ts'
import { isDecimal } from '../../fhir/json.ts'
import { isObject } from '../../fhir/resource.ts'
import { plain } from '../../fhirpath/path.ts'
import { getShape, type Property, type Shape } from '../../validation/shapes.ts'

type Json = Readonly<Record<string, unknown>>
type Steps = readonly (string | number)[]

/** Container of elements: an object of the resource, or the `_name` object of a primitive. */
interface Holder {
  readonly steps: Steps
  /** Undefined when a primitive has no `_name` object yet. */
  readonly value: Json | undefined
  readonly shape: Shape
}

export interface PatchedElement {
  readonly holder: Holder
  /** FHIRPath name; for a choice, without the type. */
  readonly element: string
  readonly property: Property
  readonly index: number
}

export interface Slot {
  readonly value?: unknown
  readonly twin?: unknown
}

/** Returns the place of a node; `'root'` for the resource itself, undefined for a node of another resource. */
export function locateNode(
  document: Json,
  node: ResourceNode,
): PatchedElement | 'root' | undefined {
  if (node.parentResNode === null) return node.data === plain(document) ? 'root' : undefined
  const parent = locateNode(document, node.parentResNode)
  const holder = parent && holderAt(document, parent)
  const element = node.propName
  if (holder === undefined || typeof element !== 'string') return undefined
  const property = presentProperty(holder, element)
  return property && { holder, element, property, index: node.index ?? 0 }
}

export function holderAt(document: Json, place: PatchedElement | 'root'): Holder | undefined {
  if (place === 'root') return asHolder([], document, undefined)
  const { holder, property, index } = place
  const isPrimitive = property.check !== undefined
  const name = isPrimitive ? `_${property.name}` : property.name
  const list = holder.value?.[name]
  const value = property.isArray && Array.isArray(list) ? list[index] : list
  const steps = [...holder.steps, name, ...(property.isArray ? [index] : [])]
  return asHolder(steps, value, isPrimitive ? getShape('Element') : property.shape?.())
}

function asHolder(steps: Steps, value: unknown, shape: Shape | undefined): Holder | undefined {
  const json = isObject(value) && !isDecimal(value) ? value : undefined
  if (shape !== undefined) return { steps, value: json, shape }
  const type = json?.resourceType
  if (typeof type !== 'string' || !isResourceType(type)) return undefined
  return { steps, value: json, shape: getShape(type) }
}

export function presentProperty(
  { shape, value = {} }: Holder,
  element: string,
): Property | undefined {
  const names = [element, ...choiceNames(shape, element)]
  const name = names.find((name) => value[name] !== undefined || value[`_${name}`] !== undefined)
  return name === undefined ? undefined : shape.properties.get(name)
}

/** Returns the property for a value of a type ("Quantity"); undefined when the shape has no such element. */
export function propertyFor(shape: Shape, element: string, type: string): Property | undefined {
  const name = choiceNames(shape, element).find((name) => name === element + type) ?? element
  const property = shape.properties.get(name)
  return property?.isSibling ? undefined : property
}

function choiceNames(shape: Shape, element: string): readonly string[] {
  return shape.choices.find((choice) => choice.element === `${element}[x]`)?.names ?? []
}

export function elementSlots({ value = {} }: Holder, { name, isArray }: Property): readonly Slot[] {
  const values = toItems(value[name], isArray)
  const twins = toItems(value[`_${name}`], isArray)
  const length = Math.max(values.length, twins.length)
  return Array.from({ length }, (_, index) => ({ value: values[index], twin: twins[index] }))
}

function toItems(value: unknown, isArray: boolean): readonly unknown[] {
  if (value === undefined) return []
  return isArray && Array.isArray(value) ? value : [value]
}

interface Slots {
  readonly slots: readonly Slot[]
  readonly other?: { readonly property: Property; readonly slots: readonly Slot[] } | undefined
}

/** Replaces the elements of one name and drops empty parents. A choice may change to its `other` type. */
export function withSlots(
  document: Json,
  { steps }: Holder,
  property: Property,
  { slots, other }: Slots,
): Json {
  const change = (holder: Json) => {
    const changed = put(holder, property, slots)
    return other === undefined ? changed : put(changed, other.property, other.slots)
  }
  return changeAt(document, steps, change) as Json
}

export function put(holder: Json, { name, isArray }: Property, slots: readonly Slot[]): Json {
  const values = slots.map(({ value }) => value ?? null)
  const twins = slots.map(({ twin }) => twin ?? null)
  const changed = withMember(holder, name, isArray ? filled(values) : slots[0]?.value)
  return withMember(changed, `_${name}`, isArray ? filled(twins) : slots[0]?.twin)
}

function changeAt(
  value: unknown,
  [step, ...rest]: Steps,
  change: (holder: Json) => Json,
  isTwin = false,
): unknown {
  if (typeof step === 'number') {
    const items = Array.isArray(value) ? value : []
    const item = changeAt(items[step], rest, change)
    if (isEmpty(item) && !isTwin) return items.toSpliced(step, 1)
    const length = Math.max(items.length, step + 1)
    const padded = Array.from({ length }, (_, index) => items[index] ?? null)
    return filled(padded.with(step, isEmpty(item) ? null : item))
  }
  const object = isObject(value) ? value : {}
  if (step === undefined) return change(object)
  const member = changeAt(object[step], rest, change, step.startsWith('_'))
  return withMember(object, step, isEmpty(member) ? undefined : member)
}

/** Returns undefined for a list of nulls. */
function filled(items: readonly unknown[]): readonly unknown[] | undefined {
  return items.some((item) => item !== null) ? items : undefined
}

function isEmpty(value: unknown): boolean {
  if (typeof value !== 'object' || value === null || isDecimal(value)) return value === undefined
  return Object.keys(value).length === 0
}

function withMember(object: Json, name: string, value: unknown): Json {
  if (value !== undefined) return { ...object, [name]: value }
  if (!Object.hasOwn(object, name)) return object
  const { [name]: _removed, ...others } = object
  return others
}
