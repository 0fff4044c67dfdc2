/** Keys derived from passwords or other keys. */
const { Buffer } = require('buffer')
const { ask, askLater, toBase64 } = require('./keys.cjs')

function pbkdf2Question(password, salt, iterations, length, digest) {
  return { password: toBase64(password), salt: toBase64(salt), iterations, length, digest }
}

function pbkdf2Sync(...given) {
  return Buffer.from(ask('pbkdf2', pbkdf2Question(...given)), 'base64')
}

function pbkdf2(password, salt, iterations, length, digest, done) {
  derivedLater('pbkdf2', pbkdf2Question(password, salt, iterations, length, digest), done)
}

function scryptQuestion(password, salt, length, options = {}) {
  const { N = options.cost, r = options.blockSize, p = options.parallelization } = options
  return { password: toBase64(password), salt: toBase64(salt), length, N, r, p }
}

function scryptSync(...given) {
  return Buffer.from(ask('scrypt', scryptQuestion(...given)), 'base64')
}

function scrypt(password, salt, length, ...others) {
  const [options, done] = others.length > 1 ? others : [{}, others[0]]
  derivedLater('scrypt', scryptQuestion(password, salt, length, options), done)
}

function derivedLater(kind, question, done) {
  askLater(kind, question).then(
    (answer) => done(null, Buffer.from(answer, 'base64')),
    (error) => done(error),
  )
}

function hkdfSync(digest, key, salt, info, length) {
  const question = { digest, key: toBase64(key), salt: toBase64(salt), info: toBase64(info), length }
  const bytes = Buffer.from(ask('hkdf', question), 'base64')
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)
}

function hkdf(digest, key, salt, info, length, done) {
  queueMicrotask(() => {
    let derived
    try {
      derived = hkdfSync(digest, key, salt, info, length)
    } catch (error) {
      done(error)
      return
    }
    done(null, derived)
  })
}

module.exports = { hkdf, hkdfSync, pbkdf2, pbkdf2Sync, scrypt, scryptSync }
