/**
 * Calls of the guest to Node: URL syntax, digests, randomness and cryptography. The table is fixed, accepts JSON text, and
 * returns a string or JSON text; no object or error of this process passes through. Keys travel with each call and are
 * not stored, so they cannot leak or accumulate; the cost of a call is bounded and counts as the run's CPU time.
 */
import type { JsonWebKeyInput, KeyObject, ScryptOptions } from 'node:crypto'
import { promisify } from 'node:util'

type Question = Readonly<Record<string, unknown>>

const MAX_TEXT = 8 * 1024 * 1024
const MAX_RANDOM_BYTES = 65_536
const ALGORITHMS = ['md5', 'sha1', 'sha224', 'sha256', 'sha384', 'sha512']
/** Bounds the time of a private exponent. */
const MAX_KEY_LENGTH = 8192
export const MAX_MODULUS_BITS = 4096
/** Larger pairs are generated off the main thread. */
const MAX_MODULUS_BITS_SYNC = 2048
export const MAX_ITERATIONS = 1_000_000
/** N * r: 64 MB. */
export const MAX_SCRYPT_BLOCKS = 2 ** 19
/** N * r * p. */
const MAX_SCRYPT_COST = 2 ** 20
const MAX_DERIVED_BYTES = 65_536
const KEY_TYPES = ['rsa', 'rsa-pss', 'ec', 'ed25519', 'ed448', 'x25519', 'x448']
const CURVES = ['prime256v1', 'secp384r1', 'secp521r1', 'secp256k1']
const CIPHERS = /^(?:aes-(?:128|192|256)-(?:cbc|ctr|ecb|gcm)|chacha20-poly1305)$/
const PADDINGS: Readonly<Record<string, number>> = { pkcs1: 1, oaep: 4, pss: 6 }

/** Loaded on first use, to keep the start short. */
const crypto = () => process.getBuiltinModule('node:crypto')

const answers: Readonly<Record<string, (question: Question) => unknown>> = {
  url: ({ input, base }) =>
    urlParts(() => new URL(text(input), base === undefined ? undefined : text(base))),
  'url-set': ({ href, property, value }) =>
    urlParts(() => changedUrl(text(href), property, text(value))),
  hash: ({ algorithm, data }) =>
    crypto().createHash(digest(algorithm)).update(text(data), 'base64').digest('base64'),
  hmac: ({ algorithm, key, data }) =>
    crypto()
      .createHmac(digest(algorithm), Buffer.from(text(key), 'base64'))
      .update(text(data), 'base64')
      .digest('base64'),
  random: ({ bytes }) => crypto().randomBytes(count(bytes)).toString('base64'),
  uuid: () => crypto().randomUUID(),
  key: ({ key, isPrivate }) => describe(readKey(key, isPrivate === true)),
  'key-export': exportKey,
  sign: (question) => {
    const key = readKey(question.key, true)
    return crypto()
      .sign(signatureDigest(question, key), bytes(question.data), signatureOptions(question, key))
      .toString('base64')
  },
  verify: (question) => {
    const key = readKey(question.key, false)
    const options = signatureOptions(question, key)
    return crypto().verify(
      signatureDigest(question, key),
      bytes(question.data),
      options,
      bytes(question.signature),
    )
  },
  cipher,
  'rsa-encrypt': (question) =>
    crypto().publicEncrypt(rsaOptions(question, false), bytes(question.data)).toString('base64'),
  'rsa-decrypt': (question) =>
    crypto().privateDecrypt(rsaOptions(question, true), bytes(question.data)).toString('base64'),
  dh: ({ key, other }) =>
    crypto()
      .diffieHellman({ privateKey: readKey(key, true), publicKey: readKey(other, false) })
      .toString('base64'),
  hkdf: ({ digest, key, salt, info, length }) => {
    const derived = crypto().hkdfSync(
      digestName(digest),
      bytes(key),
      bytes(salt),
      bytes(info),
      requireDerivedLength(length),
    )
    return Buffer.from(derived).toString('base64')
  },
  pbkdf2: (question) =>
    crypto()
      .pbkdf2Sync(...pbkdf2Parameters(question))
      .toString('base64'),
  scrypt: (question) =>
    crypto()
      .scryptSync(...scryptParameters(question))
      .toString('base64'),
  'key-pair': (question) =>
    describeKeyPair(
      crypto().generateKeyPairSync(...pairParameters(question, MAX_MODULUS_BITS_SYNC)),
    ),
}

const laterAnswers: Readonly<Record<string, (question: Question) => Promise<unknown>>> = {
  pbkdf2: async (question) => {
    const derived = await promisify(crypto().pbkdf2)(...pbkdf2Parameters(question))
    return derived.toString('base64')
  },
  scrypt: async (question) => {
    const [password, salt, length, options] = scryptParameters(question)
    const derive = promisify<Buffer, Buffer, number, ScryptOptions, Buffer>(crypto().scrypt)
    return (await derive(password, salt, length, options)).toString('base64')
  },
  'key-pair': async (question) => {
    const make = promisify(crypto().generateKeyPair)
    return describeKeyPair(await make(...pairParameters(question, MAX_MODULUS_BITS)))
  },
}

/** Returns `1` and the answer, or `0` and a message; never throws. */
export function answerSyncCall(kind: unknown, question: unknown): string {
  try {
    if (typeof kind !== 'string' || typeof question !== 'string') return '0Invalid call'
    if (question.length > MAX_TEXT) return '0Input is too large'
    const answer = Object.hasOwn(answers, kind) ? answers[kind] : undefined
    if (!answer) return `0Unknown call`
    const asked: unknown = JSON.parse(question)
    const given = answer(typeof asked === 'object' && asked !== null ? { ...asked } : {})
    return `1${typeof given === 'string' ? given : JSON.stringify(given)}`
  } catch (error) {
    return `0${error instanceof Error ? error.message : 'Invalid call'}`
  }
}

interface Pair {
  readonly privateKey: KeyObject
  readonly publicKey: KeyObject
}

let last: Promise<unknown> = Promise.resolve()

/** Returns the JSON of `{value}` or `{error}`, and the time. One call at a time: hostile runs wait for each other. */
export async function answerCryptoCall(
  payload: string,
  isWanted: () => boolean,
): Promise<{ readonly text: string; readonly ms: number }> {
  const answered = last.then(async () => {
    const beganAt = performance.now()
    const text = isWanted() ? await answerLater(payload) : ''
    return { text, ms: performance.now() - beganAt }
  })
  last = answered
  return await answered
}

async function answerLater(payload: string): Promise<string> {
  try {
    const question: unknown = JSON.parse(payload)
    const asked = typeof question === 'object' && question !== null ? { ...question } : {}
    const kind = 'kind' in asked ? String(asked.kind) : ''
    if (!Object.hasOwn(laterAnswers, kind)) return JSON.stringify({ error: 'Unknown call' })
    return JSON.stringify({ value: await laterAnswers[kind]?.(asked) })
  } catch (error) {
    return JSON.stringify({ error: error instanceof Error ? error.message : 'Invalid call' })
  }
}

function text(value: unknown): string {
  if (typeof value !== 'string') throw new TypeError('A string is needed')
  return value
}

function bytes(value: unknown): Buffer {
  return Buffer.from(text(value), 'base64')
}

function requireDerivedLength(value: unknown): number {
  const length = Number(value)
  if (!Number.isInteger(length) || length < 0 || length > MAX_DERIVED_BYTES) {
    throw new RangeError(`Between 0 and ${MAX_DERIVED_BYTES} bytes can be derived`)
  }
  return length
}

function digestName(value: unknown): string {
  const [, size] = /^(?:rsa-)?sha-?(1|224|256|384|512)$/i.exec(text(value)) ?? []
  if (size === undefined)
    throw new TypeError(`Digest method not supported: ${text(value).slice(0, 50)}`)
  return `sha${size}`
}

/** `{data, format, type}`: PEM as it is, DER in base64, a JWK as an object. */
function readKey(value: unknown, isPrivate: boolean): KeyObject {
  const { data, format, type }: Question = Object(value)
  if (JSON.stringify(data ?? '').length > MAX_KEY_LENGTH)
    throw new RangeError('The key is too large')
  if (format === 'pem' && /ENCRYPTED/.test(text(data))) {
    throw new TypeError('Keys with a passphrase are not supported')
  }
  const key = format === 'jwk' ? data : format === 'der' ? bytes(data) : text(data)
  const given = { key, format, type } as JsonWebKeyInput
  const read = isPrivate ? crypto().createPrivateKey(given) : crypto().createPublicKey(given)
  const { asymmetricKeyType, asymmetricKeyDetails: details } = read
  if (!KEY_TYPES.includes(asymmetricKeyType ?? ''))
    throw new TypeError('The type of the key is not supported')
  if ((details?.modulusLength ?? 0) > MAX_MODULUS_BITS) {
    throw new RangeError(`A key may have ${MAX_MODULUS_BITS} bits`)
  }
  if (asymmetricKeyType === 'ec' && !CURVES.includes(details?.namedCurve ?? '')) {
    throw new TypeError('The curve of the key is not supported')
  }
  return read
}

function describe(key: KeyObject) {
  const { publicExponent, ...details } = key.asymmetricKeyDetails ?? {}
  return {
    der: exportDer(key),
    keyType: key.asymmetricKeyType,
    details: { ...details, ...(publicExponent ? { publicExponent: String(publicExponent) } : {}) },
  }
}

function exportDer(key: KeyObject): string {
  const type = key.type === 'private' ? 'pkcs8' : 'spki'
  // The types allow each export type for one key type only.
  return key.export({ format: 'der', type: type as 'spki' }).toString('base64')
}

function exportKey({ key, isPrivate, format, type }: Question): unknown {
  const read = readKey(key, isPrivate === true)
  if (format === 'jwk') return read.export({ format })
  const kind = typeof type === 'string' ? type : isPrivate === true ? 'pkcs8' : 'spki'
  const options = { type: kind as 'spki' }
  if (format !== 'der') return read.export({ ...options, format: 'pem' })
  return read.export({ ...options, format: 'der' }).toString('base64')
}

/** Ed25519 and the like have a built-in digest. */
function signatureDigest({ digest }: Question, { asymmetricKeyType }: KeyObject): string | null {
  return asymmetricKeyType?.startsWith('ed') ? null : digestName(digest)
}

function signatureOptions({ padding, saltLength, dsaEncoding }: Question, key: KeyObject) {
  return {
    key,
    ...(typeof padding === 'string' ? { padding: requirePadding(padding) } : {}),
    ...(typeof saltLength === 'number' ? { saltLength } : {}),
    ...(dsaEncoding === 'ieee-p1363' ? { dsaEncoding: 'ieee-p1363' as const } : {}),
  }
}

function requirePadding(name: string): number {
  const padding = Object.hasOwn(PADDINGS, name) ? PADDINGS[name] : undefined
  if (padding === undefined) throw new TypeError('The padding is not supported')
  return padding
}

function rsaOptions({ key, padding, digest, label }: Question, isPrivate: boolean) {
  return {
    key: readKey(key, isPrivate),
    padding: requirePadding(text(padding)),
    ...(typeof digest === 'string' ? { oaepHash: digestName(digest) } : {}),
    ...(typeof label === 'string' && label !== '' ? { oaepLabel: bytes(label) } : {}),
  }
}

/** With `isTagOnly`, the data is only checked, or sealed by the tag. */
function cipher({ algorithm, key, iv, data, aad, tag, tagLength, ...how }: Question) {
  const { isDecrypt, isPadded, isTagOnly } = how
  const name = text(algorithm).toLowerCase()
  if (!CIPHERS.test(name)) throw new TypeError('Unknown cipher')
  const isSealed = /gcm|poly1305/.test(name)
  const make = isDecrypt === true ? crypto().createDecipheriv : crypto().createCipheriv
  // All accept the length; authenticated modes need it for tags other than 16 bytes.
  const options = isSealed ? { authTagLength: Number(tagLength ?? 16) } : {}
  const vector = iv === null ? null : bytes(iv)
  const made = make(name as 'aes-256-gcm', bytes(key), vector as Buffer, options)
  if (typeof aad === 'string') made.setAAD(bytes(aad), { plaintextLength: 0 })
  if ('setAuthTag' in made && isSealed && tag !== undefined) made.setAuthTag(bytes(tag))
  if (isPadded === false) made.setAutoPadding(false)
  const done = Buffer.concat([made.update(bytes(data)), made.final()])
  const sealed = 'getAuthTag' in made && isSealed ? made.getAuthTag().toString('base64') : ''
  return { data: isTagOnly === true ? '' : done.toString('base64'), tag: sealed }
}

function pbkdf2Parameters({ password, salt, iterations, length, digest }: Question) {
  const derived = requireDerivedLength(length)
  const name = digestName(digest)
  const rounds = Number(iterations) * Math.max(1, Math.ceil((derived * 8) / 160))
  if (!(Number(iterations) >= 1) || rounds > MAX_ITERATIONS) {
    throw new RangeError(`PBKDF2 may have ${MAX_ITERATIONS} iterations`)
  }
  return [bytes(password), bytes(salt), Number(iterations), derived, name] as const
}

function scryptParameters({ password, salt, length, N = 16_384, r = 8, p = 1 }: Question) {
  const blocks = Number(N) * Number(r)
  if (!(blocks <= MAX_SCRYPT_BLOCKS && blocks * Number(p) <= MAX_SCRYPT_COST)) {
    throw new RangeError('scrypt may use 64 MB, and N * r * p may be 2 ** 20')
  }
  const options = { N: Number(N), r: Number(r), p: Number(p), maxmem: 256 * MAX_SCRYPT_BLOCKS }
  return [bytes(password), bytes(salt), requireDerivedLength(length), options] as const
}

function pairParameters(question: Question, mostBits: number) {
  const type = text(question.type)
  if (!KEY_TYPES.includes(type)) throw new TypeError('The type of the key is not supported')
  // One function with overloads by type, which is checked.
  return [
    type as 'rsa',
    pairOptions(type, question, mostBits) as { modulusLength: number },
  ] as const
}

const CURVE_NAMES: Readonly<Record<string, string>> = {
  'P-256': 'prime256v1',
  'P-384': 'secp384r1',
  'P-521': 'secp521r1',
}

function pairOptions(type: string, { modulusLength, namedCurve }: Question, mostBits: number) {
  if (type === 'ec') {
    const curve = CURVE_NAMES[text(namedCurve)] ?? text(namedCurve)
    if (!CURVES.includes(curve)) throw new TypeError('The curve is not supported')
    return { namedCurve: curve }
  }
  if (!type.startsWith('rsa')) return {}
  const bits = Number(modulusLength)
  if (!(bits >= 1024 && bits <= mostBits)) {
    throw new RangeError(`A new RSA key may have 1024 to ${mostBits} bits`)
  }
  return { modulusLength: bits }
}

function describeKeyPair({ privateKey, publicKey }: Pair) {
  return { privateKey: describe(privateKey), publicKey: describe(publicKey) }
}

function digest(value: unknown): string {
  const name = text(value).toLowerCase().replace('-', '')
  if (!ALGORITHMS.includes(name)) throw new TypeError('Digest method not supported')
  return name
}

function count(value: unknown): number {
  const wanted = Number(value)
  if (!Number.isInteger(wanted) || wanted < 0 || wanted > MAX_RANDOM_BYTES) {
    throw new RangeError(`Between 0 and ${MAX_RANDOM_BYTES} random bytes can be had`)
  }
  return wanted
}

const SETTABLE = [
  'href',
  'protocol',
  'username',
  'password',
  'host',
  'hostname',
  'port',
  'pathname',
  'search',
  'hash',
] as const

function changedUrl(href: string, property: unknown, value: string): URL {
  const url = new URL(href)
  const known = SETTABLE.find((one) => one === property)
  if (known) url[known] = value
  return url
}

function urlParts(make: () => URL): Readonly<Record<string, string>> {
  try {
    const url = make()
    return Object.fromEntries([...SETTABLE, 'origin' as const].map((part) => [part, url[part]]))
  } catch {
    return { error: 'Invalid URL' }
  }
}
