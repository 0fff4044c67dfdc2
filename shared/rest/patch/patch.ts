/** JSON Patch (RFC 6902). Operations copy objects, so decimals keep their text and a failed patch changes nothing. */

import { badRequest, type HttpError, tooCostly } from '../../core/errors.ts'
import { isDecimal, isDeeper, isPlainObject, MAX_DEPTH } from '../../fhir/json.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import { toFhirPath } from '../../validation/shapes.ts'

interface PatchOperation {
  readonly op: 'add' | 'remove' | 'replace' | 'move' | 'copy' | 'test'
  readonly path: string
  readonly from?: string
  readonly value?: unknown
}

const MAX_OPERATIONS = 1000
/** Limit of JSON values added by copies, so that a patch cannot double a document repeatedly. */
const MAX_COPIED = 100_000

/** Errors: 400 for a malformed patch document. */
export function readPatch(body: unknown): readonly PatchOperation[] {
  if (!Array.isArray(body)) throw badRequest('Patch body must be an array')
  if (body.length > MAX_OPERATIONS) throw tooCostly(`More than ${MAX_OPERATIONS} patch operations`)
  return body.map(readOperation)
}

function readOperation(item: unknown, index: number): PatchOperation {
  if (!isObject(item)) throw patchError(index, undefined, 'must be an object')
  const { op, path, from } = item
  if (typeof path !== 'string' || !isPointer(path))
    throw patchError(index, path, 'has an invalid path')
  switch (op) {
    case 'add':
    case 'replace':
    case 'test':
      if (!Object.hasOwn(item, 'value')) throw patchError(index, path, 'needs a value')
      return { op, path, value: item.value }
    case 'move':
    case 'copy':
      if (typeof from !== 'string' || !isPointer(from)) {
        throw patchError(index, path, 'has an invalid from')
      }
      return { op, path, from }
    case 'remove':
      return { op, path }
    default:
      throw patchError(index, path, `has an unknown op`)
  }
}

/** Returns the patched resource. Errors: 400 with the index and path of the failed operation. */
export function applyPatch(resource: Resource, operations: readonly PatchOperation[]): Resource {
  let document: unknown = resource
  let copied = 0
  operations.forEach((operation, index) => {
    const { op, path, from = '' } = operation
    if (op === 'copy') {
      copied += estimateSize(resolve(document, parsePointer(from)), MAX_COPIED)
      const text = operationText(index, path, 'makes the copies of this patch too large')
      if (copied > MAX_COPIED) throw tooCostly(text, toExpression(resource, path))
    }
    try {
      document = applyOne(document, operation)
    } catch (error) {
      if (!(error instanceof PatchFault)) throw error
      throw patchError(index, path, error.message, toExpression(resource, path))
    }
  })
  return requireSameResource(resource, document)
}

/** Returns the document if it has the same type and id. Errors: 400. */
export function requireSameResource(resource: Resource, document: unknown): Resource {
  if (!isObject(document) || document.resourceType !== resource.resourceType) {
    throw badRequest('Incorrect resource type', 'resourceType')
  }
  if (isDeeper(document, MAX_DEPTH)) throw badRequest('The patch nests elements too deep')
  if (document.id !== resource.id) throw badRequest('Incorrect ID', 'id')
  return document as Resource
}

/** Failure of one operation; becomes a 400 with its index and path. */
export class PatchFault extends Error {}

function applyOne(document: unknown, operation: PatchOperation): unknown {
  const path = parsePointer(operation.path)
  const from = parsePointer(operation.from ?? '')
  switch (operation.op) {
    case 'add':
      return add(document, path, operation.value)
    case 'replace':
      return change(document, path, () => operation.value)
    case 'remove':
      return remove(document, path)
    case 'copy':
      return add(document, path, present(document, from))
    case 'move': {
      const isInside = from.length < path.length && from.every((token, at) => token === path[at])
      if (isInside) throw new PatchFault('moves a value into itself')
      return add(remove(document, from), path, present(document, from))
    }
    case 'test':
      if (!isSame(resolve(document, path), operation.value)) throw new PatchFault('test failed')
      return document
    default:
      return operation.op satisfies never
  }
}

const NEVER: unique symbol = Symbol('removed')

function add(document: unknown, path: readonly string[], value: unknown): unknown {
  const key = path.at(-1)
  if (key === undefined) return value
  return change(
    document,
    path.slice(0, -1),
    (parent) => {
      if (parent === undefined && key === '-') return [value]
      if (Array.isArray(parent)) {
        const index = key === '-' ? parent.length : parseExistingIndex(key, parent.length + 1)
        return parent.toSpliced(index, 0, value)
      }
      if (isPlainObject(parent)) return { ...parent, [key]: value }
      throw new PatchFault('target does not exist')
    },
    key === '-',
  )
}

function remove(document: unknown, path: readonly string[]): unknown {
  if (path.length === 0) throw new PatchFault('cannot remove the whole resource')
  return change(document, path, () => NEVER)
}

/** Replaces the value at `path`, which must exist unless `mayCreate`. */
function change(
  value: unknown,
  path: readonly string[],
  next: (current: unknown) => unknown,
  mayCreate = false,
): unknown {
  const [key, ...rest] = path
  if (key === undefined) return next(value)
  if (Array.isArray(value)) {
    const index = parseExistingIndex(key, value.length)
    const item = change(value[index], rest, next, mayCreate)
    return item === NEVER ? value.toSpliced(index, 1) : value.with(index, item)
  }
  if (!isPlainObject(value)) throw new PatchFault('target does not exist')
  const exists = Object.hasOwn(value, key)
  if (!exists && !(mayCreate && rest.length === 0)) throw new PatchFault('target does not exist')
  const item = change(exists ? value[key] : undefined, rest, next, mayCreate)
  if (item !== NEVER) return { ...value, [key]: item }
  const { [key]: _removed, ...others } = value
  return others
}

function resolve(document: unknown, path: readonly string[]): unknown {
  let value = document
  for (const key of path) {
    if (Array.isArray(value)) value = value[parseIndex(key)]
    else value = isPlainObject(value) && Object.hasOwn(value, key) ? value[key] : undefined
  }
  return value
}

function present(document: unknown, path: readonly string[]): unknown {
  const value = resolve(document, path)
  if (value === undefined) throw new PatchFault('source does not exist')
  return value
}

function parseExistingIndex(token: string, length: number): number {
  const index = parseIndex(token)
  if (index < length) return index
  throw new PatchFault('target does not exist')
}

function parseIndex(token: string): number {
  return /^(0|[1-9]\d{0,8})$/.test(token) ? Number(token) : Number.NaN
}

function isPointer(path: string): boolean {
  return path === '' || path.startsWith('/')
}

function parsePointer(path: string): string[] {
  return path
    .split('/')
    .slice(1)
    .map((token) => token.replaceAll('~1', '/').replaceAll('~0', '~'))
}

function isSame(a: unknown, b: unknown): boolean {
  if (isDecimal(a) || isDecimal(b)) return Number(a) === Number(b)
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, index) => isSame(item, b[index]))
  }
  if (!isPlainObject(a) || !isPlainObject(b)) return a === b
  const keys = Object.keys(a)
  return (
    keys.length === Object.keys(b).length &&
    keys.every((key) => Object.hasOwn(b, key) && isSame(a[key], b[key]))
  )
}

/** Counts JSON values, and ten characters of text as one; stops above `limit`. */
function estimateSize(value: unknown, limit: number): number {
  if (typeof value === 'string') return 1 + Math.floor(value.length / 10)
  if (typeof value !== 'object' || value === null) return 1
  let size = 1
  for (const item of Object.values(value)) {
    size += estimateSize(item, limit - size)
    if (size > limit) break
  }
  return size
}

export function patchError(
  index: number,
  path: unknown,
  why: string,
  expression?: string,
): HttpError {
  return badRequest(operationText(index, path, why), expression)
}

function operationText(index: number, path: unknown, why: string): string {
  const where = typeof path === 'string' ? ` (${path.slice(0, 200)})` : ''
  return `Patch operation ${index}${where} ${why}`
}

/** Converts a pointer to a path such as `Patient.name[0].family`; the end of a list becomes the list. */
function toExpression({ resourceType }: Resource, pointer: string): string {
  const tokens = parsePointer(pointer.slice(0, 200)).filter((token) => token !== '-')
  const isIndex = (token: string) => !Number.isNaN(parseIndex(token))
  const steps = tokens.map((token) => (isIndex(token) ? Number(token) : token))
  return toFhirPath([resourceType, ...steps])
}
