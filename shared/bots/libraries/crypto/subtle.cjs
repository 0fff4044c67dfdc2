/** Web Crypto: https://w3c.github.io/webcrypto/ */

const { Buffer } = require('buffer')
const { ask, askLater, toBase64, toBytes, createPrivateKey, createPublicKey } = require('./keys.cjs')
const { createCipheriv, createDecipheriv } = require('./ciphers.cjs')
const { diffieHellman, toKey } = require('./keys.cjs')
const guest = require('./crypto.cjs')

const names = [
  'AES-CBC',
  'AES-CTR',
  'AES-GCM',
  'ECDH',
  'ECDSA',
  'Ed25519',
  'HKDF',
  'HMAC',
  'PBKDF2',
  'RSA-OAEP',
  'RSA-PSS',
  'RSASSA-PKCS1-v1_5',
  'X25519',
]
const curveNames = { prime256v1: 'P-256', secp384r1: 'P-384', secp521r1: 'P-521' }
const hashBits = { 'SHA-1': 512, 'SHA-256': 512, 'SHA-384': 1024, 'SHA-512': 1024 }

const materials = new WeakMap()

function problem(name, text) {
  const { DOMException } = globalThis
  return new DOMException(text, name)
}

function readAlgorithm(given) {
  const parameters = typeof given === 'string' ? { name: given } : { ...given }
  const wanted = String(parameters.name).toUpperCase()
  const name = names.find((one) => one.toUpperCase() === wanted)
  if (name === undefined) throw problem('NotSupportedError', `Unrecognized algorithm ${wanted}`)
  if (parameters.hash !== undefined) parameters.hash = { name: hashName(parameters.hash) }
  return { ...parameters, name }
}

function hashName(hash) {
  const name = String(hash?.name ?? hash).toUpperCase()
  if (!(name in hashBits)) throw problem('NotSupportedError', `Unrecognized digest ${name}`)
  return name
}

class CryptoKey {
  constructor(type, algorithm, extractable, usages, material) {
    const fields = { type, algorithm, extractable, usages: [...usages] }
    for (const [name, value] of Object.entries(fields)) {
      Object.defineProperty(this, name, { value, enumerable: true })
    }
    materials.set(this, material)
  }

  get [Symbol.toStringTag]() {
    return 'CryptoKey'
  }
}

function readMaterial(key, usage, name) {
  if (!(key instanceof CryptoKey)) throw new TypeError('The key must be a CryptoKey')
  if (usage !== undefined && !key.usages.includes(usage)) {
    throw problem('InvalidAccessError', `The key may not ${usage}`)
  }
  if (name !== undefined && key.algorithm.name !== name) {
    throw problem('InvalidAccessError', 'The key is for another algorithm')
  }
  return materials.get(key)
}

function toArrayBuffer(bytes) {
  return new Uint8Array(bytes).buffer
}

function isSecret(name) {
  return /^(?:AES|HMAC|HKDF|PBKDF2)/.test(name)
}

const imports = {
  raw: (data) => Buffer.from(toBytes(data)),
  pkcs8: (data) => createPrivateKey({ key: toBytes(data), format: 'der', type: 'pkcs8' }),
  spki: (data) => createPublicKey({ key: toBytes(data), format: 'der', type: 'spki' }),
  jwk: (data) => {
    if (data.kty === 'oct') return Buffer.from(data.k, 'base64url')
    return 'd' in data
      ? createPrivateKey({ key: data, format: 'jwk' })
      : createPublicKey({ key: data, format: 'jwk' })
  },
}

/** Returns a public point as bytes, the `raw` format of WebCrypto. */
function rawPublicKey(algorithm, data) {
  const bytes = toBytes(data)
  const { name, namedCurve } = algorithm
  const half = (bytes.length - 1) / 2
  const key = namedCurve
    ? {
        kty: 'EC',
        crv: namedCurve,
        x: bytes.subarray(1, 1 + half).toString('base64url'),
        y: bytes.subarray(1 + half).toString('base64url'),
      }
    : { kty: 'OKP', crv: name, x: bytes.toString('base64url') }
  return createPublicKey({ key, format: 'jwk' })
}

async function importKey(format, data, given, extractable, usages) {
  const algorithm = readAlgorithm(given)
  if (!Object.hasOwn(imports, format)) {
    throw problem('NotSupportedError', `Unknown format ${format}`)
  }
  const isRawPoint = format === 'raw' && !isSecret(algorithm.name)
  const material = isRawPoint ? rawPublicKey(algorithm, data) : imports[format](data)
  return keyFrom(material, algorithm, extractable, usages)
}

function keyFrom(material, { name, hash, namedCurve }, extractable, usages) {
  if (isSecret(name) === !Buffer.isBuffer(material)) {
    throw problem('DataError', `The key is not for ${name}`)
  }
  if (isSecret(name)) {
    const bits = material.length * 8
    if (name.startsWith('AES') && ![128, 192, 256].includes(bits)) {
      throw problem('DataError', 'An AES key has 128, 192 or 256 bits')
    }
    const algorithm = /^(?:AES|HMAC)/.test(name) ? { name, length: bits } : { name }
    return new CryptoKey('secret', hash ? { ...algorithm, hash } : algorithm, extractable, usages, material)
  }
  const details = material.asymmetricKeyDetails ?? {}
  const algorithm = name.startsWith('RSA')
    ? { name, hash, modulusLength: details.modulusLength, publicExponent: new Uint8Array([1, 0, 1]) }
    : name.startsWith('EC')
      ? { name, namedCurve: curveNames[details.namedCurve] }
      : { name }
  const wanted = name.startsWith('RSA') ? 'rsa' : name.startsWith('EC') ? 'ec' : name.toLowerCase()
  const isOther = namedCurve !== undefined && namedCurve !== algorithm.namedCurve
  if (material.asymmetricKeyType !== wanted || isOther) {
    throw problem('DataError', `The key is not for ${name}`)
  }
  return new CryptoKey(material.type, algorithm, extractable, usages, material)
}

async function exportKey(format, key) {
  const material = readMaterial(key)
  if (!key.extractable) throw problem('InvalidAccessError', 'The key is not extractable')
  if (format === 'jwk') {
    const jwk = Buffer.isBuffer(material)
      ? { kty: 'oct', k: material.toString('base64url') }
      : material.export({ format })
    return { ...jwk, ext: true, key_ops: [...key.usages] }
  }
  if (format !== 'raw') return toArrayBuffer(material.export({ format: 'der', type: format }))
  if (Buffer.isBuffer(material)) return toArrayBuffer(material)
  const { x, y } = material.export({ format: 'jwk' })
  const parts = [x, y].filter(Boolean).map((part) => Buffer.from(part, 'base64url'))
  return toArrayBuffer(Buffer.concat(y ? [Buffer.from([4]), ...parts] : parts))
}

const pairTypes = { ECDH: 'ec', ECDSA: 'ec', Ed25519: 'ed25519', X25519: 'x25519' }
const publicUsages = ['encrypt', 'verify', 'wrapKey']

async function generateKey(given, extractable, usages) {
  const algorithm = readAlgorithm(given)
  const { name, length, hash, modulusLength, namedCurve } = algorithm
  if (isSecret(name)) {
    const bits = length ?? hashBits[hash?.name]
    const bytes = guest.randomBytes(Math.ceil(Number(bits) / 8))
    return keyFrom(bytes, algorithm, extractable, usages)
  }
  const type = pairTypes[name] ?? 'rsa'
  const made = await askLater('key-pair', { type, modulusLength, namedCurve })
  const keyIn = (described, format) => imports[format](Buffer.from(described.der, 'base64'))
  const own = usages.filter((usage) => !publicUsages.includes(usage))
  const others = usages.filter((usage) => publicUsages.includes(usage))
  return {
    publicKey: keyFrom(keyIn(made.publicKey, 'spki'), algorithm, true, others),
    privateKey: keyFrom(keyIn(made.privateKey, 'pkcs8'), algorithm, extractable, own),
  }
}

function signatureOptions({ name, hash, saltLength }, key) {
  const digest = (hash ?? key.algorithm.hash)?.name
  if (name === 'RSA-PSS') return { digest, padding: 'pss', saltLength }
  return name === 'ECDSA' ? { digest, dsaEncoding: 'ieee-p1363' } : { digest }
}

function hmac(key, material, data) {
  const digest = key.algorithm.hash.name.replace('-', '').toLowerCase()
  return guest.createHmac(digest, material).update(toBytes(data)).digest()
}

async function sign(given, key, data) {
  const algorithm = readAlgorithm(given)
  const material = readMaterial(key, 'sign', algorithm.name)
  if (algorithm.name === 'HMAC') return toArrayBuffer(hmac(key, material, data))
  const question = { ...signatureOptions(algorithm, key), key: toKey(material), data: toBase64(data) }
  return toArrayBuffer(Buffer.from(ask('sign', question), 'base64'))
}

async function verify(given, key, signature, data) {
  const algorithm = readAlgorithm(given)
  const material = readMaterial(key, 'verify', algorithm.name)
  if (algorithm.name === 'HMAC') {
    const wanted = hmac(key, material, data)
    const sent = toBytes(signature)
    return sent.length === wanted.length && guest.timingSafeEqual(sent, wanted)
  }
  const question = { ...signatureOptions(algorithm, key), key: toKey(material), data: toBase64(data) }
  return ask('verify', { ...question, signature: toBase64(signature) }) === 'true'
}

function rsa(kind, { label }, key, material, data) {
  const options = { padding: 'oaep', digest: key.algorithm.hash.name, label: label && toBase64(label) }
  const question = { key: toKey(material), data: toBase64(data), ...options }
  return toArrayBuffer(Buffer.from(ask(kind, question), 'base64'))
}

function cipherName(name, material) {
  return `aes-${material.length * 8}-${name.slice(4).toLowerCase()}`
}

async function encrypt(given, key, data, usage = 'encrypt') {
  const algorithm = readAlgorithm(given)
  const { name, iv, counter, additionalData, tagLength = 128 } = algorithm
  const material = readMaterial(key, usage, name)
  if (name === 'RSA-OAEP') return rsa('rsa-encrypt', algorithm, key, material, data)
  const options = { authTagLength: tagLength / 8 }
  const cipher = createCipheriv(cipherName(name, material), material, counter ?? iv, options)
  if (additionalData !== undefined) cipher.setAAD(additionalData)
  const sealed = Buffer.concat([cipher.update(toBytes(data)), cipher.final()])
  return toArrayBuffer(name === 'AES-GCM' ? Buffer.concat([sealed, cipher.getAuthTag()]) : sealed)
}

async function decrypt(given, key, data, usage = 'decrypt') {
  const algorithm = readAlgorithm(given)
  const { name, iv, counter, additionalData, tagLength = 128 } = algorithm
  const material = readMaterial(key, usage, name)
  try {
    if (name === 'RSA-OAEP') return rsa('rsa-decrypt', algorithm, key, material, data)
    const options = { authTagLength: tagLength / 8 }
    const decipher = createDecipheriv(cipherName(name, material), material, counter ?? iv, options)
    const bytes = toBytes(data)
    const end = name === 'AES-GCM' ? bytes.length - tagLength / 8 : bytes.length
    if (end < 0) throw new Error('The provided data is too small')
    if (additionalData !== undefined) decipher.setAAD(additionalData)
    if (name === 'AES-GCM') decipher.setAuthTag(bytes.subarray(end))
    const opened = decipher.update(bytes.subarray(0, end))
    return toArrayBuffer(Buffer.concat([opened, decipher.final()]))
  } catch (error) {
    throw problem('OperationError', error.message)
  }
}

async function deriveBits(given, key, length, usage = 'deriveBits') {
  const algorithm = readAlgorithm(given)
  const { name, hash, salt, info, iterations } = algorithm
  const material = readMaterial(key, usage, name)
  if (name === 'ECDH' || name === 'X25519') {
    const shared = diffieHellman({ privateKey: material, publicKey: readMaterial(algorithm.public) })
    return toArrayBuffer(length ? shared.subarray(0, length / 8) : shared)
  }
  const digest = hash?.name
  const question = { digest, salt: toBase64(salt), length: length / 8 }
  const derived =
    name === 'HKDF'
      ? ask('hkdf', { ...question, key: toBase64(material), info: toBase64(info) })
      : await askLater('pbkdf2', { ...question, password: toBase64(material), iterations })
  return toArrayBuffer(Buffer.from(derived, 'base64'))
}

async function deriveKey(given, key, wanted, extractable, usages) {
  const { name, length, hash } = readAlgorithm(wanted)
  const bits = length ?? hashBits[hash?.name] ?? 256
  const bytes = await deriveBits(given, key, bits, 'deriveKey')
  return importKey('raw', bytes, wanted, extractable, usages, name)
}

async function wrapKey(format, key, wrapping, algorithm) {
  const exported = await exportKey(format, key)
  const bytes = format === 'jwk' ? Buffer.from(JSON.stringify(exported)) : exported
  return encrypt(algorithm, wrapping, bytes, 'wrapKey')
}

async function unwrapKey(format, wrapped, wrapping, algorithm, ...imported) {
  const bytes = await decrypt(algorithm, wrapping, wrapped, 'unwrapKey')
  const data = format === 'jwk' ? JSON.parse(Buffer.from(bytes).toString()) : bytes
  return importKey(format, data, ...imported)
}

const subtle = {
  decrypt: (algorithm, key, data) => decrypt(algorithm, key, data),
  deriveBits: (algorithm, key, length) => deriveBits(algorithm, key, length),
  deriveKey,
  digest: guest.subtle.digest,
  encrypt: (algorithm, key, data) => encrypt(algorithm, key, data),
  exportKey,
  generateKey,
  importKey,
  sign,
  unwrapKey,
  verify,
  wrapKey,
}

module.exports = { CryptoKey, subtle }
