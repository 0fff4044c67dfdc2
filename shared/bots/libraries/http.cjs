/**
 * Node's HTTP client. The worker makes the request, as for `fetch`: request bodies are sent whole, and no connection
 * stays open.
 */

const { EventEmitter } = require('events')
const { Readable, Writable } = require('stream')

const STATUS_CODES = {
  200: 'OK',
  201: 'Created',
  202: 'Accepted',
  204: 'No Content',
  301: 'Moved Permanently',
  302: 'Found',
  303: 'See Other',
  304: 'Not Modified',
  307: 'Temporary Redirect',
  308: 'Permanent Redirect',
  400: 'Bad Request',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'Not Found',
  409: 'Conflict',
  410: 'Gone',
  412: 'Precondition Failed',
  422: 'Unprocessable Entity',
  429: 'Too Many Requests',
  500: 'Internal Server Error',
  502: 'Bad Gateway',
  503: 'Service Unavailable',
  504: 'Gateway Timeout',
}
const METHODS = ['DELETE', 'GET', 'HEAD', 'OPTIONS', 'PATCH', 'POST', 'PUT']

class Agent {}

function resetError(message) {
  return Object.assign(new Error(message), { code: 'ECONNRESET' })
}

class IncomingMessage extends Readable {
  /** Id of the body's outstanding parts. */
  #rest

  constructor({ status, statusText, headers, body, rest, url }) {
    super()
    const { Buffer } = require('buffer')
    this.statusCode = status
    this.statusMessage = statusText ?? STATUS_CODES[status] ?? ''
    this.httpVersion = '1.1'
    this.url = url
    // The body arrives decompressed.
    const kept = Object.entries(headers ?? {})
      .map(([name, value]) => [name.toLowerCase(), value])
      .filter(([name]) => name !== 'content-encoding' && name !== 'content-length')
    this.headers = Object.fromEntries(kept)
    this.rawHeaders = kept.flat()
    this.complete = false
    this.aborted = false
    this.#rest = rest
    if (body) this.push(Buffer.from(body, 'base64'))
    if (rest === undefined) this.#complete()
  }

  _read() {
    if (this.complete) return
    this.#ask({}).then(
      ({ bytes, isDone }) => {
        if (bytes.length > 0) this.push(bytes)
        if (isDone) this.#complete()
      },
      (error) => this.destroy(error),
    )
  }

  _destroy(error, done) {
    if (!this.complete) this.#ask({ isCancelled: true }).catch(() => {})
    if (!this.complete || !this.readableEnded) {
      this.aborted = true
      this.emit('aborted')
    }
    // An error without a listener is ignored, as in Node.
    queueMicrotask(() => done(this.listenerCount('error') > 0 ? error : null))
  }

  setTimeout() {
    return this
  }

  #complete() {
    this.complete = true
    this.push(null)
  }

  async #ask(what) {
    const { Buffer } = require('buffer')
    const text = await host.call('body', JSON.stringify({ id: this.#rest, ...what }))
    const { error, body = '', isDone } = JSON.parse(text)
    if (typeof error === 'string') throw new Error(error)
    return { bytes: Buffer.from(body, 'base64'), isDone }
  }
}

class ClientRequest extends Writable {
  #parts = []
  #headers = new Map()
  #timeout
  #cancel

  constructor(options) {
    // The request lives until its response arrives.
    super({ autoDestroy: false })
    this.method = String(options.method ?? 'GET').toUpperCase()
    this.protocol = options.protocol
    this.host = options.hostname ?? String(options.host ?? 'localhost').replace(/:\d+$/, '')
    this.path = options.path ?? '/'
    const port = options.port ? `:${options.port}` : ''
    this.address = `${this.protocol}//${this.host}${port}${this.path}`
    for (const [name, value] of Object.entries(options.headers ?? {})) this.setHeader(name, value)
    if (options.auth && !this.hasHeader('authorization')) {
      const { Buffer } = require('buffer')
      this.setHeader('Authorization', `Basic ${Buffer.from(options.auth).toString('base64')}`)
    }
    if (options.timeout) this.setTimeout(options.timeout)
    const { signal } = options
    if (signal?.aborted) this.destroy(signal.reason)
    signal?.addEventListener('abort', () => this.destroy(signal.reason))
    // Code waits for it before starting timeouts.
    queueMicrotask(() => this.emit('socket', new EventEmitter()))
  }

  setHeader(name, value) {
    this.#headers.set(name.toLowerCase(), [name, Array.isArray(value) ? value.join(', ') : value])
    return this
  }

  getHeader(name) {
    return this.#headers.get(name.toLowerCase())?.[1]
  }

  hasHeader(name) {
    return this.#headers.has(name.toLowerCase())
  }

  removeHeader(name) {
    this.#headers.delete(name.toLowerCase())
  }

  getHeaders() {
    return Object.fromEntries([...this.#headers].map(([name, [, value]]) => [name, value]))
  }

  setTimeout(ms, onTimeout) {
    if (onTimeout) this.once('timeout', onTimeout)
    clearTimeout(this.#timeout)
    if (ms > 0) this.#timeout = setTimeout(() => this.emit('timeout'), ms)
    return this
  }

  setNoDelay() {}

  setSocketKeepAlive() {}

  flushHeaders() {}

  abort() {
    if (this.aborted) return
    this.aborted = true
    this.emit('abort')
    this.destroy()
  }

  _write(chunk, _encoding, done) {
    this.#parts.push(chunk)
    done()
  }

  _final(done) {
    const hear = (answer) => {
      if (this.destroyed) return
      this.res = new IncomingMessage(answer)
      this.emit('response', this.res)
    }
    const send = this.#send()
    send.then(
      (answer) => queueMicrotask(() => hear(answer)),
      (error) => this.destroy(error),
    )
    done()
  }

  /** Fails the request, or its response once there is one. */
  _destroy(error, done) {
    clearTimeout(this.#timeout)
    if (this.res === undefined) {
      this.#cancel?.()
      done(error ?? resetError('socket hang up'))
      return
    }
    if (!this.res.complete) this.res.destroy(resetError('aborted'))
    done(error)
  }

  async #send() {
    const { Buffer } = require('buffer')
    const body = Buffer.concat(this.#parts)
    const headers = [...this.#headers.values()].map(([name, value]) => [name, String(value)])
    const request = {
      url: this.address,
      method: this.method,
      headers: Object.fromEntries(headers.filter(([name]) => name.toLowerCase() !== 'host')),
      redirect: 'manual',
      ...(body.length > 0 ? { body: body.toString('base64') } : {}),
    }
    const { answer: answering, cancel } = require('./fetch.cjs').sendFetch(request)
    this.#cancel = cancel
    const answer = JSON.parse(await answering)
    clearTimeout(this.#timeout)
    if (typeof answer.error === 'string') {
      this.#cancel = undefined
      throw new Error(answer.error)
    }
    return answer
  }
}

function readOptions(address) {
  const { protocol, hostname, port, pathname, search, username, password } = new URL(address)
  const auth = username ? `${decodeURIComponent(username)}:${decodeURIComponent(password)}` : ''
  return { protocol, hostname, port, path: `${pathname}${search}`, auth }
}

function createModule(protocol) {
  function request(first, ...others) {
    const isAddress = typeof first === 'string' || first instanceof URL
    const given = isAddress ? [readOptions(first), ...others] : [first, ...others]
    const options = given.filter((one) => typeof one === 'object' && one !== null)
    const [onResponse] = given.filter((one) => typeof one === 'function')
    const made = new ClientRequest({ protocol, ...Object.assign({}, ...options) })
    if (onResponse) made.once('response', onResponse)
    return made
  }
  function get(...given) {
    const made = request(...given)
    made.end()
    return made
  }
  const globalAgent = new Agent()
  return { Agent, ClientRequest, IncomingMessage, METHODS, STATUS_CODES, get, globalAgent, request }
}

module.exports = createModule('http:')
module.exports.https = createModule('https:')
