/** Node's `crypto` and Web Crypto beyond digests and randomness, which the guest has built in. */
const { KeyObject, createPrivateKey, createPublicKey, createSecretKey } = require('./keys.cjs')
const { diffieHellman, generateKeyPair, generateKeyPairSync } = require('./keys.cjs')
const guest = require('./crypto.cjs')
const { subtle } = require('./subtle.cjs')

const { getRandomValues, randomBytes, randomUUID } = guest

function randomFillSync(target) {
  return getRandomValues(target)
}

/** From `low`, or 0, up to but excluding `high`. */
function randomInt(first, second) {
  const [low, high] = typeof second === 'number' ? [first, second] : [0, first]
  const range = high - low
  if (!(range > 0 && range <= 2 ** 48)) throw new RangeError('The range must be 1 to 2 ** 48')
  const limit = 2 ** 48 - (2 ** 48 % range)
  for (;;) {
    const drawn = randomBytes(6).readUIntBE(0, 6)
    if (drawn < limit) return low + (drawn % range)
  }
}

module.exports = {
  KeyObject,
  createPrivateKey,
  createPublicKey,
  createSecretKey,
  diffieHellman,
  generateKeyPair,
  generateKeyPairSync,
  getHashes: () => ['sha1', 'sha224', 'sha256', 'sha384', 'sha512', 'md5'],
  getRandomValues,
  randomFillSync,
  randomInt,
  subtle,
  webcrypto: { getRandomValues, randomUUID, subtle },
  ...require('./ciphers.cjs'),
  ...require('./derive.cjs'),
  ...require('./sign.cjs'),
}
