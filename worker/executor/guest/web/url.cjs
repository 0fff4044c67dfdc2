/** URL over the executor's own parser, and URLSearchParams. https://url.spec.whatwg.org/ */

const { utf8Decode, utf8Encode } = require('./encoding.cjs')

const hidden = Symbol('parts')

/** https://url.spec.whatwg.org/#concept-urlencoded-serializer */
function percentEncode(text) {
  const escaped = (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`
  return encodeURIComponent(text.toWellFormed())
    .replace(/[!'()~]/g, escaped)
    .replaceAll('%20', '+')
}

function percentDecode(text) {
  const spaced = text.replaceAll('+', ' ')
  if (!spaced.includes('%')) return spaced
  const source = utf8Encode(spaced)
  const bytes = []
  for (let at = 0; at < source.length; at++) {
    const hex = source[at] === 37 ? String.fromCharCode(...source.slice(at + 1, at + 3)) : ''
    if (/^[0-9a-f]{2}$/i.test(hex)) {
      bytes.push(Number.parseInt(hex, 16))
      at += 2
    } else {
      bytes.push(source[at])
    }
  }
  return utf8Decode(Uint8Array.from(bytes))
}

function parsePairs(text) {
  const parts = text.split('&').filter((part) => part !== '')
  return parts.map((part) => {
    const at = part.indexOf('=')
    if (at < 0) return [percentDecode(part), '']
    return [percentDecode(part.slice(0, at)), percentDecode(part.slice(at + 1))]
  })
}

function readPairs(init) {
  if (typeof init !== 'object' || init === null) return parsePairs(String(init).replace(/^\?/, ''))
  const isIterable = typeof init[Symbol.iterator] === 'function'
  const pairs = [...(isIterable ? init : Object.entries(init))].map((pair) => [...pair].map(String))
  if (pairs.some((pair) => pair.length !== 2)) {
    throw new TypeError('Each query pair must be an iterable [name, value] tuple')
  }
  return pairs
}

class URLSearchParams {
  constructor(init = '') {
    this[hidden] = { pairs: readPairs(init), changed: undefined }
    Object.defineProperty(this, hidden, { enumerable: false })
  }

  get size() {
    return this[hidden].pairs.length
  }

  append(name, value) {
    change(this, [...this[hidden].pairs, [String(name), String(value)]])
  }

  delete(name, value) {
    const isGone = ([key, held]) =>
      key === String(name) && (value === undefined || held === String(value))
    change(
      this,
      this[hidden].pairs.filter((pair) => !isGone(pair)),
    )
  }

  get(name) {
    return this[hidden].pairs.find(([key]) => key === String(name))?.[1] ?? null
  }

  getAll(name) {
    return this[hidden].pairs.filter(([key]) => key === String(name)).map(([, value]) => value)
  }

  has(name, value) {
    const values = this.getAll(name)
    return value === undefined ? values.length > 0 : values.includes(String(value))
  }

  set(name, value) {
    const key = String(name)
    const at = this[hidden].pairs.findIndex(([found]) => found === key)
    if (at < 0) return this.append(key, value)
    const pairs = this[hidden].pairs.filter(([found], index) => found !== key || index === at)
    pairs[pairs.findIndex(([found]) => found === key)] = [key, String(value)]
    return change(this, pairs)
  }

  sort() {
    const byName = ([left], [right]) => (left < right ? -1 : left > right ? 1 : 0)
    change(this, this[hidden].pairs.toSorted(byName))
  }

  forEach(callback, self) {
    for (const [name, value] of this) callback.call(self, value, name, this)
  }

  *keys() {
    for (const [name] of this) yield name
  }

  *values() {
    for (const [, value] of this) yield value
  }

  *entries() {
    for (const pair of this[hidden].pairs) yield [...pair]
  }

  [Symbol.iterator]() {
    return this.entries()
  }

  toString() {
    return this[hidden].pairs
      .map(([name, value]) => `${percentEncode(name)}=${percentEncode(value)}`)
      .join('&')
  }
}

/** Replaces the pairs and updates the owning URL. */
function change(params, pairs) {
  params[hidden].pairs = pairs
  params[hidden].changed?.(params.toString())
}

function ask(kind, request) {
  return JSON.parse(host.sync(kind, JSON.stringify(request)))
}

function parse(input, base) {
  return ask('url', { input: String(input), ...(base === undefined ? {} : { base: String(base) }) })
}

class URL {
  constructor(input, base) {
    const parts = parse(input, base)
    if (parts.error !== undefined) {
      throw Object.assign(new TypeError('Invalid URL'), {
        code: 'ERR_INVALID_URL',
        input: String(input),
      })
    }
    Object.defineProperty(this, hidden, { value: { parts, params: undefined } })
  }

  static canParse(input, base) {
    return parse(input, base).error === undefined
  }

  static parse(input, base) {
    return URL.canParse(input, base) ? new URL(input, base) : null
  }

  get origin() {
    return this[hidden].parts.origin
  }

  /** Linked to the URL: changes show in both. */
  get searchParams() {
    const own = this[hidden]
    if (own.params === undefined) {
      own.params = new URLSearchParams(own.parts.search)
      own.params[hidden].changed = (text) => assign(this, 'search', text)
    }
    return own.params
  }

  toString() {
    return this.href
  }

  toJSON() {
    return this.href
  }
}

function assign(url, property, value) {
  const own = url[hidden]
  const answer = ask('url-set', { href: own.parts.href, property, value: String(value) })
  if (answer.error === undefined) own.parts = answer
  else if (property === 'href') throw new TypeError('Invalid URL')
}

for (const property of [
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
]) {
  Object.defineProperty(URL.prototype, property, {
    configurable: true,
    enumerable: true,
    get() {
      return this[hidden].parts[property]
    },
    set(value) {
      assign(this, property, value)
      const { params, parts } = this[hidden]
      if (params !== undefined) params[hidden].pairs = parsePairs(parts.search.replace(/^\?/, ''))
    },
  })
}

module.exports = { URL, URLSearchParams }
