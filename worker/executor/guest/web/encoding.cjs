/** Text and bytes: UTF-8, UTF-16LE, Latin-1, base64. https://encoding.spec.whatwg.org/ */

const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
const replacement = 0xfffd
// Below the engine's limit on call arguments.
const chunk = 8192

let digits

function digitTable() {
  if (digits !== undefined) return digits
  digits = new Uint8Array(128).fill(255)
  for (let at = 0; at < 64; at++) digits[alphabet.charCodeAt(at)] = at
  digits['-'.charCodeAt(0)] = 62
  digits['_'.charCodeAt(0)] = 63
  return digits
}

function toBytes(source) {
  if (source instanceof Uint8Array) return source
  if (source instanceof ArrayBuffer) return new Uint8Array(source)
  if (ArrayBuffer.isView(source)) {
    return new Uint8Array(source.buffer, source.byteOffset, source.byteLength)
  }
  throw new TypeError('Expected an ArrayBuffer or a view of one')
}

function charCodes(codes) {
  let text = ''
  for (let at = 0; at < codes.length; at += chunk) {
    text += String.fromCharCode.apply(null, codes.subarray(at, at + chunk))
  }
  return text
}

function utf8Encode(text) {
  const source = String(text)
  const bytes = new Uint8Array(source.length * 3)
  let end = 0
  for (let at = 0; at < source.length; at++) {
    let code = source.charCodeAt(at)
    if (code < 0x80) {
      bytes[end++] = code
      continue
    }
    if (code >= 0xd800 && code <= 0xdfff) {
      code = source.codePointAt(at)
      if (code > 0xffff) at++
      else code = replacement
    }
    if (code < 0x800) {
      bytes[end++] = 0xc0 | (code >> 6)
    } else if (code < 0x10000) {
      bytes[end++] = 0xe0 | (code >> 12)
      bytes[end++] = 0x80 | ((code >> 6) & 63)
    } else {
      bytes[end++] = 0xf0 | (code >> 18)
      bytes[end++] = 0x80 | ((code >> 12) & 63)
      bytes[end++] = 0x80 | ((code >> 6) & 63)
    }
    bytes[end++] = 0x80 | (code & 63)
  }
  return bytes.slice(0, end)
}

/** Length of the sequence a lead byte opens, and the range its second byte must be in. */
function leadByte(byte) {
  if (byte >= 0xc2 && byte <= 0xdf) return [1, 0x80, 0xbf, byte & 31]
  if (byte === 0xe0) return [2, 0xa0, 0xbf, 0]
  if (byte === 0xed) return [2, 0x80, 0x9f, 13]
  if (byte >= 0xe1 && byte <= 0xef) return [2, 0x80, 0xbf, byte & 15]
  if (byte === 0xf0) return [3, 0x90, 0xbf, 0]
  if (byte === 0xf4) return [3, 0x80, 0x8f, 4]
  if (byte >= 0xf1 && byte <= 0xf3) return [3, 0x80, 0xbf, byte & 7]
  return undefined
}

/** https://encoding.spec.whatwg.org/#utf-8-decoder; `fatal` throws instead of replacing. */
function utf8Decode(bytes, fatal = false) {
  const units = new Uint16Array(bytes.length)
  let end = 0
  const fail = () => {
    if (fatal) throw new TypeError('The encoded data was not valid for encoding utf-8')
    units[end++] = replacement
  }
  for (let at = 0; at < bytes.length; ) {
    const byte = bytes[at++]
    if (byte < 0x80) {
      units[end++] = byte
      continue
    }
    const lead = leadByte(byte)
    if (lead === undefined) {
      fail()
      continue
    }
    let [missing, lower, upper, code] = lead
    while (missing > 0 && at < bytes.length && bytes[at] >= lower && bytes[at] <= upper) {
      code = (code << 6) | (bytes[at++] & 63)
      lower = 0x80
      upper = 0xbf
      missing--
    }
    if (missing > 0) {
      fail()
    } else if (code > 0xffff) {
      units[end++] = 0xd800 + ((code - 0x10000) >> 10)
      units[end++] = 0xdc00 + ((code - 0x10000) & 0x3ff)
    } else {
      units[end++] = code
    }
  }
  return charCodes(units.subarray(0, end))
}

function utf16leDecode(bytes) {
  const units = new Uint16Array(bytes.length >> 1)
  for (let at = 0; at < units.length; at++) units[at] = bytes[2 * at] | (bytes[2 * at + 1] << 8)
  return charCodes(units)
}

function utf16leEncode(text) {
  const bytes = new Uint8Array(text.length * 2)
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at)
    bytes[2 * at] = unit & 255
    bytes[2 * at + 1] = unit >> 8
  }
  return bytes
}

function latin1Encode(text) {
  return Uint8Array.from({ length: text.length }, (_, at) => text.charCodeAt(at) & 255)
}

function latin1Decode(bytes) {
  return charCodes(bytes)
}

function base64Encode(bytes) {
  const parts = []
  let text = ''
  for (let at = 0; at < bytes.length; at += 3) {
    const left = bytes.length - at
    const group = (bytes[at] << 16) | ((bytes[at + 1] ?? 0) << 8) | (bytes[at + 2] ?? 0)
    text += alphabet[group >> 18] + alphabet[(group >> 12) & 63]
    text += left > 1 ? alphabet[(group >> 6) & 63] : '='
    text += left > 2 ? alphabet[group & 63] : '='
    if (text.length >= chunk) {
      parts.push(text)
      text = ''
    }
  }
  return parts.join('') + text
}

/** Reads base64 and base64url; stops at padding and skips other characters. */
function base64Decode(text) {
  const table = digitTable()
  const bytes = new Uint8Array(Math.ceil((text.length * 3) / 4))
  let end = 0
  let bits = 0
  let held = 0
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code === 61) break
    const digit = code < 128 ? table[code] : 255
    if (digit === 255) continue
    held = ((held << 6) | digit) & 0xffff
    bits += 6
    if (bits >= 8) {
      bits -= 8
      bytes[end++] = (held >> bits) & 255
    }
  }
  return bytes.slice(0, end)
}

function btoa(text) {
  const source = String(text)
  for (let at = 0; at < source.length; at++) {
    if (source.charCodeAt(at) > 255) throw new Error('Invalid character')
  }
  return base64Encode(latin1Encode(source))
}

/** https://infra.spec.whatwg.org/#forgiving-base64-decode */
function atob(text) {
  let source = String(text).replace(/[\t\n\f\r ]/g, '')
  if (source.length % 4 === 0) source = source.replace(/==?$/, '')
  if (source.length % 4 === 1 || /[^A-Za-z0-9+/]/.test(source)) {
    throw new Error('The string to be decoded is not correctly encoded.')
  }
  return latin1Decode(base64Decode(source))
}

class TextEncoder {
  get encoding() {
    return 'utf-8'
  }

  encode(text = '') {
    return utf8Encode(text)
  }
}

const labels = {
  'utf-8': 'utf-8',
  utf8: 'utf-8',
  'utf-16le': 'utf-16le',
  'utf-16': 'utf-16le',
  latin1: 'windows-1252',
  'iso-8859-1': 'windows-1252',
  ascii: 'windows-1252',
  'us-ascii': 'windows-1252',
  'windows-1252': 'windows-1252',
}

// Meaning of the bytes 0x80 to 0x9f: https://encoding.spec.whatwg.org/index-windows-1252.txt
const windows1252 = '€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ'

/** Number of bytes at the end that begin a character without completing it. */
function incompleteBytes(bytes, encoding) {
  if (encoding === 'utf-16le') return bytes.length % 2
  if (encoding !== 'utf-8') return 0
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back]
    if (byte >= 0xc0) return back < (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2) ? back : 0
    if (byte < 0x80) return 0
  }
  return 0
}

function joined(left, right) {
  const bytes = new Uint8Array(left.length + right.length)
  bytes.set(left)
  bytes.set(right, left.length)
  return bytes
}

class TextDecoder {
  #held = new Uint8Array(0)
  #isBegun = false

  constructor(label = 'utf-8', options = {}) {
    const encoding = labels[String(label).trim().toLowerCase()]
    if (encoding === undefined) throw new RangeError(`The "${label}" encoding is not supported`)
    this.encoding = encoding
    this.fatal = Boolean(options.fatal)
    this.ignoreBOM = Boolean(options.ignoreBOM)
  }

  decode(source = new Uint8Array(0), { stream = false } = {}) {
    const given = toBytes(source)
    const all = this.#held.length === 0 ? given : joined(this.#held, given)
    const rest = stream ? incompleteBytes(all, this.encoding) : 0
    this.#held = all.slice(all.length - rest)
    const text = this.#decode(rest === 0 ? all : all.subarray(0, all.length - rest))
    const hasMark = !this.#isBegun && !this.ignoreBOM && text.charCodeAt(0) === 0xfeff
    this.#isBegun = stream && (this.#isBegun || text !== '')
    return hasMark ? text.slice(1) : text
  }

  #decode(bytes) {
    if (this.encoding === 'windows-1252') {
      return latin1Decode(bytes).replace(
        /[\u0080-\u009f]/g,
        (c) => windows1252[c.charCodeAt(0) - 128],
      )
    }
    return this.encoding === 'utf-8' ? utf8Decode(bytes, this.fatal) : utf16leDecode(bytes)
  }
}

module.exports = {
  TextDecoder,
  TextEncoder,
  atob,
  base64Decode,
  base64Encode,
  btoa,
  toBytes,
  latin1Decode,
  latin1Encode,
  utf16leDecode,
  utf16leEncode,
  utf8Decode,
  utf8Encode,
}
