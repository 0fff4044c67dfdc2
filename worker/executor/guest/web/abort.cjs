/** AbortController and AbortSignal. https://dom.spec.whatwg.org/#aborting-ongoing-activities */

class DOMException extends Error {
  constructor(message = '', name = 'Error') {
    super(message)
    Object.defineProperty(this, 'name', { value: name, configurable: true })
  }
}

class AbortSignal {
  #listeners = new Set()
  aborted = false
  reason = undefined
  onabort = null

  static abort(reason) {
    const signal = new AbortSignal()
    abort(signal, reason)
    return signal
  }

  static timeout(ms) {
    const signal = new AbortSignal()
    setTimeout(() => abort(signal, new DOMException('The operation timed out', 'TimeoutError')), ms)
    return signal
  }

  static any(signals) {
    const joined = new AbortSignal()
    for (const signal of signals) {
      if (signal.aborted) abort(joined, signal.reason)
      else signal.addEventListener('abort', () => abort(joined, signal.reason))
    }
    return joined
  }

  throwIfAborted() {
    if (this.aborted) throw this.reason
  }

  addEventListener(type, listener) {
    if (type === 'abort') this.#listeners.add(listener)
  }

  removeEventListener(type, listener) {
    if (type === 'abort') this.#listeners.delete(listener)
  }

  dispatchEvent(event) {
    this.onabort?.(event)
    for (const listener of this.#listeners) {
      if (typeof listener === 'function') listener.call(this, event)
      else listener.handleEvent(event)
    }
    return true
  }
}

function abort(signal, reason) {
  if (signal.aborted) return
  signal.aborted = true
  signal.reason = reason ?? new DOMException('This operation was aborted', 'AbortError')
  signal.dispatchEvent({ type: 'abort', target: signal })
}

class AbortController {
  signal = new AbortSignal()

  abort(reason) {
    abort(this.signal, reason)
  }
}

module.exports = { AbortController, AbortSignal, DOMException }
