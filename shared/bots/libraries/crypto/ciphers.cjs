/** Ciphers with a secret key. Buffered: `update` returns nothing, `final` the whole. */
const { Buffer } = require('buffer')
const { ask, base64Of, bytesOf } = require('./keys.cjs')

function encoded(bytes, encoding) {
  return encoding === undefined || encoding === 'buffer' ? bytes : bytes.toString(encoding)
}

class Cipher {
  #question
  #parts = []
  #tag

  constructor(isDecrypt, algorithm, key, iv, { authTagLength } = {}) {
    this.#question = {
      isDecrypt,
      algorithm,
      key: base64Of(key),
      iv: iv === null ? null : base64Of(iv),
      tagLength: authTagLength,
    }
  }

  update(data, inputEncoding, outputEncoding) {
    this.#parts.push(Buffer.from(bytesOf(data, inputEncoding)))
    return encoded(Buffer.alloc(0), outputEncoding)
  }

  final(encoding) {
    const data = Buffer.concat(this.#parts).toString('base64')
    const answer = JSON.parse(ask('cipher', { ...this.#question, data }))
    this.#tag = Buffer.from(answer.tag, 'base64')
    return encoded(Buffer.from(answer.data, 'base64'), encoding)
  }

  setAAD(data) {
    this.#question.aad = base64Of(data)
    return this
  }

  setAuthTag(tag, encoding) {
    const bytes = bytesOf(tag, encoding)
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

module.exports = {
  createCipheriv: (...given) => new Cipher(false, ...given),
  createDecipheriv: (...given) => new Cipher(true, ...given),
}
