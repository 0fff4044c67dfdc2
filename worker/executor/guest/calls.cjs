// Calls to the worker: text out, a promise for text back. MAX_IN_FLIGHT and MAX_LENGTH_IN_FLIGHT bound the memory of
// the worker; further calls wait here. Replies after the end of a run are dropped.

const IntrinsicPromise = Promise
const IntrinsicError = Error

const MAX_IN_FLIGHT = 32
const MAX_CALLS = 10_000
const MAX_PAYLOAD = 16 * 1024 * 1024
const MAX_LENGTH_IN_FLIGHT = MAX_PAYLOAD

exports.createCalls = function createCalls(send, currentRun) {
  let pending = { __proto__: null }
  let inFlight = 0
  let lengthInFlight = 0
  let sent = 0
  let made = 0
  let counted = 0

  function call(kind, payload) {
    return new IntrinsicPromise((resolve, reject) => {
      const text = `${payload}`
      if (currentRun() === 0) throw new IntrinsicError('The run has ended')
      if (text.length > MAX_PAYLOAD) throw new IntrinsicError('The request is too large')
      const isCounted = kind !== 'stream' && kind !== 'body'
      if (isCounted && ++counted > MAX_CALLS) {
        throw new IntrinsicError(`A run may make ${MAX_CALLS} calls`)
      }
      pending[++made] = { __proto__: null, kind: `${kind}`, text, length: 0, resolve, reject }
      advance()
    })
  }

  function advance() {
    while (inFlight < MAX_IN_FLIGHT && sent < made) {
      const next = pending[sent + 1]
      if (lengthInFlight + next.text.length > MAX_LENGTH_IN_FLIGHT) return
      sent++
      inFlight++
      next.length = next.text.length
      lengthInFlight += next.length
      send('call', currentRun(), sent, next.kind, next.text)
      next.text = ''
    }
  }

  function settle(id, ok, text) {
    const waiting = pending[id]
    if (waiting === undefined) return
    delete pending[id]
    inFlight--
    lengthInFlight -= waiting.length
    if (ok) waiting.resolve(text)
    else waiting.reject(new IntrinsicError(text))
    advance()
  }

  function clear() {
    pending = { __proto__: null }
    inFlight = 0
    lengthInFlight = 0
    sent = 0
    made = 0
    counted = 0
  }

  return { __proto__: null, call, settle, clear }
}
