/** FHIRPath Patch: https://hl7.org/fhir/R4/fhirpatch.html. Copies changed objects, like JSON Patch. */
import { badRequest, tooCostly } from '../../core/errors.ts'
import { parseBody } from '../../fhir/json.ts'
import { isObject, isResource, type Resource } from '../../fhir/resource.ts'
import { compileTenantNodes, withinLimits } from '../../fhirpath/custom.ts'
import { isNode, type NodePath, plain } from '../../fhirpath/path.ts'
import { requireMembers } from '../../request/parameters.ts'
import type { Property, Shape } from '../../validation/shapes.ts'
import { applyPatch, PatchFault, patchError, readPatch, requireSameResource } from './patch.ts'
import {
  elementSlots,
  holderAt,
  locateNode,
  type PatchedElement,
  presentProperty,
  propertyFor,
  put,
  type Slot,
  withSlots,
} from './place.ts'

type FhirPathOperation = { readonly path: string; readonly select: NodePath } & (
  | { readonly type: 'add'; readonly name: string; readonly value: PatchValue }
  | { readonly type: 'insert'; readonly index: number; readonly value: PatchValue }
  | { readonly type: 'delete' }
  | { readonly type: 'replace'; readonly value: PatchValue }
  | { readonly type: 'move'; readonly source: number; readonly destination: number }
)

const MAX_OPERATIONS = 200
/** Total characters of all paths, which must be compiled. */
const MAX_PATHS = 5_000

function readFhirPathPatch(parameters: readonly Parts[]): readonly FhirPathOperation[] {
  const paths = parameters.map((parts) => parts.get('path')?.valueString)
  if (paths.join('').length > MAX_PATHS) throw tooCostly('The paths of this patch are too long')
  return parameters.map((parts, index) => {
    const operation = readOperation(parts, index)
    requireParts(parts, operation, index)
    return operation
  })
}

type Parts = ReadonlyMap<string, Record<string, unknown>>

/** Without operations the resource stays as it is, as published cases expect. */
function readOperationParts(body: Record<string, unknown>): readonly Parts[] {
  requireMembers(body)
  const { parameter = [] } = body
  if (!Array.isArray(parameter)) throw badRequest('Patch operations must be an array', 'parameter')
  if (parameter.length > MAX_OPERATIONS) {
    throw tooCostly(`More than ${MAX_OPERATIONS} patch operations`)
  }
  return parameter.map((item: unknown, index) => {
    const parts = isObject(item) && item.name === 'operation' ? item.part : undefined
    if (!Array.isArray(parts) || !parts.every(isPart)) {
      throw patchError(index, undefined, 'must be a parameter "operation" with named parts')
    }
    const byName = new Map(parts.map((part) => [part.name, part]))
    if (byName.size < parts.length)
      throw patchError(index, readPath(byName), 'has the same part twice')
    return byName
  })
}

/** The parts of each type of operation, next to `type` and `path`. */
const PARTS: Readonly<Record<FhirPathOperation['type'], readonly string[]>> = {
  add: ['name', 'value'],
  insert: ['index', 'value'],
  delete: [],
  replace: ['value'],
  move: ['source', 'destination'],
}

/** Errors: 400 for a part that the operation would ignore. */
function requireParts(
  parts: Parts,
  { type, path }: Pick<FhirPathOperation, 'type' | 'path'>,
  index: number,
): void {
  const known = ['type', 'path', ...PARTS[type]]
  const other = [...parts.keys()].find((name) => !known.includes(name))
  if (other === undefined) return
  throw patchError(index, path, `has no part "${other.slice(0, 64)}"`)
}

function isPart(part: unknown): part is Record<string, unknown> & { name: string } {
  return isObject(part) && typeof part.name === 'string'
}

function readOperation(parts: Parts, index: number): FhirPathOperation {
  const type = parts.get('type')?.valueCode ?? parts.get('type')?.valueString
  const path = requireString(parts, 'path', index)
  const select = compileTenantNodes(path)
  switch (type) {
    case 'add':
      return {
        type,
        path,
        select,
        name: requireString(parts, 'name', index),
        value: requireValue(parts, index),
      }
    case 'insert':
      return {
        type,
        path,
        select,
        index: requireInteger(parts, 'index', index),
        value: requireValue(parts, index),
      }
    case 'delete':
      return { type, path, select }
    case 'replace':
      return { type, path, select, value: requireValue(parts, index) }
    case 'move':
      return {
        type,
        path,
        select,
        source: requireInteger(parts, 'source', index),
        destination: requireInteger(parts, 'destination', index),
      }
    default:
      throw patchError(index, path, 'has an unknown type')
  }
}

function readPath(parts: Parts): unknown {
  return parts.get('path')?.valueString
}

function requireString(parts: Parts, name: string, index: number): string {
  const text = parts.get(name)?.valueString
  if (typeof text !== 'string' || text === '')
    throw patchError(index, readPath(parts), `needs a ${name} (valueString)`)
  return text
}

function requireInteger(parts: Parts, name: string, index: number): number {
  const value = parts.get(name)?.valueInteger
  if (!Number.isInteger(value)) {
    throw patchError(index, readPath(parts), `needs a ${name} (valueInteger)`)
  }
  return value as number
}

function requireValue(parts: Parts, index: number): PatchValue {
  const value = readPatchValue(parts.get('value'))
  if (value === undefined) throw patchError(index, readPath(parts), 'needs a value')
  return value
}

/** Returns the patched resource. Errors: 400 with the index and path of the failed operation. */
function applyFhirPathPatch(
  resource: Resource,
  operations: readonly FhirPathOperation[],
): Resource {
  // Outside the batch: converting a large resource may exceed its time limit.
  plain(resource)
  const document = withinLimits(() =>
    operations.reduce<Record<string, unknown>>(applyOne, resource),
  )
  return requireSameResource(resource, document)
}

/** Names of elements with indexes: the form of an expression in an outcome. */
const ELEMENT_PATH = /^[A-Z]\w*(?:\.\w+(?:\[\d+\])?)*$/

function applyOne(
  document: Record<string, unknown>,
  operation: FhirPathOperation,
  index: number,
): Record<string, unknown> {
  try {
    const nodes = operation.select(document)
    const [place, ...others] = nodes.map((node) => requirePlace(document, node))
    if (place === undefined) {
      if (operation.type === 'delete') return document
      throw new PatchFault('selects nothing')
    }
    const isOnList = operation.type === 'insert' || operation.type === 'move'
    if (isOnList ? others.some((other) => !isSameList(place, other)) : others.length > 0) {
      throw new PatchFault(`selects more than one ${isOnList ? 'list' : 'element'}`)
    }
    return edited(document, place, operation)
  } catch (error) {
    if (!(error instanceof PatchFault)) throw error
    const { path } = operation
    throw patchError(index, path, error.message, ELEMENT_PATH.test(path) ? path : undefined)
  }
}

function requirePlace(document: Record<string, unknown>, node: unknown): PatchedElement | 'root' {
  const place = isNode(node) ? locateNode(document, node) : undefined
  if (place === undefined) throw new PatchFault('does not select an element of the resource')
  return place
}

function isSameList(one: PatchedElement | 'root', other: PatchedElement | 'root'): boolean {
  if (one === 'root' || other === 'root') return one === other
  return one.property === other.property && String(one.holder.steps) === String(other.holder.steps)
}

function edited(
  document: Record<string, unknown>,
  place: PatchedElement | 'root',
  operation: FhirPathOperation,
): Record<string, unknown> {
  if (operation.type === 'add') return added(document, place, operation.name, operation.value)
  if (place === 'root') throw new PatchFault('selects the whole resource')
  const { holder, element, property, index } = place
  const slots = elementSlots(holder, property)
  const put = (next: readonly Slot[]) => withSlots(document, holder, property, { slots: next })
  switch (operation.type) {
    case 'insert': {
      requireList(property)
      requireIndex(operation.index, slots.length + 1)
      return put(slots.toSpliced(operation.index, 0, toSlot(property, operation.value)))
    }
    case 'delete':
      return put(slots.toSpliced(index, 1))
    case 'replace': {
      const wanted = requireProperty(holder.shape, element, operation.value)
      const slot = toSlot(wanted, operation.value)
      if (wanted.name === property.name) return put(slots.with(index, slot))
      return withSlots(document, holder, property, {
        slots: [],
        other: { property: wanted, slots: [slot] },
      })
    }
    case 'move': {
      const { source, destination } = operation
      requireList(property)
      requireIndex(source, slots.length)
      requireIndex(destination, slots.length)
      return put(
        slots.toSpliced(source, 1).toSpliced(destination, 0, ...slots.slice(source, source + 1)),
      )
    }
    default:
      return operation satisfies never
  }
}

function added(
  document: Record<string, unknown>,
  place: PatchedElement | 'root',
  name: string,
  value: PatchValue,
): Record<string, unknown> {
  const holder = holderAt(document, place)
  if (holder === undefined) throw new PatchFault('selects a value without elements')
  const property = requireProperty(holder.shape, name, value)
  const isTaken = !property.isArray && presentProperty(holder, name) !== undefined
  if (isTaken) throw new PatchFault(`has the element "${name}" already`)
  const slots = [...elementSlots(holder, property), toSlot(property, value)]
  return withSlots(document, holder, property, { slots })
}

function requireList({ isArray, name }: Property): void {
  if (!isArray) throw new PatchFault(`is not a list: "${name}"`)
}

function requireIndex(index: number, length: number): void {
  if (index < 0 || index >= length) throw new PatchFault(`has no index ${index}`)
}

type PatchValue =
  | (Slot & { readonly type: string })
  | { readonly type: ''; readonly parts: readonly NamedValue[] }

interface NamedValue {
  readonly name: string
  readonly value: PatchValue
}

function readPatchValue(part: Record<string, unknown> = {}): PatchValue | undefined {
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

/** Returns the property that holds a value as an element of a shape. */
function requireProperty(shape: Shape, element: string, { type }: PatchValue): Property {
  const property = propertyFor(shape, element, type)
  if (property === undefined)
    throw new PatchFault(`has no element "${element.slice(0, 64)}" for the value`)
  return property
}

function toSlot(property: Property, value: PatchValue): Slot {
  if (!('parts' in value)) return { value: value.value, twin: value.twin }
  const shape = property.shape?.()
  if (shape === undefined) throw new PatchFault('cannot take parts as its value')
  const elements = new Map<Property, Slot[]>()
  for (const { name, value: part } of value.parts) {
    const inner = requireProperty(shape, name, part)
    const slots = elements.get(inner) ?? []
    if (slots.length > 0 && !inner.isArray) throw new PatchFault(`has two values for "${name}"`)
    slots.push(toSlot(inner, part))
    elements.set(inner, slots)
  }
  return { value: [...elements].reduce((object, [inner, slots]) => put(object, inner, slots), {}) }
}

/** Compiles a patch to a function of the current resource. Errors: 400, here and there. */
export function compilePatch(body: unknown): (resource: Resource) => Resource {
  if (!isResource(body) || body.resourceType !== 'Parameters') {
    const operations = readPatch(body)
    return (resource) => applyPatch(resource, operations)
  }
  const parameters = readOperationParts(body)
  if (parameters.some((parts) => parts.has('op'))) {
    const operations = readPatch(parameters.map(jsonOperation))
    return (resource) => applyPatch(resource, operations)
  }
  const operations = readFhirPathPatch(parameters)
  return (resource) => applyFhirPathPatch(resource, operations)
}

/** Medplum SDK format: parts `op`, `path`, `from`, and `value` as JSON text. */
function jsonOperation(parts: Parts, index: number): Record<string, unknown> {
  const operation: Record<string, unknown> = {}
  for (const [name, part] of parts) {
    const text = part.valueString ?? part.valueCode
    const isJson = name === 'value' && typeof text === 'string'
    operation[name] = isJson ? parseValue(text, parts, index) : text
  }
  return operation
}

function parseValue(text: string, parts: Parts, index: number): unknown {
  try {
    return parseBody(text)
  } catch {
    throw patchError(index, readPath(parts), 'has a value that must be JSON')
  }
}
