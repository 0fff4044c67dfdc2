/** Number methods of Node's Buffer, such as `readInt32LE`. */

const { toBytes } = require('./encoding.cjs')

/** Name in Buffer, name in DataView, bytes. */
const kinds = [
  ['UInt8', 'Uint8', 1],
  ['Int8', 'Int8', 1],
  ['UInt16', 'Uint16', 2],
  ['Int16', 'Int16', 2],
  ['UInt32', 'Uint32', 4],
  ['Int32', 'Int32', 4],
  ['Float', 'Float32', 4],
  ['Double', 'Float64', 8],
  ['BigInt64', 'BigInt64', 8],
  ['BigUInt64', 'BigUint64', 8],
]

function outOfRange(name, value) {
  const text = `The value of "${name}" is out of range. Received ${String(value)}`
  return Object.assign(new RangeError(text), { code: 'ERR_OUT_OF_RANGE' })
}

function viewAt(buffer, offset, size) {
  const isInside = Number.isInteger(offset) && offset >= 0 && offset + size <= buffer.length
  if (!isInside) throw outOfRange('offset', offset)
  return new DataView(buffer.buffer, buffer.byteOffset + offset, size)
}

function requireFit(value, bits, isSigned) {
  const most = 2 ** (isSigned ? bits - 1 : bits) - 1
  if (value > most || value < (isSigned ? -most - 1 : 0)) throw outOfRange('value', value)
}

function addFixed(prototype, [name, inView, size], suffix) {
  const isLittle = suffix === 'LE'
  const isBig = name.startsWith('Big')
  prototype[`read${name}${suffix}`] = function (offset = 0) {
    return viewAt(this, offset, size)[`get${inView}`](0, isLittle)
  }
  prototype[`write${name}${suffix}`] = function (value, offset = 0) {
    if (name.includes('Int') && !isBig) requireFit(value, 8 * size, !name.startsWith('U'))
    viewAt(this, offset, size)[`set${inView}`](0, value, isLittle)
    return offset + size
  }
}

/** Methods with a length argument, up to 6 bytes. */
function addVariable(prototype, isSigned, suffix) {
  const name = `${isSigned ? 'Int' : 'UInt'}${suffix}`
  const inOrder = (bytes) => (suffix === 'BE' ? bytes : bytes.slice().reverse())
  prototype[`read${name}`] = function (offset, size) {
    const { byteOffset } = viewAt(this, offset, size)
    const bytes = inOrder(new Uint8Array(this.buffer, byteOffset, size))
    const value = bytes.reduce((sum, byte) => sum * 256 + byte, 0)
    return isSigned && value >= 2 ** (8 * size - 1) ? value - 2 ** (8 * size) : value
  }
  prototype[`write${name}`] = function (value, offset, size) {
    requireFit(value, 8 * size, isSigned)
    viewAt(this, offset, size)
    let rest = value < 0 ? value + 2 ** (8 * size) : value
    const bytes = new Uint8Array(size)
    for (let at = size - 1; at >= 0; at--) {
      bytes[at] = rest % 256
      rest = Math.floor(rest / 256)
    }
    this.set(inOrder(bytes), offset)
    return offset + size
  }
}

function addSwap(prototype, size) {
  prototype[`swap${8 * size}`] = function () {
    if (this.length % size !== 0) {
      throw new RangeError(`Buffer size must be a multiple of ${8 * size}-bits`)
    }
    const bytes = toBytes(this)
    for (let at = 0; at < bytes.length; at += size) bytes.subarray(at, at + size).reverse()
    return this
  }
}

exports.addNumbers = function addNumbers(prototype) {
  for (const kind of kinds) {
    const suffixes = kind[2] === 1 ? [''] : ['LE', 'BE']
    for (const suffix of suffixes) addFixed(prototype, kind, suffix)
  }
  for (const suffix of ['LE', 'BE']) {
    for (const isSigned of [false, true]) addVariable(prototype, isSigned, suffix)
  }
  for (const size of [2, 4, 8]) addSwap(prototype, size)
  for (const name of Object.keys(prototype)) {
    const alias = name.replace('UInt', 'Uint')
    if (alias !== name) prototype[alias] = prototype[name]
  }
}
