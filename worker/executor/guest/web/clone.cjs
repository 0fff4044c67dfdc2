/** structuredClone for data: plain objects, lists, dates, maps, sets, bytes, errors, cycles. */

const { DOMException } = require('./abort.cjs')
const { copyTexts } = require('../decimals.cjs')

function refused(value) {
  const name = typeof value === 'function' ? value.name || 'function' : String(value)
  return new DOMException(`${name} could not be cloned.`, 'DataCloneError')
}

function cloneView(view, seen) {
  const buffer = clone(view.buffer, seen)
  if (view instanceof DataView) return new DataView(buffer, view.byteOffset, view.byteLength)
  const kind = Object.getPrototypeOf(Uint8Array.prototype)
  const name = Object.getOwnPropertyDescriptor(kind, Symbol.toStringTag).get.call(view)
  return new globalThis[name](buffer, view.byteOffset, view.length)
}

/** Copies values without children; undefined for containers. */
function cloneLeaf(value, seen) {
  if (value instanceof Date) return new Date(value.getTime())
  if (value instanceof RegExp) return new RegExp(value.source, value.flags)
  if (value instanceof ArrayBuffer) return value.slice(0)
  if (ArrayBuffer.isView(value)) return cloneView(value, seen)
  if (value instanceof Boolean || value instanceof Number || value instanceof String) {
    return Object(value.valueOf())
  }
  return undefined
}

function emptyContainer(value) {
  if (Array.isArray(value)) return new Array(value.length)
  if (value instanceof Map) return new Map()
  if (value instanceof Set) return new Set()
  if (value instanceof Error) {
    const copy = new Error(value.message)
    for (const key of ['name', 'stack']) {
      Object.defineProperty(copy, key, { value: value[key], configurable: true, writable: true })
    }
    return copy
  }
  return {}
}

function fill(copy, value, seen) {
  if (value instanceof Map) {
    for (const [key, held] of value) copy.set(clone(key, seen), clone(held, seen))
  } else if (value instanceof Set) {
    for (const held of value) copy.add(clone(held, seen))
  } else if (!(value instanceof Error)) {
    for (const key of Object.keys(value)) copy[key] = clone(value[key], seen)
    copyTexts(value, copy)
  }
}

function clone(value, seen) {
  if (typeof value === 'function' || typeof value === 'symbol') throw refused(value)
  if (typeof value !== 'object' || value === null) return value
  if (seen.has(value)) return seen.get(value)
  if (value instanceof WeakMap || value instanceof WeakSet || value instanceof Promise) {
    throw refused(value)
  }
  const leaf = cloneLeaf(value, seen)
  const copy = leaf ?? emptyContainer(value)
  seen.set(value, copy)
  if (leaf === undefined) fill(copy, value, seen)
  return copy
}

function structuredClone(value) {
  return clone(value, new Map())
}

module.exports = { structuredClone }
