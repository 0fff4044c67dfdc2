/** Compares Node's `crypto` and Web Crypto in the sandbox with Node. */
import crypto, { type KeyObject } from 'node:crypto'
import t from 'tap'
import { requiredLibraries } from '../../../../shared/bots/modules.ts'
import { aRun, limits, openTestExecutors, run } from '../../../fixtures/bots/runs.ts'

const executors = await openTestExecutors(t)
const pem = (key: KeyObject, type: 'pkcs8' | 'spki') =>
  key.export({ format: 'pem', type: type as 'spki' }).toString()
const rsa = crypto.generateKeyPairSync('rsa', { modulusLength: 2048 })
const ec = crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' })
const ed = crypto.generateKeyPairSync('ed25519')
const keys = Object.fromEntries(
  Object.entries({ rsa, ec, ed }).map(([name, { privateKey, publicKey }]) => [
    name,
    { own: pem(privateKey, 'pkcs8'), open: pem(publicKey, 'spki') },
  ]),
)
const data = 'signed text é'
const input = { keys, data }

async function runForAnswer(body: string, more: object = {}): Promise<unknown> {
  const code = `const crypto = require('node:crypto')
    exports.handler = async (medplum, { input: { keys, data, ...more } }) => { ${body} }`
  const given = {
    libraries: requiredLibraries(code),
    input: JSON.stringify({ ...input, ...more }),
    limits: { ...limits, memoryMb: 256 },
  }
  const result = await run(executors, aRun(code, given))
  if (result.status !== 'ok') throw new Error(`${result.body} ${result.log}`)
  return result.kind === 'json' ? JSON.parse(result.body) : result.body
}

t.test('creates the same signatures as Node', async (t) => {
  const made = await runForAnswer(`
    const signed = (digest, key) => crypto.createSign(digest).update(data).sign(key, 'base64')
    const pss = { key: keys.rsa.own, padding: crypto.constants.RSA_PKCS1_PSS_PADDING, saltLength: 32 }
    return [signed('RSA-SHA256', keys.rsa.own), signed('SHA384', pss), signed('sha256', keys.ec.own),
      crypto.sign('sha256', Buffer.from(data), { key: keys.ec.own, dsaEncoding: 'ieee-p1363' }).toString('base64'),
      crypto.sign(null, Buffer.from(data), crypto.createPrivateKey(keys.ed.own)).toString('base64')]`)
  const [plain, pss, dsa, flat, edwards] = (made as string[]).map((one) =>
    Buffer.from(one, 'base64'),
  )
  const bytes = Buffer.from(data)
  const pssKey = { key: rsa.publicKey, padding: crypto.constants.RSA_PKCS1_PSS_PADDING }
  t.ok(crypto.verify('sha256', bytes, rsa.publicKey, plain ?? bytes))
  t.ok(crypto.verify('sha384', bytes, pssKey, pss ?? bytes))
  t.ok(crypto.verify('sha256', bytes, ec.publicKey, dsa ?? bytes))
  t.ok(
    crypto.verify('sha256', bytes, { key: ec.publicKey, dsaEncoding: 'ieee-p1363' }, flat ?? bytes),
  )
  t.ok(crypto.verify(null, bytes, ed.publicKey, edwards ?? bytes))
  const theirs = crypto.createSign('sha256').update(data).sign(rsa.privateKey, 'base64')
  t.same(
    await runForAnswer(
      `const check = (text, key) => crypto.createVerify('RSA-SHA256').update(text).verify(key, more.theirs, 'base64')
       return [check(data, keys.rsa.open), check(data + '.', keys.rsa.open), check(data, crypto.createPublicKey(keys.rsa.own)),
         crypto.verify('sha256', Buffer.from(data), keys.ec.open, Buffer.from(more.theirs, 'base64'))]`,
      { theirs },
    ),
    [true, false, true, false],
  )
})

t.test('imports, describes and exports keys in every format', async (t) => {
  const jwk = rsa.privateKey.export({ format: 'jwk' })
  const told = await runForAnswer(
    `const key = crypto.createPrivateKey({ key: more.jwk, format: 'jwk' })
     const open = crypto.createPublicKey(key)
     const secret = crypto.createSecretKey(Buffer.from('abc'))
     return [key.type, key.asymmetricKeyType, key.asymmetricKeyDetails.modulusLength,
       key.export({ type: 'pkcs8', format: 'pem' }) === keys.rsa.own, open.export({ type: 'spki', format: 'pem' }),
       key.export({ format: 'jwk' }).d, key.export({ type: 'pkcs1', format: 'der' }).length,
       secret.export().toString(), secret.symmetricKeySize, key.equals(crypto.createPrivateKey(keys.rsa.own))]`,
    { jwk },
  )
  const pkcs1 = rsa.privateKey.export({ type: 'pkcs1', format: 'der' }).length
  t.same(told, ['private', 'rsa', 2048, true, keys.rsa?.open, jwk.d, pkcs1, 'abc', 3, true])
  const pairs = await runForAnswer(`
    const { generateKeyPairSync, generateKeyPair } = crypto
    const made = generateKeyPairSync('ec', { namedCurve: 'P-384', publicKeyEncoding: { type: 'spki', format: 'pem' } })
    const signature = crypto.sign('sha384', Buffer.from(data), made.privateKey)
    const later = await new Promise((resolve, reject) => generateKeyPair('rsa', { modulusLength: 1024 },
      (error, publicKey, privateKey) => error ? reject(error) : resolve(publicKey.asymmetricKeyDetails.modulusLength)))
    const one = generateKeyPairSync('x25519'), two = generateKeyPairSync('x25519')
    const shared = (a, b) => crypto.diffieHellman({ privateKey: a.privateKey, publicKey: b.publicKey }).toString('hex')
    return [crypto.verify('sha384', Buffer.from(data), made.publicKey, signature), later, shared(one, two) === shared(two, one)]`)
  t.same(pairs, [true, 1024, true])
})

t.test('encrypts and derives keys as Node does', async (t) => {
  const secret = crypto.randomBytes(32).toString('base64')
  const made = (await runForAnswer(
    `const secret = Buffer.from(more.secret, 'base64'), iv = Buffer.alloc(12, 7)
     const cipher = crypto.createCipheriv('aes-256-gcm', secret, iv).setAAD(Buffer.from('about'))
     const sealed = cipher.update(data, 'utf8', 'base64') + cipher.final('base64')
     const cbc = crypto.createCipheriv('aes-256-cbc', secret, Buffer.alloc(16))
     const back = crypto.createDecipheriv('aes-256-gcm', secret, iv)
     back.setAAD(Buffer.from('about')).setAuthTag(cipher.getAuthTag())
     const spoiled = crypto.createDecipheriv('aes-256-gcm', secret, iv).setAuthTag(Buffer.alloc(16))
     spoiled.update(sealed, 'base64')
     let refused = ''
     try { spoiled.final() } catch (error) { refused = error.message }
     const later = (name, ...given) => new Promise((resolve, reject) => crypto[name](...given, (error, key) => error ? reject(error) : resolve(Buffer.from(key).toString('hex'))))
     return { sealed, tag: cipher.getAuthTag().toString('hex'), cbc: cbc.update(data, 'utf8', 'hex') + cbc.final('hex'),
       back: back.update(sealed, 'base64', 'utf8') + back.final('utf8'), refused,
       pbkdf2: [crypto.pbkdf2Sync('p', 's', 1000, 32, 'sha512').toString('hex'), await later('pbkdf2', 'p', 's', 1000, 32, 'sha512')],
       scrypt: [crypto.scryptSync('p', 's', 32, { N: 1024 }).toString('hex'), await later('scrypt', 'p', 's', 32, { N: 1024 }), await later('scrypt', 'p', 's', 16)],
       hkdf: [Buffer.from(crypto.hkdfSync('sha256', 'key', 'salt', 'info', 40)).toString('hex'), await later('hkdf', 'sha256', 'key', 'salt', 'info', 40)],
       sizes: [crypto.randomInt(5) < 5, crypto.randomFillSync(new Uint8Array(4)).length] }`,
    { secret },
  )) as Record<string, unknown>
  const key = Buffer.from(secret, 'base64')
  const cipher = crypto.createCipheriv('aes-256-gcm', key, Buffer.alloc(12, 7))
  cipher.setAAD(Buffer.from('about'))
  const sealed = cipher.update(data, 'utf8', 'base64') + cipher.final('base64')
  const cbc = crypto.createCipheriv('aes-256-cbc', key, Buffer.alloc(16))
  const pbkdf2 = crypto.pbkdf2Sync('p', 's', 1000, 32, 'sha512').toString('hex')
  const scrypt = crypto.scryptSync('p', 's', 32, { N: 1024 }).toString('hex')
  const hkdf = Buffer.from(crypto.hkdfSync('sha256', 'key', 'salt', 'info', 40)).toString('hex')
  t.same(made, {
    sealed,
    tag: cipher.getAuthTag().toString('hex'),
    cbc: cbc.update(data, 'utf8', 'hex') + cbc.final('hex'),
    back: data,
    refused: 'Unsupported state or unable to authenticate data',
    pbkdf2: [pbkdf2, pbkdf2],
    scrypt: [scrypt, scrypt, crypto.scryptSync('p', 's', 16).toString('hex')],
    hkdf: [hkdf, hkdf],
    sizes: [true, 4],
  })
  const box = crypto.publicEncrypt({ key: rsa.publicKey, oaepHash: 'sha256' }, Buffer.from(data))
  const opened = `return crypto.privateDecrypt({ key: keys.rsa.own, oaepHash: 'sha256' }, Buffer.from(more.box, 'base64')).toString()`
  t.equal(await runForAnswer(opened, { box: box.toString('base64') }), data)
})

const modes: Readonly<Record<string, string>> = {
  'aes-128-cbc': `16, 16`,
  'aes-192-ecb': `24, 0`,
  'aes-256-ctr': `32, 16`,
  'aes-256-gcm': `32, 12`,
  'aes-128-gcm': `16, 16`,
  'chacha20-poly1305': `32, 12, { authTagLength: 16 }`,
}

for (const [name, sizes] of Object.entries(modes)) {
  t.test(`returns the output of ${name} piece by piece, as Node does`, async (t) => {
    const body = `
      const open = (isDecrypt, isPadded, keyLength, ivLength, options) => {
        const key = Buffer.alloc(keyLength, 5), iv = ivLength === 0 ? null : Buffer.alloc(ivLength, 255)
        const made = crypto[isDecrypt ? 'createDecipheriv' : 'createCipheriv']('${name}', key, iv, options)
        if (!isPadded) made.setAutoPadding(false)
        return made
      }
      const isSealed = /gcm|poly/.test('${name}')
      const results = []
      for (const [lengths, isPadded] of [[[1, 15, 16, 0, 33, 47, 7], true], [[16, 32], false], [[3], true], [[], true]]) {
        const cipher = open(false, isPadded, ${sizes})
        if (isSealed) cipher.setAAD(Buffer.from('about'))
        const pieces = lengths.map((length) => cipher.update(Buffer.alloc(length, length)))
        pieces.push(cipher.final())
        const decipher = open(true, isPadded, ${sizes})
        if (isSealed) decipher.setAAD(Buffer.from('about')).setAuthTag(cipher.getAuthTag())
        const all = Buffer.concat(pieces)
        const back = [all.subarray(0, 5), all.subarray(5, 32), all.subarray(32)].map((part) => decipher.update(part))
        back.push(decipher.final())
        results.push(pieces.map((piece) => piece.toString('hex')), back.map((piece) => piece.toString('hex')),
          isSealed ? cipher.getAuthTag().toString('hex') : '')
      }
      const texts = open(false, true, ${sizes})
      const base64 = texts.update('aé', 'utf8', 'base64') + texts.update('b', 'utf8', 'base64') + texts.final('base64')
      const opened = open(true, true, ${sizes})
      if (isSealed) opened.setAuthTag(texts.getAuthTag())
      const bytes = Buffer.from(base64, 'base64')
      const text = opened.update(bytes.subarray(0, 2), undefined, 'utf8') + opened.update(bytes.subarray(2), undefined, 'utf8') + opened.final('utf8')
      return [results, base64, text]`
    const here = new Function('crypto', body)
    t.same(await runForAnswer(body), here(crypto))
  })
}

t.test('accepts the authentication tags that Node accepts', async (t) => {
  const body = `
    const key = Buffer.alloc(32, 5), iv = Buffer.alloc(12, 7)
    const attempt = (make) => { try { return make() } catch ({ message, code }) { return [message, code ?? ''] } }
    const open = (name, authTagLength, tag) => attempt(() => {
      const options = authTagLength === undefined ? undefined : { authTagLength }
      const decipher = crypto.createDecipheriv(name, key, iv, options)
      decipher.setAuthTag(tag)
      return decipher.update('', 'utf8', 'hex') + decipher.final('hex')
    })
    const results = []
    for (const name of ['aes-256-gcm', 'chacha20-poly1305']) {
      const cipher = crypto.createCipheriv(name, key, iv, { authTagLength: 16 })
      cipher.final()
      const tag = cipher.getAuthTag()
      for (const authTagLength of [undefined, 16, 12]) {
        for (const length of [0, 1, 4, 8, 11, 12, 15, 16]) {
          results.push([name, authTagLength ?? 0, length, open(name, authTagLength, tag.subarray(0, length))])
        }
      }
    }
    results.push(attempt(() => crypto.createDecipheriv('aes-256-gcm', key, iv).final('hex')))
    return results`
  const here = new Function('crypto', body)
  t.same(await runForAnswer(body), JSON.parse(JSON.stringify(here(crypto))))
})

const subtleBodies: Readonly<Record<string, string>> = {
  'HMAC of an imported key': `
    const key = await subtle.importKey('raw', bytes('secret'), { name: 'HMAC', hash: 'SHA-256' }, false, ['sign', 'verify'])
    const signature = await subtle.sign('HMAC', key, bytes(data))
    return [hex(signature), await subtle.verify('HMAC', key, signature, bytes(data)), await subtle.verify('HMAC', key, signature, bytes('x'))]`,
  'RSASSA-PKCS1-v1_5': `
    const own = await subtle.importKey('pkcs8', der(keys.rsa.own), { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256' }, true, ['sign'])
    const open = await subtle.importKey('spki', der(keys.rsa.open), { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256' }, true, ['verify'])
    const signature = await subtle.sign('RSASSA-PKCS1-v1_5', own, bytes(data))
    return [hex(signature), await subtle.verify('RSASSA-PKCS1-v1_5', open, signature, bytes(data)), own.algorithm.modulusLength, (await subtle.exportKey('jwk', open)).n]`,
  'RSA-PSS and ECDSA': `
    const pss = { name: 'RSA-PSS', hash: 'SHA-384', saltLength: 48 }
    const own = await subtle.importKey('pkcs8', der(keys.rsa.own), pss, false, ['sign'])
    const open = await subtle.importKey('spki', der(keys.rsa.open), pss, false, ['verify'])
    const ecdsa = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' }
    const ecOwn = await subtle.importKey('pkcs8', der(keys.ec.own), ecdsa, false, ['sign'])
    const ecOpen = await subtle.importKey('spki', der(keys.ec.open), ecdsa, true, ['verify'])
    const again = await subtle.importKey('raw', await subtle.exportKey('raw', ecOpen), ecdsa, true, ['verify'])
    const signature = await subtle.sign(ecdsa, ecOwn, bytes(data))
    return [await subtle.verify(pss, open, await subtle.sign(pss, own, bytes(data)), bytes(data)), signature.byteLength,
      await subtle.verify(ecdsa, again, signature, bytes(data))]`,
  'Ed25519, generated and as a JWK': `
    const { privateKey, publicKey } = await subtle.generateKey('Ed25519', true, ['sign', 'verify'])
    const jwk = await subtle.exportKey('jwk', privateKey)
    const again = await subtle.importKey('jwk', jwk, 'Ed25519', false, ['sign'])
    const signature = await subtle.sign('Ed25519', again, bytes(data))
    return [await subtle.verify('Ed25519', publicKey, signature, bytes(data)), jwk.crv, privateKey.usages, publicKey.usages]`,
  'AES-GCM, AES-CBC and RSA-OAEP': `
    const iv = new Uint8Array(12).fill(3)
    const key = await subtle.importKey('raw', new Uint8Array(32).fill(9), 'AES-GCM', true, ['encrypt', 'decrypt'])
    const sealed = await subtle.encrypt({ name: 'AES-GCM', iv, additionalData: bytes('about') }, key, bytes(data))
    const short = await subtle.encrypt({ name: 'AES-GCM', iv, tagLength: 96 }, key, bytes(data))
    const cbc = await subtle.importKey('raw', new Uint8Array(16).fill(9), 'AES-CBC', true, ['encrypt'])
    const spoiled = await subtle.decrypt({ name: 'AES-GCM', iv }, key, sealed).catch((error) => error.name)
    const oaep = { name: 'RSA-OAEP', hash: 'SHA-256' }
    const open = await subtle.importKey('spki', der(keys.rsa.open), oaep, false, ['encrypt'])
    const own = await subtle.importKey('pkcs8', der(keys.rsa.own), oaep, false, ['decrypt'])
    return [hex(sealed), hex(short), text(await subtle.decrypt({ name: 'AES-GCM', iv, additionalData: bytes('about') }, key, sealed)),
      hex(await subtle.encrypt({ name: 'AES-CBC', iv: new Uint8Array(16) }, cbc, bytes(data))), spoiled,
      text(await subtle.decrypt(oaep, own, await subtle.encrypt(oaep, open, bytes(data))))]`,
  'AES-GCM of data that is too short': `
    const iv = new Uint8Array(12)
    const key = await subtle.importKey('raw', new Uint8Array(32).fill(9), 'AES-GCM', false, ['encrypt', 'decrypt'])
    const sealed = new Uint8Array(await subtle.encrypt({ name: 'AES-GCM', iv }, key, new Uint8Array(0)))
    const short = new Uint8Array(await subtle.encrypt({ name: 'AES-GCM', iv, tagLength: 32 }, key, new Uint8Array(0)))
    const open = (given, more) => subtle.decrypt({ name: 'AES-GCM', iv, ...more }, key, given).then(hex, ({ name }) => name)
    return [await open(sealed), await open(sealed.subarray(0, 12)), await open(sealed.subarray(0, 4)), await open(new Uint8Array(0)),
      await open(short), await open(short, { tagLength: 32 }), await open(short.subarray(0, 3), { tagLength: 32 })]`,
  'HKDF, PBKDF2 and ECDH': `
    const hkdf = await subtle.importKey('raw', bytes('secret'), 'HKDF', false, ['deriveBits', 'deriveKey'])
    const how = { name: 'HKDF', hash: 'SHA-256', salt: bytes('salt'), info: bytes('info') }
    const made = await subtle.deriveKey(how, hkdf, { name: 'AES-GCM', length: 256 }, true, ['encrypt'])
    const password = await subtle.importKey('raw', bytes('secret'), 'PBKDF2', false, ['deriveBits'])
    const one = await subtle.generateKey({ name: 'ECDH', namedCurve: 'P-256' }, false, ['deriveBits'])
    const two = await subtle.generateKey({ name: 'ECDH', namedCurve: 'P-256' }, false, ['deriveBits'])
    const shared = async (a, b) => hex(await subtle.deriveBits({ name: 'ECDH', public: b.publicKey }, a.privateKey, 256))
    return [hex(await subtle.deriveBits(how, hkdf, 512)), hex(await subtle.exportKey('raw', made)),
      hex(await subtle.deriveBits({ name: 'PBKDF2', hash: 'SHA-256', salt: bytes('salt'), iterations: 1000 }, password, 256)),
      await shared(one, two) === await shared(two, one)]`,
  'a use that a key does not permit': `
    const key = await subtle.importKey('raw', bytes('secret'), { name: 'HMAC', hash: 'SHA-256' }, false, ['verify'])
    const refusals = [subtle.sign('HMAC', key, bytes(data)), subtle.exportKey('raw', key), subtle.importKey('raw', bytes('x'), 'AES-GCM', true, ['encrypt']), subtle.digest('SHA-7', bytes('x'))]
    return (await Promise.allSettled(refusals)).map(({ status, reason }) => [status, reason?.name])`,
  'a key in a key': `
    const wrapping = await subtle.importKey('raw', new Uint8Array(32).fill(9), 'AES-GCM', false, ['wrapKey', 'unwrapKey'])
    const inner = await subtle.importKey('raw', new Uint8Array(16).fill(1), 'AES-CBC', true, ['encrypt'])
    const how = { name: 'AES-GCM', iv: new Uint8Array(12) }
    const wrapped = await subtle.wrapKey('raw', inner, wrapping, how)
    const again = await subtle.unwrapKey('raw', wrapped, wrapping, how, 'AES-CBC', true, ['encrypt'])
    return [hex(wrapped), hex(await subtle.exportKey('raw', again))]`,
}
const helpers = `const { subtle } = globalThis.crypto
  const bytes = (text) => new TextEncoder().encode(text), text = (given) => new TextDecoder().decode(given)
  const hex = (given) => Buffer.from(given).toString('hex')
  const der = (pem) => Buffer.from(pem.replace(/-----[^-]+-----/g, ''), 'base64')`

for (const [name, body] of Object.entries(subtleBodies)) {
  t.test(`matches Web Crypto of Node: ${name}`, async (t) => {
    const here = new Function('keys', 'data', `return (async () => { ${helpers}\n${body} })()`)
    const expected = JSON.parse(JSON.stringify(await here(keys, data)))
    t.same(await runForAnswer(`${helpers}\n${body}`), expected)
  })
}

t.test('limits executor calls of a bot and counts them as its CPU time', async (t) => {
  const big = crypto.generateKeyPairSync('rsa', { modulusLength: 4104 })
  const own = crypto.createPrivateKey(keys.rsa?.own ?? '')
  const locked = own.export({
    format: 'pem',
    type: 'pkcs8',
    cipher: 'aes-128-cbc',
    passphrase: 'x',
  })
  const dsa = crypto.generateKeyPairSync('dsa', { modulusLength: 1024, divisorLength: 160 })
  const refusals = await runForAnswer(
    `const refused = (make) => { try { return String(make()) } catch (error) { return error.message } }
     return [
       refused(() => crypto.pbkdf2Sync('p', 's', 2 ** 31 - 1, 32, 'sha512')),
       refused(() => crypto.pbkdf2Sync('p', 's', 1000, 2 ** 30, 'sha512')),
       refused(() => crypto.pbkdf2Sync('p', 's', NaN, 32, 'sha512')),
       refused(() => crypto.scryptSync('p', 's', 32, { N: 2 ** 20, r: 8 })),
       refused(() => crypto.scryptSync('p', 's', 32, { N: 2, r: 1, p: 2 ** 29 })),
       refused(() => crypto.generateKeyPairSync('rsa', { modulusLength: 16384 })),
       refused(() => crypto.generateKeyPairSync('dh', { primeLength: 4096 })),
       refused(() => crypto.createPrivateKey(more.big)),
       refused(() => crypto.createPrivateKey({ key: more.locked, passphrase: 'x' })),
       refused(() => crypto.createPrivateKey(more.locked)),
       refused(() => crypto.createPrivateKey(more.dsa)),
       refused(() => crypto.createPrivateKey('x'.repeat(100_000))),
       refused(() => crypto.createSign('md5').update('x').sign(keys.rsa.own)),
       refused(() => crypto.createCipheriv('rc4', 'x', null).final()),
       refused(() => crypto.createHash('sha256').update(Buffer.alloc(6_500_000)).digest()),
       await new Promise((resolve) => crypto.pbkdf2('p', 's', 2 ** 31 - 1, 32, 'sha512', (error) => resolve(error.message))),
       await new Promise((resolve) => crypto.generateKeyPair('rsa', { modulusLength: 8192 }, (error) => resolve(error.message))),
     ]`,
    {
      big: pem(big.privateKey, 'pkcs8'),
      locked,
      dsa: pem(dsa.privateKey, 'pkcs8'),
    },
  )
  const says = [
    'PBKDF2 may have 1000000 iterations',
    'Between 0 and 65536 bytes can be derived',
    'PBKDF2 may have 1000000 iterations',
    'scrypt may use 64 MB, and N * r * p may be 2 ** 20',
    'scrypt may use 64 MB, and N * r * p may be 2 ** 20',
    'A new RSA key may have 1024 to 2048 bits',
    'The type of the key is not supported',
    'A key may have 4096 bits',
    'Keys with a passphrase are not supported',
    'Keys with a passphrase are not supported',
    'The type of the key is not supported',
    'The key is too large',
    'Digest method not supported: md5',
    'Unknown cipher',
    'Input is too large',
    'PBKDF2 may have 1000000 iterations',
    'A new RSA key may have 1024 to 4096 bits',
  ]
  t.same(refusals, says)
})

t.test('counts executor work as CPU time of its run', async (t) => {
  const loops = {
    'at once': `for (;;) require('crypto').pbkdf2Sync('p', 's', 200_000, 20, 'sha1')`,
    later: `const { pbkdf2 } = require('crypto')
      for (;;) await new Promise((resolve) => pbkdf2('p', 's', 200_000, 20, 'sha1', resolve))`,
  }
  for (const [name, loop] of Object.entries(loops)) {
    const code = `exports.handler = async () => { ${loop} }`
    const cpuMs = 1000
    const given = { libraries: requiredLibraries(code), limits: { ...limits, cpuMs } }
    const result = await run(executors, aRun(code, given))
    t.equal(result.failure, 'cpu', name)
    t.ok(result.cpuMs > cpuMs, `${name}: ${result.cpuMs}`)
  }
})

t.test('rejects a key of another run', async (t) => {
  const makes = `globalThis.kept = crypto.createPrivateKey(keys.ec.own)
    const names = (value) => Object.fromEntries(Reflect.ownKeys(value).map((name) => [String(name), value[name]]))
    return { own: names(kept), kind: kept.type, text: JSON.stringify(kept) }`
  const made = (await runForAnswer(makes)) as { own: object; kind: string; text: string }
  t.equal(made.kind, 'private')
  // Reuses the visible parts of the first run's key, with the prototype of one of this run.
  const forged = `const like = Object.getPrototypeOf(crypto.createPrivateKey(keys.ec.own))
    const tries = [more.made.own, JSON.parse(more.made.text ?? '{}'), Object.assign(Object.create(like), more.made.own),
      { type: 'private' }, 0, 1, '1']
    return [typeof globalThis.kept, ...tries.map((key) => {
      try { return crypto.sign('sha256', Buffer.from('x'), key).length } catch { return 'refused' }
    })]`
  const [kept, ...answers] = (await runForAnswer(forged, { made })) as string[]
  t.equal(kept, 'undefined')
  t.same(new Set(answers), new Set(['refused']))
})
