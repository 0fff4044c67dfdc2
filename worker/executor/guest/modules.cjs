/** Modules available to bots. */

/** A module that is also its own default export, as Node's are. */
function withDefault(module) {
  return Object.assign(module, { default: module })
}

function read(file, names) {
  const module = require(file)
  return withDefault(Object.fromEntries(names.map((name) => [name, module[name]])))
}

/** Reads the globals now, so that a bot may replace them. */
function timers() {
  const { clearImmediate, clearInterval, clearTimeout, setImmediate, setInterval, setTimeout } =
    globalThis
  const own = { clearImmediate, clearInterval, clearTimeout, setImmediate, setInterval, setTimeout }
  return withDefault({ ...own, promises: resolve('timers/promises') })
}

function timersPromises() {
  return withDefault({
    setImmediate: (value) => new Promise((resolve) => setImmediate(resolve, value)),
    setTimeout: (delay, value) => new Promise((resolve) => setTimeout(resolve, delay, value)),
  })
}

const builders = {
  '@medplum/core': () => require('./medplum/core.cjs'),
  '@medplum/fhirtypes': () => ({}),
  buffer: () => {
    const { Blob, File } = require('./web/blob.cjs')
    const { atob, btoa } = require('./web/encoding.cjs')
    return withDefault({ ...require('./web/buffer.cjs'), Blob, File, atob, btoa })
  },
  crypto: () =>
    read('./web/crypto.cjs', [
      'createHash',
      'createHmac',
      'randomBytes',
      'randomUUID',
      'timingSafeEqual',
    ]),
  'node-fetch': () => {
    const { Headers, Request, Response, fetch } = require('./web/fetch.cjs')
    const exported = { Headers, Request, Response, default: fetch }
    return Object.assign((...given) => fetch(...given), exported)
  },
  process: () => require('./process.cjs').process,
  querystring: () => {
    const { parse, stringify } = require('./web/query.cjs')
    return withDefault({
      decode: parse,
      encode: stringify,
      escape: encodeURIComponent,
      parse,
      stringify,
      unescape: decodeURIComponent,
    })
  },
  timers,
  'timers/promises': timersPromises,
  url: () => read('./web/url.cjs', ['URL', 'URLSearchParams']),
  util: () => read('./web/encoding.cjs', ['TextDecoder', 'TextEncoder']),
}

const parts = {
  'assert/strict': ['assert', 'strict'],
  https: ['http', 'https'],
  'path/posix': ['path', 'posix'],
  'stream/promises': ['stream', 'promises'],
  'util/types': ['util', 'types'],
}

const nodeModules = [
  'buffer',
  'crypto',
  'process',
  'querystring',
  'timers',
  'timers/promises',
  'url',
  'util',
]
const libraries = new Map()
const loaded = new Map()

function provide(name, make) {
  libraries.set(name, make)
  if (name === '@medplum/core') resolve(name)
}

function has(name) {
  const plain = withoutPrefix(name)
  if (libraries.has(parts[plain]?.[0] ?? plain)) return true
  return plain === name ? Object.hasOwn(builders, name) : nodeModules.includes(plain)
}

function withoutPrefix(name) {
  return String(name).replace(/^node:/, '')
}

function missing(name) {
  // Bundles look for Node's code.
  return Object.assign(new Error(`Cannot find module '${name}'`), { code: 'MODULE_NOT_FOUND' })
}

/** Stubs a missing module: each wanted name throws on use. Made before any bot code runs. */
function absent(name, wanted) {
  const fail = () => {
    throw missing(name)
  }
  const proxy = new Proxy(function absent() {}, {
    get: fail,
    apply: fail,
    construct: fail,
    set: fail,
  })
  const found = { __proto__: null, default: proxy }
  for (const one of wanted.split(' ')) if (one !== '') found[one] = proxy
  return found
}

function resolve(name) {
  if (!has(name)) throw missing(name)
  const plain = withoutPrefix(name)
  if (!loaded.has(plain)) loaded.set(plain, build(plain))
  return loaded.get(plain)
}

function libraryNamed(name) {
  if (!loaded.has(name)) loaded.set(name, libraries.get(name)?.())
  return loaded.get(name)
}

function build(name) {
  const part = parts[name]
  if (part !== undefined) return resolve(part[0])[part[1]]
  const own = Object.hasOwn(builders, name) ? builders[name]() : undefined
  const library = libraries.get(name)?.()
  if (own === undefined || library === undefined) return own ?? library
  if (name !== '@medplum/core') return withDefault(Object.assign(library, own))
  // Own names win: the glue must recognise clients and messages.
  for (const key of Object.keys(library)) if (!(key in own)) own[key] = library[key]
  return own
}

module.exports = {
  names: Object.keys(builders),
  nodeModules,
  has,
  absent,
  libraryNamed,
  provide,
  resolve,
}
