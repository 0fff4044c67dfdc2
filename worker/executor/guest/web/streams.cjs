/** The parts of the Streams standard that read a body piece by piece. https://streams.spec.whatwg.org/ */

const { TextDecoder } = require('./encoding.cjs')

/** One reader at a time, which pulls from the source. */
class ReadableStream {
  #source
  #controller
  #started
  #queue = []
  #state = 'open'
  #error
  #reader
  #wake = () => {}

  constructor(source = {}) {
    this.#source = source
    this.#controller = {
      desiredSize: 1,
      enqueue: (chunk) => {
        if (this.#state !== 'open') throw new TypeError('The stream is closed')
        this.#queue.push(chunk)
        this.#wake()
      },
      close: () => this.#settle('closed'),
      error: (reason) => this.#settle('errored', reason),
    }
    this.#started = Promise.resolve(source.start?.(this.#controller))
    this.#started.catch((reason) => this.#settle('errored', reason))
  }

  static from(source) {
    const chunks = source[Symbol.asyncIterator]?.() ?? source[Symbol.iterator]()
    return new ReadableStream({
      async pull(controller) {
        const { done, value } = await chunks.next()
        if (done) controller.close()
        else controller.enqueue(await value)
      },
      cancel: (reason) => chunks.return?.(reason),
    })
  }

  get locked() {
    return this.#reader !== undefined
  }

  getReader() {
    if (this.locked) throw new TypeError('The stream is locked to a reader')
    let last = Promise.resolve()
    const ended = Promise.withResolvers()
    ended.promise.catch(() => {})
    const own = () => {
      if (this.#reader !== reader) throw new TypeError('The reader has been released')
    }
    const reader = {
      closed: ended.promise,
      read: () => {
        const result = last.then(() => {
          own()
          return this.#next()
        })
        result.then(({ done }) => done && ended.resolve(), ended.reject)
        last = result.catch(() => {})
        return result
      },
      cancel: async (reason) => {
        own()
        await this.#cancel(reason)
        ended.resolve()
      },
      releaseLock: () => {
        if (this.#reader === reader) this.#reader = undefined
      },
    }
    this.#reader = reader
    return reader
  }

  async cancel(reason) {
    if (this.locked) throw new TypeError('The stream is locked to a reader')
    await this.#cancel(reason)
  }

  async *values() {
    const reader = this.getReader()
    try {
      for (;;) {
        const { done, value } = await reader.read()
        if (done) return
        yield value
      }
    } finally {
      await reader.cancel()
      reader.releaseLock()
    }
  }

  [Symbol.asyncIterator]() {
    return this.values()
  }

  tee() {
    const reader = this.getReader()
    const queues = [[], []]
    let pulling
    const pull = async () => {
      const { done, value } = await reader.read()
      for (const queue of queues) queue.push({ done, value })
    }
    return queues.map(
      (queue) =>
        new ReadableStream({
          async pull(controller) {
            while (queue.length === 0) {
              pulling ??= pull().finally(() => (pulling = undefined))
              await pulling
            }
            const { done, value } = queue.shift()
            if (done) controller.close()
            else controller.enqueue(value)
          },
        }),
    )
  }

  pipeThrough({ readable, writable }) {
    this.pipeTo(writable).catch(() => {})
    return readable
  }

  async pipeTo(writable) {
    const writer = writable.getWriter()
    try {
      for await (const chunk of this) await writer.write(chunk)
      await writer.close()
    } catch (error) {
      await writer.abort(error)
      throw error
    }
  }

  async #next() {
    await this.#started
    while (this.#queue.length === 0 && this.#state === 'open') {
      if (this.#source.pull === undefined) await new Promise((resolve) => (this.#wake = resolve))
      else await this.#pull()
    }
    if (this.#queue.length > 0) return { done: false, value: this.#queue.shift() }
    if (this.#state === 'errored') throw this.#error
    return { done: true, value: undefined }
  }

  async #pull() {
    try {
      await this.#source.pull(this.#controller)
    } catch (error) {
      this.#settle('errored', error)
    }
  }

  async #cancel(reason) {
    if (this.#state !== 'open') return
    this.#queue = []
    this.#settle('closed')
    await this.#source.cancel?.(reason)
  }

  #settle(state, reason) {
    if (this.#state !== 'open') return
    this.#state = state
    this.#error = reason
    this.#wake()
  }
}

/** Decodes chunks of bytes; a character may be split between two. */
class TextDecoderStream {
  constructor(label, options) {
    const decoder = new TextDecoder(label, options)
    const texts = []
    let wake = () => {}
    const put = (item) => {
      texts.push(item)
      wake()
    }
    this.encoding = decoder.encoding
    this.readable = new ReadableStream({
      async pull(controller) {
        while (texts.length === 0) await new Promise((resolve) => (wake = resolve))
        const { text, isLast, error } = texts.shift()
        if (error !== undefined) throw error
        if (text !== '') controller.enqueue(text)
        if (isLast) controller.close()
      },
    })
    const writer = {
      write: async (bytes) => put({ text: decoder.decode(bytes, { stream: true }) }),
      close: async () => put({ text: decoder.decode(), isLast: true }),
      abort: async (error) => put({ error: error ?? new Error('The stream was aborted') }),
    }
    this.writable = { getWriter: () => writer }
  }
}

module.exports = { ReadableStream, TextDecoderStream }
