/** The part of Node's Buffer that bots use: text encodings, joining, slicing, comparing. */

const encoding = require('./encoding.cjs')
const { concatBytes } = require('./blob.cjs')

const { base64Decode, base64Encode, toBytes, latin1Decode, latin1Encode } = encoding

function hexEncode(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
}

/** Stops at the first pair that is not hexadecimal, as Node does. */
function hexDecode(text) {
  const digits = /^(?:[0-9a-f]{2})*/i.exec(text)[0]
  const byteAt = (_, at) => Number.parseInt(digits.slice(2 * at, 2 * at + 2), 16)
  return Uint8Array.from({ length: digits.length / 2 }, byteAt)
}

const utf8 = { encode: encoding.utf8Encode, decode: (bytes) => encoding.utf8Decode(bytes) }
const utf16le = { encode: encoding.utf16leEncode, decode: encoding.utf16leDecode }
const latin1 = { encode: latin1Encode, decode: latin1Decode }
const base64 = { encode: base64Decode, decode: base64Encode }
const base64url = {
  encode: base64Decode,
  decode: (bytes) =>
    base64Encode(bytes).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, ''),
}
const ascii = {
  encode: latin1Encode,
  decode: (bytes) => latin1Decode(Uint8Array.from(bytes, (byte) => byte & 127)),
}

const codecs = {
  utf8,
  'utf-8': utf8,
  utf16le,
  'utf-16le': utf16le,
  ucs2: utf16le,
  'ucs-2': utf16le,
  latin1,
  binary: latin1,
  ascii,
  base64,
  base64url,
  hex: { encode: hexDecode, decode: hexEncode },
}

function codec(name = 'utf8') {
  const found = codecs[String(name).toLowerCase()]
  if (found !== undefined) return found
  const code = 'ERR_UNKNOWN_ENCODING'
  throw Object.assign(new TypeError(`Unknown encoding: ${name}`), { code })
}

function asBuffer(bytes) {
  return new Buffer(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

function compareBytes(left, right) {
  const length = Math.min(left.length, right.length)
  for (let at = 0; at < length; at++) {
    if (left[at] !== right[at]) return left[at] < right[at] ? -1 : 1
  }
  return Math.sign(left.length - right.length)
}

class Buffer extends Uint8Array {
  /** Old code constructs a Buffer from text. */
  constructor(source, ...given) {
    if (typeof source === 'string') super(codec(given[0]).encode(source))
    else super(source, ...given)
  }

  static from(source, encodingOrOffset, length) {
    if (typeof source === 'string') return asBuffer(codec(encodingOrOffset).encode(source))
    if (source instanceof ArrayBuffer) return new Buffer(source, encodingOrOffset, length)
    if (source?.type === 'Buffer' && Array.isArray(source.data)) return Buffer.from(source.data)
    if (ArrayBuffer.isView(source) && !(source instanceof Uint8Array)) {
      return asBuffer(Uint8Array.from(source))
    }
    if (typeof source !== 'object' || source === null || typeof source.length !== 'number') {
      throw new TypeError('The first argument must be a string, a buffer or an array')
    }
    return asBuffer(Uint8Array.from(source))
  }

  static alloc(size, fill, encodingName) {
    const buffer = new Buffer(size)
    return fill === undefined ? buffer : buffer.fill(fill, 0, size, encodingName)
  }

  static allocUnsafe(size) {
    return new Buffer(size)
  }

  static concat(list, totalLength) {
    const bytes = concatBytes(list)
    if (totalLength === undefined) return asBuffer(bytes)
    const buffer = new Buffer(totalLength)
    buffer.set(bytes.subarray(0, totalLength))
    return buffer
  }

  static isBuffer(value) {
    return value instanceof Buffer
  }

  static isEncoding(name) {
    return typeof name === 'string' && name.toLowerCase() in codecs
  }

  static byteLength(source, name) {
    return typeof source === 'string' ? codec(name).encode(source).length : source.byteLength
  }

  static compare(left, right) {
    return compareBytes(left, right)
  }

  toString(name, start = 0, end = this.length) {
    return codec(name).decode(Uint8Array.prototype.subarray.call(this, start, end))
  }

  toJSON() {
    return { type: 'Buffer', data: Array.from(this) }
  }

  equals(other) {
    return compareBytes(this, toBytes(other)) === 0
  }

  compare(other) {
    return compareBytes(this, other)
  }

  slice(start, end) {
    return this.subarray(start, end)
  }

  /** `(text)`, `(text, encoding)`, `(text, offset, encoding)` or all; whole characters only. */
  write(text, offset = 0, length = this.length - offset, name = 'utf8') {
    if (typeof offset === 'string') return this.write(text, 0, this.length, offset)
    if (typeof length === 'string') return this.write(text, offset, this.length - offset, length)
    const used = codec(name)
    const bytes = used.encode(text)
    let end = Math.min(bytes.length, length, this.length - offset)
    if (used === utf8) while (end < bytes.length && (bytes[end] & 0xc0) === 0x80) end--
    if (used === utf16le) end -= end % 2
    this.set(bytes.subarray(0, end), offset)
    return end
  }

  copy(target, targetStart = 0, start = 0, end = this.length) {
    const bytes = this.subarray(start, Math.min(end, start + target.length - targetStart))
    target.set(bytes, targetStart)
    return bytes.length
  }

  /** The encoding may stand in the place of the start or the end. */
  fill(value, start = 0, end = this.length, name = 'utf8') {
    if (typeof start === 'string') return this.fill(value, 0, this.length, start)
    if (typeof end === 'string') return this.fill(value, start, this.length, end)
    if (typeof value === 'number' || value === '') return super.fill(Number(value), start, end)
    const bytes = typeof value === 'string' ? codec(name).encode(value) : value
    for (let at = start; at < end; at++) this[at] = bytes[(at - start) % bytes.length]
    return this
  }

  indexOf(value, from = 0, name = 'utf8') {
    if (typeof from === 'string') return this.indexOf(value, 0, from)
    if (typeof value === 'number') return super.indexOf(value & 255, from)
    const wanted = typeof value === 'string' ? codec(name).encode(value) : value
    const start = from < 0 ? Math.max(0, this.length + from) : from
    if (wanted.length === 0) return Math.min(start, this.length)
    for (let at = start; at + wanted.length <= this.length; at++) {
      if (wanted.every((byte, index) => this[at + index] === byte)) return at
    }
    return -1
  }

  includes(value, from, name) {
    return this.indexOf(value, from, name) >= 0
  }

  lastIndexOf(value, from = this.length, name = 'utf8') {
    if (typeof from === 'string') return this.lastIndexOf(value, this.length, from)
    if (typeof value === 'number') {
      return super.lastIndexOf(value & 255, Math.min(from, this.length - 1))
    }
    const wanted = typeof value === 'string' ? codec(name).encode(value) : value
    const start = from < 0 ? this.length + from : from
    for (let at = Math.min(start, this.length - wanted.length); at >= 0; at--) {
      if (wanted.every((byte, index) => this[at + index] === byte)) return at
    }
    return -1
  }
}

Buffer.allocUnsafeSlow = Buffer.allocUnsafe
Buffer.poolSize = 8192
require('./buffer-numbers.cjs').addNumbers(Buffer.prototype)

/** Node's module exports more than the class. */
const kMaxLength = 2 ** 31 - 1
const constants = { MAX_LENGTH: kMaxLength, MAX_STRING_LENGTH: 2 ** 29 - 24 }

module.exports = { Buffer, constants, kMaxLength }
