/** Headers of the fetch standard: lower-case names, values joined by a comma. https://fetch.spec.whatwg.org/#headers-class */

const tokenName = /^[!#$%&'*+\-.^_`|~\dA-Za-z]+$/

function headerName(name) {
  const text = String(name)
  if (!tokenName.test(text)) throw new TypeError(`Invalid header name "${text}"`)
  return text.toLowerCase()
}

function headerValue(value) {
  const text = String(value).replace(/^[\t\n\r ]+|[\t\n\r ]+$/g, '')
  if (/[\0\n\r]/.test(text)) throw new TypeError('Invalid header value')
  return text
}

class Headers {
  #values = new Map()

  constructor(init) {
    if (init === undefined || init === null) return
    const pairs = typeof init[Symbol.iterator] === 'function' ? init : Object.entries(init)
    for (const [name, value] of pairs) this.append(name, value)
  }

  append(name, value) {
    const key = headerName(name)
    const held = this.#values.get(key)
    const text = headerValue(value)
    this.#values.set(key, held === undefined ? text : `${held}, ${text}`)
  }

  delete(name) {
    this.#values.delete(headerName(name))
  }

  get(name) {
    return this.#values.get(headerName(name)) ?? null
  }

  has(name) {
    return this.#values.has(headerName(name))
  }

  set(name, value) {
    this.#values.set(headerName(name), headerValue(value))
  }

  getSetCookie() {
    const held = this.get('set-cookie')
    return held === null ? [] : [held]
  }

  forEach(callback, self) {
    for (const [name, value] of this) callback.call(self, value, name, this)
  }

  *entries() {
    yield* [...this.#values].sort(([left], [right]) => (left < right ? -1 : 1))
  }

  *keys() {
    for (const [name] of this) yield name
  }

  *values() {
    for (const [, value] of this) yield value
  }

  [Symbol.iterator]() {
    return this.entries()
  }
}

module.exports = { Headers }
