// Timers of the isolate: the executor keeps the clock and re-enters; callbacks stay here and are dropped at the end of
// a run.

const { apply } = Reflect
const { then } = Promise.prototype
const resolved = Promise.resolve()

const MAX_TIMERS = 100
const MAX_DELAY_MS = 2_147_483_647

exports.createTimers = function createTimers(send, currentRun, onError) {
  let timers = { __proto__: null }
  let count = 0
  let lastId = 0

  function add(callback, delay, args, repeats) {
    if (typeof callback !== 'function') throw new TypeError('The callback must be a function')
    if (count >= MAX_TIMERS) throw new RangeError(`A bot may have ${MAX_TIMERS} timers at a time`)
    const wanted = +delay
    const delayMs = wanted >= 1 && wanted <= MAX_DELAY_MS ? wanted : 1
    const id = ++lastId
    timers[id] = { __proto__: null, callback, delayMs, args, repeats }
    count++
    send('timer', currentRun(), id, delayMs)
    return id
  }

  function remove(id) {
    const key = +id
    if (timers[key] === undefined) return
    delete timers[key]
    count--
    send('untimer', currentRun(), key)
  }

  function fire(id) {
    const timer = timers[id]
    if (timer === undefined) return
    if (timer.repeats) send('timer', currentRun(), id, timer.delayMs)
    else {
      delete timers[id]
      count--
    }
    guarded(timer.callback, timer.args)
  }

  function guarded(callback, args) {
    try {
      apply(callback, undefined, args)
    } catch (error) {
      onError(error)
    }
  }

  function install(global) {
    global.setTimeout = function setTimeout(callback, delay, ...args) {
      return add(callback, delay, args, false)
    }
    global.setInterval = function setInterval(callback, delay, ...args) {
      return add(callback, delay, args, true)
    }
    global.setImmediate = function setImmediate(callback, ...args) {
      return add(callback, 0, args, false)
    }
    global.clearTimeout = remove
    global.clearInterval = remove
    global.clearImmediate = remove
    global.queueMicrotask = function queueMicrotask(callback) {
      if (typeof callback !== 'function') throw new TypeError('The callback must be a function')
      apply(then, resolved, [() => guarded(callback, [])])
    }
  }

  function clear() {
    timers = { __proto__: null }
    count = 0
  }

  return { __proto__: null, install, fire, clear }
}
