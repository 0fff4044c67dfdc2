/** Signatures and encryption with key pairs. */

const { Buffer } = require('buffer')
const { ask, toBase64, toBytes, toKey } = require('./keys.cjs')

const constants = {
  RSA_PKCS1_OAEP_PADDING: 4,
  RSA_PKCS1_PADDING: 1,
  RSA_PKCS1_PSS_PADDING: 6,
  RSA_PSS_SALTLEN_AUTO: -2,
  RSA_PSS_SALTLEN_DIGEST: -1,
  RSA_PSS_SALTLEN_MAX_SIGN: -2,
}
const paddings = { 1: 'pkcs1', 4: 'oaep', 6: 'pss' }

function question(digest, data, key) {
  const { padding, saltLength, dsaEncoding } = key ?? {}
  const options = { padding: padding && paddings[padding], saltLength, dsaEncoding }
  return { digest, data: toBase64(data), key: toKey(key), ...options }
}

/** Calls back in the next turn of the event loop, as Node does. */
function answered(make, done) {
  if (done === undefined) return make()
  queueMicrotask(() => {
    let value
    try {
      value = make()
    } catch (error) {
      done(error)
      return
    }
    done(null, value)
  })
}

function sign(digest, data, key, done) {
  const make = () => Buffer.from(ask('sign', question(digest, data, key)), 'base64')
  return answered(make, done)
}

function verify(digest, data, key, signature, done) {
  const make = () =>
    ask('verify', { ...question(digest, data, key), signature: toBase64(signature) }) === 'true'
  return answered(make, done)
}

class Collected {
  #digest
  #parts = []

  constructor(digest) {
    this.#digest = digest
  }

  update(data, encoding) {
    this.#parts.push(Buffer.from(toBytes(data, encoding)))
    return this
  }

  write(data, encoding) {
    return this.update(data, encoding)
  }

  end(data, encoding) {
    return data === undefined ? this : this.update(data, encoding)
  }

  sign(key, encoding) {
    const signature = sign(this.#digest, Buffer.concat(this.#parts), key)
    return encoding === undefined || encoding === 'buffer' ? signature : signature.toString(encoding)
  }

  verify(key, signature, encoding) {
    return verify(this.#digest, Buffer.concat(this.#parts), key, toBytes(signature, encoding))
  }
}

function rsa(kind, key, data) {
  const { padding = constants.RSA_PKCS1_OAEP_PADDING, oaepHash = 'sha1', oaepLabel } = key
  const options = {
    padding: paddings[padding],
    digest: padding === constants.RSA_PKCS1_OAEP_PADDING ? oaepHash : undefined,
    label: oaepLabel && toBase64(oaepLabel),
  }
  const answer = ask(kind, { key: toKey(key), data: toBase64(data), ...options })
  return Buffer.from(answer, 'base64')
}

module.exports = {
  constants,
  createSign: (digest) => new Collected(digest),
  createVerify: (digest) => new Collected(digest),
  privateDecrypt: (key, data) => rsa('rsa-decrypt', key, data),
  publicEncrypt: (key, data) => rsa('rsa-encrypt', key, data),
  sign,
  verify,
}
