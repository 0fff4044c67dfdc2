/** The modules that a bot may import: everything else does not exist. */

/** A module that is also its own default export, as Node's are. */
function withDefault(module) {
  return Object.assign(module, { default: module })
}

function read(file, names) {
  const module = require(file)
  return withDefault(Object.fromEntries(names.map((name) => [name, module[name]])))
}

const builders = {
  '@medplum/core': () => require('./medplum/core.cjs'),
  '@medplum/fhirtypes': () => ({}),
  buffer: () => read('./web/buffer.cjs', ['Buffer']),
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
  url: () => read('./web/url.cjs', ['URL', 'URLSearchParams']),
  util: () => read('./web/encoding.cjs', ['TextDecoder', 'TextEncoder']),
}

const nodeModules = ['buffer', 'crypto', 'querystring', 'url', 'util']
const loaded = new Map()

function has(name) {
  const plain = String(name).replace(/^node:/, '')
  return plain === name ? Object.hasOwn(builders, name) : nodeModules.includes(plain)
}

function missing(name) {
  // As Node names it: bundles look for this code.
  return Object.assign(new Error(`Cannot find module '${name}'`), { code: 'MODULE_NOT_FOUND' })
}

/** Stands for a module that is not there: each wanted name throws when it is used. Made before any code of the bot runs. */
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

/** The module of that name; the same object each time. */
function resolve(name) {
  if (!has(name)) throw missing(name)
  const plain = String(name).replace(/^node:/, '')
  if (!loaded.has(plain)) loaded.set(plain, builders[plain]())
  return loaded.get(plain)
}

module.exports = { names: Object.keys(builders), nodeModules, has, absent, resolve }
