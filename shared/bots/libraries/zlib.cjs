/** Node's `zlib`: the package predates the `constants` object. */

const zlib = require('browserify-zlib')

const constants = Object.entries(zlib).filter(([name]) => /^Z_[A-Z]/.test(name))

module.exports = { ...zlib, constants: Object.fromEntries(constants) }
