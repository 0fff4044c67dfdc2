/** fetch over the worker, with whole bodies: nothing streams. https://fetch.spec.whatwg.org/ */

const { Blob } = require('./blob.cjs')
const { FormData, encodeFormData } = require('./form-data.cjs')
const { Headers } = require('./headers.cjs')
const { URLSearchParams } = require('./url.cjs')
const { base64Decode, base64Encode, bytesOf, utf8Decode, utf8Encode } = require('./encoding.cjs')

const methodsWithoutBody = ['GET', 'HEAD']
const commonMethods = ['DELETE', 'GET', 'HEAD', 'OPTIONS', 'POST', 'PUT', 'PATCH']

/** The bytes of a body, and the content type it brings along. */
async function readBody(body) {
  if (body === undefined || body === null) return {}
  if (body instanceof Blob) return { bytes: await body.bytes(), type: body.type || undefined }
  if (body instanceof FormData) return encodeFormData(body)
  if (body instanceof URLSearchParams) {
    const type = 'application/x-www-form-urlencoded;charset=UTF-8'
    return { bytes: utf8Encode(body.toString()), type }
  }
  if (body instanceof ArrayBuffer || ArrayBuffer.isView(body)) return { bytes: bytesOf(body) }
  return { bytes: utf8Encode(body), type: 'text/plain;charset=UTF-8' }
}

/** The body of Request and Response, which can be read once. */
class Body {
  #content
  bodyUsed = false

  constructor(content) {
    this.#content = content
  }

  get body() {
    return this.#content ?? null
  }

  async #read() {
    if (this.bodyUsed) throw new TypeError('Body is unusable: Body has already been read')
    this.bodyUsed = true
    const { bytes } = await readBody(this.#content)
    return bytes ?? new Uint8Array(0)
  }

  async arrayBuffer() {
    return (await this.#read()).slice().buffer
  }

  async bytes() {
    return (await this.#read()).slice()
  }

  async blob() {
    return new Blob([await this.#read()], { type: this.headers.get('content-type') ?? '' })
  }

  async text() {
    return utf8Decode(await this.#read())
  }

  async json() {
    return JSON.parse(await this.text())
  }

  async formData() {
    const form = new FormData()
    for (const [name, value] of new URLSearchParams(await this.text())) form.append(name, value)
    return form
  }
}

class Request extends Body {
  constructor(input, init = {}) {
    const source = input instanceof Request ? input : undefined
    const body = init.body ?? source?.body
    const method = String(init.method ?? source?.method ?? 'GET')
    super(body)
    const upper = method.toUpperCase()
    this.method = commonMethods.includes(upper) ? upper : method
    this.url = source?.url ?? String(input)
    this.headers = new Headers(init.headers ?? source?.headers)
    this.signal = init.signal ?? source?.signal
    this.redirect = init.redirect ?? source?.redirect ?? 'follow'
    if (methodsWithoutBody.includes(this.method) && body !== undefined && body !== null) {
      throw new TypeError('Request with GET/HEAD method cannot have body.')
    }
  }

  clone() {
    return new Request(this)
  }
}

class Response extends Body {
  constructor(body, { status = 200, statusText = '', headers, url = '' } = {}) {
    super(body)
    this.status = status
    this.statusText = statusText
    this.headers = new Headers(headers)
    this.url = url
    this.type = 'default'
    this.redirected = false
    if (typeof body === 'string' && !this.headers.has('content-type')) {
      this.headers.set('content-type', 'text/plain;charset=UTF-8')
    }
  }

  static json(data, init = {}) {
    const headers = new Headers(init.headers)
    if (!headers.has('content-type')) headers.set('content-type', 'application/json')
    return new Response(JSON.stringify(data), { ...init, headers })
  }

  get ok() {
    return this.status >= 200 && this.status < 300
  }

  clone() {
    return new Response(this.body, this)
  }
}

/** Rejects when the signal aborts; a later answer is dropped. */
function untilAborted(promise, signal) {
  if (signal === undefined || signal === null) return promise
  return new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason))
    promise.then(resolve, reject)
  })
}

/** Network errors and refusals are a TypeError with a cause. */
async function fetch(input, init) {
  const request = new Request(input, init)
  const { bytes, type } = await readBody(request.body)
  request.signal?.throwIfAborted()
  if (type !== undefined && !request.headers.has('content-type')) {
    request.headers.set('content-type', type)
  }
  const message = {
    url: request.url,
    method: request.method,
    headers: Object.fromEntries(request.headers),
    ...(request.redirect === 'follow' ? {} : { redirect: request.redirect }),
    ...(bytes === undefined ? {} : { body: base64Encode(bytes) }),
  }
  const text = await untilAborted(host.call('fetch', JSON.stringify(message)), request.signal)
  const answer = JSON.parse(text)
  if (typeof answer.error === 'string') {
    throw new TypeError('fetch failed', { cause: new Error(answer.error) })
  }
  return new Response(base64Decode(answer.body ?? ''), answer)
}

module.exports = { Headers, Request, Response, fetch }
