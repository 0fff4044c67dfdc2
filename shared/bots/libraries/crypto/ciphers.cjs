/**
 * Ciphers with a secret key. The executor keeps nothing between two calls, so each piece of data is a call that goes on
 * from the position, or the last block, of the one before.
 */
const { Buffer } = require('buffer')
const { ask, toBase64, toBytes } = require('./keys.cjs')

const BLOCK = 16
const EMPTY = Buffer.alloc(0)
const COUNTER_END = 1n << 128n
const GCM_TAGS = [4, 8, 12, 13, 14, 15, 16]

class Cipher {
  #question
  #mode
  #position = 0
  /** Blocks: the data of an incomplete block. Others with a tag: all data. */
  #kept = []
  #text = EMPTY
  #tag

  constructor(isDecrypt, algorithm, key, iv, { authTagLength } = {}) {
    this.#mode = String(algorithm).toLowerCase().split('-').pop()
    this.#question = {
      isDecrypt,
      algorithm,
      key: toBase64(key),
      iv: iv === null ? null : toBase64(iv),
      tagLength: authTagLength,
    }
  }

  update(data, inputEncoding, outputEncoding) {
    const bytes = Buffer.from(toBytes(data, inputEncoding))
    const isBlocks = this.#mode === 'cbc' || this.#mode === 'ecb'
    const made = isBlocks ? this.#updateBlocks(bytes) : this.#updateStream(bytes)
    return this.#write(made, outputEncoding, false)
  }

  final(encoding) {
    const data = Buffer.concat(this.#kept)
    const isSealed = this.#isSealed
    const answer = this.#ask({ data, isTagOnly: isSealed })
    this.#tag = Buffer.from(answer.tag, 'base64')
    return this.#write(Buffer.from(answer.data, 'base64'), encoding, true)
  }

  get #isSealed() {
    return this.#mode === 'gcm' || this.#mode === 'poly1305'
  }

  #updateBlocks(bytes) {
    const data = Buffer.concat([...this.#kept, bytes])
    const { isDecrypt, isPadded = true } = this.#question
    const over = data.length % BLOCK
    // The last block may be the padding.
    const waiting = over === 0 && isDecrypt && isPadded ? Math.min(BLOCK, data.length) : over
    const given = data.subarray(0, data.length - waiting)
    this.#kept = [data.subarray(given.length)]
    if (given.length === 0) return EMPTY
    const made = Buffer.from(this.#ask({ data: given, isPadded: false }).data, 'base64')
    if (this.#mode === 'cbc') {
      this.#question.iv = toBase64((isDecrypt ? given : made).subarray(-BLOCK))
    }
    return made
  }

  /** The key stream depends on the position alone, and not on the data before. */
  #updateStream(bytes) {
    if (this.#isSealed) this.#kept.push(bytes)
    if (bytes.length === 0) return EMPTY
    const counter = this.#counter()
    const before = counter === undefined ? this.#position : this.#position % BLOCK
    this.#position += bytes.length
    const data = Buffer.concat([Buffer.alloc(before), bytes])
    const answer = this.#ask({ data, isDecrypt: false, ...counter })
    return Buffer.from(answer.data, 'base64').subarray(before)
  }

  /** Returns how counter mode begins with the current block; undefined for other key streams. */
  #counter() {
    const { algorithm, iv } = this.#question
    const first = Buffer.from(iv ?? '', 'base64')
    const blocks = Math.floor(this.#position / BLOCK)
    if (this.#mode === 'ctr') return { iv: counterBlock(first, blocks) }
    // https://csrc.nist.gov/pubs/sp/800/38/d/final: the first counter is for the tag.
    if (this.#mode !== 'gcm' || first.length !== 12) return undefined
    const start = Buffer.concat([first, Buffer.from([0, 0, 0, 2])])
    const plain = { algorithm: algorithm.replace(/gcm$/i, 'ctr'), aad: undefined }
    return { ...plain, iv: counterBlock(start, blocks) }
  }

  #ask({ data, ...how }) {
    return JSON.parse(ask('cipher', { ...this.#question, data: toBase64(data), ...how }))
  }

  /** The caller joins the texts, so an incomplete character waits for the next piece. */
  #write(bytes, encoding, isLast) {
    if (encoding === undefined || encoding === 'buffer') return bytes
    const all = Buffer.concat([this.#text, bytes])
    const end = isLast ? all.length : all.length - incompleteBytes(all, encoding)
    this.#text = all.subarray(end)
    return all.toString(encoding, 0, end)
  }

  setAAD(data) {
    this.#question.aad = toBase64(data)
    return this
  }

  setAuthTag(tag, encoding) {
    const bytes = toBytes(tag, encoding)
    const { tagLength } = this.#question
    const allowed = tagLength !== undefined ? [tagLength] : this.#mode === 'gcm' ? GCM_TAGS : [BLOCK]
    if (!allowed.includes(bytes.length)) {
      const error = new TypeError(`Invalid authentication tag length: ${bytes.length}`)
      throw Object.assign(error, { code: 'ERR_CRYPTO_INVALID_AUTH_TAG' })
    }
    this.#question.tag = bytes.toString('base64')
    this.#question.tagLength = bytes.length
    return this
  }

  getAuthTag() {
    if (this.#tag === undefined) throw new Error('Invalid state for operation getAuthTag')
    return this.#tag
  }

  setAutoPadding(isPadded = true) {
    this.#question.isPadded = isPadded
    return this
  }
}

function counterBlock(first, blocks) {
  const value = (BigInt(`0x${first.toString('hex') || 0}`) + BigInt(blocks)) % COUNTER_END
  const digits = value.toString(16).padStart(2 * first.length, '0')
  return Buffer.from(digits, 'hex').toString('base64')
}

/** Returns how many of the last bytes belong to a character that is not complete. */
function incompleteBytes(bytes, encoding) {
  const name = String(encoding).toLowerCase()
  if (name.startsWith('base64')) return bytes.length % 3
  if (/^(?:utf-?16|ucs)/.test(name)) return bytes.length % 2
  if (!name.startsWith('utf')) return 0
  for (let back = 1; back <= 3 && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back]
    if (byte < 0x80) return 0
    if (byte >= 0xc0) return back < (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2) ? back : 0
  }
  return 0
}

module.exports = {
  createCipheriv: (...given) => new Cipher(false, ...given),
  createDecipheriv: (...given) => new Cipher(true, ...given),
}
