/** fetch over the worker; bodies of responses can be read as streams. https://fetch.spec.whatwg.org/ */

const { Blob } = require('./blob.cjs')
const { FormData, encodeFormData } = require('./form-data.cjs')
const { Headers } = require('./headers.cjs')
const { ReadableStream } = require('./streams.cjs')
const { URLSearchParams } = require('./url.cjs')
const { base64Decode, base64Encode, toBytes, utf8Decode, utf8Encode } = require('./encoding.cjs')

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
  if (body instanceof ArrayBuffer || ArrayBuffer.isView(body)) return { bytes: toBytes(body) }
  if (body instanceof ReadableStream) return { bytes: await collect(body) }
  if (body instanceof RemoteBody) return { bytes: await body.whole() }
  return { bytes: utf8Encode(body), type: 'text/plain;charset=UTF-8' }
}

async function collect(stream) {
  const chunks = []
  for await (const chunk of stream) {
    chunks.push(typeof chunk === 'string' ? utf8Encode(chunk) : toBytes(chunk))
  }
  return concatenated(chunks)
}

function concatenated(chunks) {
  if (chunks.length === 1) return chunks[0]
  const bytes = new Uint8Array(chunks.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const chunk of chunks) {
    bytes.set(chunk, at)
    at += chunk.length
  }
  return bytes
}

/** A body of which the worker has sent the beginning and holds the rest. An abort of the fetch ends it with an error. */
class RemoteBody {
  #first
  #id
  #signal
  #isDone = false

  constructor(first, id, signal) {
    this.#first = first
    this.#id = id
    this.#signal = signal
  }

  /** Undefined at the end. */
  async next() {
    if (this.#isDone) return undefined
    this.#signal?.throwIfAborted()
    const first = this.#first
    this.#first = undefined
    if (first !== undefined && first.length > 0) return first
    const { bytes, isDone } = await this.#ask({})
    this.#isDone = isDone
    return bytes.length > 0 || !isDone ? bytes : undefined
  }

  async whole() {
    this.#signal?.throwIfAborted()
    const { bytes } = await this.#ask({ isWhole: true })
    return concatenated([this.#first ?? new Uint8Array(0), bytes])
  }

  async cancel() {
    this.#isDone = true
    await this.#ask({ isCancelled: true })
  }

  async #ask(what) {
    const asked = host.call('body', JSON.stringify({ id: this.#id, ...what }))
    const text = await untilAborted(asked, this.#signal)
    const { error, body = '', isDone } = JSON.parse(text)
    if (typeof error === 'string') throw new TypeError('terminated', { cause: new Error(error) })
    return { bytes: base64Decode(body), isDone }
  }
}

function openStream(content) {
  if (content instanceof ReadableStream) return content
  if (content instanceof RemoteBody) {
    return new ReadableStream({
      async pull(controller) {
        const bytes = await content.next()
        if (bytes === undefined) controller.close()
        else if (bytes.length > 0) controller.enqueue(bytes)
      },
      cancel: () => content.cancel(),
    })
  }
  return new ReadableStream({
    async pull(controller) {
      const { bytes } = await readBody(content)
      if (bytes !== undefined && bytes.length > 0) controller.enqueue(bytes)
      controller.close()
    },
  })
}

/** The body of Request and Response, which can be read once. */
class Body {
  #content
  #stream
  #isRead = false

  constructor(content) {
    const isIterable = typeof content?.[Symbol.asyncIterator] === 'function'
    const isOther = isIterable && !(content instanceof ReadableStream)
    this.#content = isOther ? ReadableStream.from(content) : content
  }

  /** Returns the content of a copy: a stream is split in two. */
  static share(body) {
    const content = body.#content
    const isPieces = content instanceof ReadableStream || content instanceof RemoteBody
    if (body.#stream === undefined && !isPieces) return content
    const [own, other] = body.body.tee()
    body.#stream = own
    return other
  }

  get body() {
    if (this.#content === undefined || this.#content === null) return null
    this.#stream ??= openStream(this.#content)
    return this.#stream
  }

  get bodyUsed() {
    return this.#isRead || this.#stream?.locked === true
  }

  async #read() {
    if (this.bodyUsed) throw new TypeError('Body is unusable: Body has already been read')
    this.#isRead = true
    const { bytes } = await readBody(this.#stream ?? this.#content)
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
    const body = init.body ?? (source && Body.share(source))
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
    return new Response(Body.share(this), this)
  }
}

/** Rejects when the signal aborts; a later answer is dropped. */
async function untilAborted(promise, signal) {
  if (signal === undefined || signal === null) return promise
  const aborted = Promise.withResolvers()
  const onAbort = () => aborted.reject(signal.reason)
  signal.addEventListener('abort', onAbort)
  try {
    return await Promise.race([promise, aborted.promise])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}

let lastFetch = 0
let cancelled = []

/** Sends a request to the worker. `cancel` drops it there, also while it waits or once its body has begun. */
function sendFetch(message) {
  const id = ++lastFetch
  const answer = host.call('fetch', JSON.stringify({ ...message, id }))
  return { answer, cancel: () => cancelFetch(id) }
}

/** Cancels those of one signal together: the end of the first would let the next one that waits begin. */
function cancelFetch(id) {
  cancelled.push(id)
  if (cancelled.length > 1) return
  void Promise.resolve().then(() => {
    const fetches = cancelled
    cancelled = []
    host.call('body', JSON.stringify({ fetches, isCancelled: true })).catch(() => {})
  })
}

/** Network errors and refusals are a TypeError with a cause. */
async function fetch(input, init) {
  const request = new Request(input, init)
  const { signal } = request
  const { bytes, type } = await readBody(Body.share(request))
  signal?.throwIfAborted()
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
  const { answer: answering, cancel } = sendFetch(message)
  signal?.addEventListener('abort', cancel)
  const answer = JSON.parse(await untilAborted(answering, signal))
  // The worker knows only fetches with an outstanding body.
  if (answer.rest === undefined) signal?.removeEventListener('abort', cancel)
  if (typeof answer.error === 'string') {
    throw new TypeError('fetch failed', { cause: new Error(answer.error) })
  }
  const first = base64Decode(answer.body ?? '')
  if (answer.rest === undefined) return new Response(first, answer)
  return new Response(new RemoteBody(first, answer.rest, signal), answer)
}

module.exports = { Headers, Request, Response, fetch, sendFetch }
