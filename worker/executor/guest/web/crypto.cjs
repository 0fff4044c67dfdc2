/** Web Crypto's digest and randomness, and the part of Node's crypto for webhooks. */

const { base64Decode, base64Encode, toBytes, utf8Encode } = require('./encoding.cjs')
const { concatBytes } = require('./blob.cjs')

const maxRandomBytes = 65_536
const subtleAlgorithms = {
  'SHA-1': 'sha1',
  'SHA-256': 'sha256',
  'SHA-384': 'sha384',
  'SHA-512': 'sha512',
}

function askBytes(kind, request) {
  return base64Decode(host.sync(kind, JSON.stringify(request)))
}

function dataBytes(data, encoding) {
  if (typeof data !== 'string') return toBytes(data)
  if (encoding === undefined || encoding === 'utf8' || encoding === 'utf-8') return utf8Encode(data)
  return require('./buffer.cjs').Buffer.from(data, encoding)
}

function randomUUID() {
  return host.sync('uuid', '{}')
}

function randomBytes(size) {
  const { Buffer } = require('./buffer.cjs')
  return Buffer.from(askBytes('random', { bytes: size }))
}

function getRandomValues(array) {
  const view = toBytes(array)
  if (view.length > maxRandomBytes) throw new Error(`At most ${maxRandomBytes} bytes at once`)
  if (view.length > 0) view.set(askBytes('random', { bytes: view.length }))
  return array
}

/** Buffers data until the digest; `finish` turns base64 data into the digest. */
function collector(finish) {
  const parts = []
  let done = false
  return {
    update(data, encoding) {
      if (done) throw new Error('Digest already called')
      parts.push(dataBytes(data, encoding).slice())
      return this
    },
    digest(encoding) {
      if (done) throw new Error('Digest already called')
      done = true
      const { Buffer } = require('./buffer.cjs')
      const bytes = Buffer.from(finish(base64Encode(concatBytes(parts))))
      return encoding === undefined || encoding === 'buffer' ? bytes : bytes.toString(encoding)
    },
  }
}

function hash(algorithm, data) {
  return askBytes('hash', { algorithm, data, encoding: 'base64' })
}

function createHash(algorithm) {
  return collector((data) => hash(algorithm, data))
}

function createHmac(algorithm, key) {
  const secret = base64Encode(dataBytes(key))
  return collector((data) => askBytes('hmac', { algorithm, key: secret, data }))
}

/** Constant time: compares every byte. */
function timingSafeEqual(left, right) {
  const [one, two] = [toBytes(left), toBytes(right)]
  if (one.length !== two.length)
    throw new RangeError('Input buffers must have the same byte length')
  let difference = 0
  for (let at = 0; at < one.length; at++) difference |= one[at] ^ two[at]
  return difference === 0
}

const subtle = {
  async digest(algorithm, data) {
    const name = String(algorithm?.name ?? algorithm).toUpperCase()
    const known = subtleAlgorithms[name]
    if (known === undefined) {
      const { DOMException } = require('./abort.cjs')
      throw new DOMException(`Unrecognized algorithm name "${name}"`, 'NotSupportedError')
    }
    return hash(known, base64Encode(toBytes(data))).buffer
  },
}

const webcrypto = {
  getRandomValues,
  randomUUID,
  /** Present only with the library. */
  get subtle() {
    return require('./modules.cjs').resolve('crypto').subtle ?? subtle
  },
}

module.exports = {
  createHash,
  createHmac,
  getRandomValues,
  randomBytes,
  randomUUID,
  subtle,
  timingSafeEqual,
  webcrypto,
}
