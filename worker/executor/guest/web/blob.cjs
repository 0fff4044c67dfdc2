/** Blob and File over bytes in memory. https://w3c.github.io/FileAPI/ */

const { toBytes, utf8Decode, utf8Encode } = require('./encoding.cjs')

const contents = new WeakMap()

function partBytes(part) {
  if (contents.has(part)) return contents.get(part)
  if (part instanceof ArrayBuffer || ArrayBuffer.isView(part)) return toBytes(part)
  return utf8Encode(part)
}

function concatBytes(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    bytes.set(part, at)
    at += part.length
  }
  return bytes
}

class Blob {
  constructor(parts = [], options = {}) {
    contents.set(this, concatBytes([...parts].map(partBytes)))
    this.type = String(options.type ?? '').toLowerCase()
  }

  get size() {
    return contents.get(this).length
  }

  slice(start, end, type) {
    return new Blob([contents.get(this).slice(start, end)], { type })
  }

  async arrayBuffer() {
    return contents.get(this).slice().buffer
  }

  async bytes() {
    return contents.get(this).slice()
  }

  async text() {
    return utf8Decode(contents.get(this))
  }
}

class File extends Blob {
  constructor(parts, name, options = {}) {
    super(parts, options)
    this.name = String(name)
    this.lastModified = options.lastModified ?? Date.now()
  }
}

module.exports = { Blob, File, concatBytes }
