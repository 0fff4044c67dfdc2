/** Node's `zlib`: the package was made when the constants were names of the module alone. */

const zlib = require('browserify-zlib')

const constants = Object.entries(zlib).filter(([name]) => /^Z_[A-Z]/.test(name))

module.exports = { ...zlib, constants: Object.fromEntries(constants) }
