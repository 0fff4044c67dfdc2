/** Keys of bots. The bytes stay in the isolate and go with each call to the executor, which stores nothing. */

const { Buffer } = require('buffer')

const materials = new WeakMap()

function ask(kind, question) {
  return host.sync(kind, JSON.stringify(question))
}

/** Calls the executor for slow work, off its main thread. */
async function askLater(kind, question) {
  const answer = JSON.parse(await host.call('crypto', JSON.stringify({ kind, ...question })))
  if (typeof answer.error === 'string') throw new Error(answer.error)
  return answer.value
}

function toBytes(data, encoding) {
  if (typeof data === 'string') return Buffer.from(data, encoding === 'buffer' ? 'utf8' : encoding)
  if (data instanceof KeyObject) return readMaterial(data)
  if (data instanceof ArrayBuffer) return Buffer.from(data)
  if (ArrayBuffer.isView(data)) return Buffer.from(data.buffer, data.byteOffset, data.byteLength)
  throw new TypeError('The data must be a string, a buffer or a view of one')
}

function toBase64(data, encoding) {
  return toBytes(data, encoding).toString('base64')
}

/** Returns the bytes of a secret key, or the executor's form of another key. */
function readMaterial(key) {
  return materials.get(key)
}

class KeyObject {
  constructor(type, material, about = {}) {
    this.type = type
    materials.set(this, material)
    if (type === 'secret') this.symmetricKeySize = material.length
    else {
      this.asymmetricKeyType = about.keyType
      const { publicExponent, ...details } = about.details ?? {}
      this.asymmetricKeyDetails =
        publicExponent === undefined
          ? details
          : { ...details, publicExponent: BigInt(publicExponent) }
    }
  }

  get [Symbol.toStringTag]() {
    return 'KeyObject'
  }

  equals(other) {
    if (!(other instanceof KeyObject) || other.type !== this.type) return false
    return JSON.stringify(readMaterial(this)) === JSON.stringify(readMaterial(other))
  }

  export(options = {}) {
    const { format, type } = options
    const material = readMaterial(this)
    if (this.type === 'secret') {
      if (format === 'jwk') return { kty: 'oct', k: material.toString('base64url') }
      return Buffer.from(material)
    }
    if (options.cipher || options.passphrase) {
      throw new Error('Keys with a passphrase are not supported')
    }
    const isPrivate = this.type === 'private'
    const exported = ask('key-export', { key: material, isPrivate, format, type })
    if (format === 'jwk') return JSON.parse(exported)
    return format === 'der' ? Buffer.from(exported, 'base64') : exported
  }
}

/** Returns the executor's form: `{data, format, type}`. */
function toKey(given) {
  if (given instanceof KeyObject) return readMaterial(given)
  const isPlain = typeof given === 'string' || ArrayBuffer.isView(given)
  const { key, format = 'pem', type, passphrase } = isPlain ? { key: given } : given
  if (passphrase) throw new Error('Keys with a passphrase are not supported')
  if (key instanceof KeyObject) return readMaterial(key)
  if (format === 'jwk') return { data: key, format }
  if (format === 'der') return { data: toBase64(key), format, type: type ?? 'pkcs8' }
  return { data: typeof key === 'string' ? key : toBytes(key).toString(), format }
}

function made(type, described) {
  const material = { data: described.der, format: 'der', type: type === 'private' ? 'pkcs8' : 'spki' }
  return new KeyObject(type, material, described)
}

function createPrivateKey(given) {
  return made('private', JSON.parse(ask('key', { key: toKey(given), isPrivate: true })))
}

function createPublicKey(given) {
  return made('public', JSON.parse(ask('key', { key: toKey(given), isPrivate: false })))
}

function createSecretKey(data, encoding) {
  return new KeyObject('secret', Buffer.from(toBytes(data, encoding)))
}

/** Returns a pair as `generateKeyPair` does: keys, or text where an encoding is given. */
function toKeyPair(answer, { publicKeyEncoding, privateKeyEncoding } = {}) {
  const publicKey = made('public', answer.publicKey)
  const privateKey = made('private', answer.privateKey)
  return {
    publicKey: publicKeyEncoding ? publicKey.export(publicKeyEncoding) : publicKey,
    privateKey: privateKeyEncoding ? privateKey.export(privateKeyEncoding) : privateKey,
  }
}

function generateKeyPairSync(type, options = {}) {
  return toKeyPair(JSON.parse(ask('key-pair', { type, ...options })), options)
}

function generateKeyPair(type, options, done) {
  askLater('key-pair', { type, ...options }).then(
    (answer) => {
      const { publicKey, privateKey } = toKeyPair(answer, options)
      done(null, publicKey, privateKey)
    },
    (error) => done(error),
  )
}

function diffieHellman({ privateKey, publicKey }) {
  const answer = ask('dh', { key: toKey(privateKey), other: toKey(publicKey) })
  return Buffer.from(answer, 'base64')
}

module.exports = {
  KeyObject,
  ask,
  askLater,
  toBase64,
  toBytes,
  createPrivateKey,
  createPublicKey,
  createSecretKey,
  diffieHellman,
  generateKeyPair,
  generateKeyPairSync,
  toKey,
}
