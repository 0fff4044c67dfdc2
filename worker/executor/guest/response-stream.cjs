/**
 * `event.responseStream`: the streamed answer of a run. Writes during a call of the worker are joined into the next one.
 */

const { base64Encode, toBytes } = require('./web/encoding.cjs')

exports.createResponseStream = function createResponseStream(host) {
  const listeners = new Map()
  let parts = []
  let started
  let sending
  let isEnded = false

  async function call(asked) {
    const { error } = JSON.parse(await host.call('stream', JSON.stringify(asked)))
    if (typeof error === 'string') throw new Error(error)
  }

  /** The end of the run reports the errors of promises that the bot does not await. */
  function quiet(promise) {
    promise.catch(() => {})
    return promise
  }

  async function send() {
    await started
    while (parts.length > 0) {
      const sent = parts
      parts = []
      await call({ parts: sent })
    }
  }

  function add(chunk) {
    if (started === undefined) throw new Error('Call startStreaming before write')
    if (isEnded) throw new Error('The answer has ended')
    if (typeof chunk !== 'string') parts.push({ bytes: base64Encode(toBytes(chunk)) })
    else if (typeof parts.at(-1) === 'string') parts.push(parts.pop() + chunk)
    else parts.push(chunk)
    sending ??= quiet(
      send().then(() => {
        sending = undefined
      }),
    )
    return sending
  }

  function notify(done, callback) {
    if (typeof callback === 'function') done.then(() => callback(), callback)
    return done
  }

  let ending

  async function finish(rest) {
    await (rest ?? sending ?? started)
    await call({ end: true })
    stream.emit('finish')
    stream.emit('close')
  }

  const stream = {
    get writable() {
      return !isEnded
    },

    /** Sends status and headers. Only the first call counts. */
    startStreaming(status, headers = {}) {
      started ??= quiet(call({ start: { status, headers: { ...headers } } }))
      return started
    },

    /** Resolves when the caller's connection can take more. */
    write(chunk, encoding, callback = encoding) {
      return notify(add(chunk), callback)
    },

    /** Completes the answer; the run may go on. */
    end(chunk, encoding, callback = encoding ?? chunk) {
      if (ending !== undefined) return notify(ending, callback)
      const hasChunk = chunk !== undefined && chunk !== null && typeof chunk !== 'function'
      if (started === undefined) throw new Error('Call startStreaming before end')
      ending = quiet(finish(hasChunk ? add(chunk) : undefined))
      isEnded = true
      return notify(ending, callback)
    },

    flush() {},

    on(name, listener) {
      listeners.set(name, [...(listeners.get(name) ?? []), listener])
      return stream
    },

    once(name, listener) {
      const once = (...given) => {
        stream.off(name, once)
        listener(...given)
      }
      return stream.on(name, once)
    },

    off(name, listener) {
      listeners.set(
        name,
        (listeners.get(name) ?? []).filter((one) => one !== listener),
      )
      return stream
    },

    emit(name, ...given) {
      const found = listeners.get(name) ?? []
      for (const listener of found) listener.apply(stream, given)
      return found.length > 0
    },
  }
  stream.addListener = stream.on
  stream.removeListener = stream.off

  return { stream, settled: () => ending ?? sending ?? started }
}
