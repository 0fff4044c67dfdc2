/** Globals of bots beyond ECMAScript. Each is read from its file on first access, so that unused ones cost nothing. */

const files = {
  './web/abort.cjs': ['AbortController', 'AbortSignal', 'DOMException'],
  './web/blob.cjs': ['Blob', 'File'],
  './web/buffer.cjs': ['Buffer'],
  './medplum/client.cjs': ['MedplumClient'],
  './web/clone.cjs': ['structuredClone'],
  './medplum/constants.cjs': ['ContentType'],
  './web/encoding.cjs': ['TextDecoder', 'TextEncoder', 'atob', 'btoa'],
  './web/fetch.cjs': ['Request', 'Response', 'fetch'],
  './web/form-data.cjs': ['FormData'],
  './web/headers.cjs': ['Headers'],
  './medplum/hl7.cjs': ['Hl7Message'],
  './process.cjs': ['process'],
  './web/streams.cjs': ['ReadableStream', 'TextDecoderStream'],
  './web/url.cjs': ['URL', 'URLSearchParams'],
  './web/web-socket.cjs': ['WebSocket'],
}

function define(target, name, read) {
  const put = (value) => {
    const descriptor = { configurable: true, enumerable: false, writable: true, value }
    Object.defineProperty(target, name, descriptor)
    return value
  }
  Object.defineProperty(target, name, {
    configurable: true,
    enumerable: false,
    get: () => put(read()),
    set: put,
  })
}

function install(target) {
  for (const [file, names] of Object.entries(files)) {
    for (const name of names) define(target, name, () => require(file)[name])
  }
  define(target, 'global', () => target)
  define(target, 'crypto', () => require('./web/crypto.cjs').webcrypto)
}

module.exports = { install }
