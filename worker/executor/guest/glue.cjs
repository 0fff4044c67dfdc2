// First code of an isolate, and its only link to the executor: `enter` is the way in; `send` (fire and forget), `ask`
// (synchronous) and `sendHere` (`send` on the executor's main thread) are the ways out. They carry strings and numbers
// only and stay in closures: bot code sees neither them nor objects of another isolate. Bot code may have replaced any
// global or method, so later code uses intrinsics taken here, null-prototype objects and index loops, and serializes
// results and errors itself.

const { lockdown } = require('./lockdown.cjs')
lockdown(globalThis)

const { createJournal, botFrames, secretForms } = require('./journal.cjs')
const { createTimers } = require('./timers.cjs')
const { createCalls } = require('./calls.cjs')
const { createConsole } = require('./console.cjs')
const { createResults } = require('./results.cjs')
const decimals = require('./decimals.cjs')

const { apply } = Reflect
const { parse } = JSON
const { keys } = Object
const { slice, charCodeAt } = String.prototype
const IntrinsicError = Error

exports.boot = function boot(sendAway, ask, sendHere) {
  let run = 0
  let isHere = false
  let limits
  let journal
  let medplum
  let event
  let answer
  let handler

  const currentRun = () => run
  const send = (what, a, b, c, d, e) => (isHere ? sendHere : sendAway)(what, a, b, c, d, e)
  const timers = createTimers(send, currentRun, fail)
  const calls = createCalls(send, currentRun)
  const redact = (text) => journal.redact(text)
  const results = createResults(() => require.loaded['./hl7.cjs']?.exports.Hl7Message, redact)

  host.call = calls.call
  host.sync = (kind, question) => {
    const answer = ask(`${kind}`, `${question}`)
    if (apply(charCodeAt, answer, [0]) === 49) return apply(slice, answer, [1])
    throw new IntrinsicError(apply(slice, answer, [1]))
  }
  host.log = (level, text) => {
    if (run !== 0) journal.add(`${level}`, `${text}`)
  }
  timers.install(globalThis)
  globalThis.console = createConsole(host.log, redact)
  require('./globals.cjs').install(globalThis, host)

  const botModules = { __proto__: null }
  function botRequire(name) {
    const key = `${name}`
    botModules[key] ??= { __proto__: null, exports: require('./modules.cjs').resolve(key, host) }
    return botModules[key].exports
  }

  // A library requires the guest's files by path, and modules by name as a bot does.
  function extend(name, factory) {
    const outside = (wanted) => (wanted[0] === '.' ? require(wanted) : botRequire(wanted))
    require('./modules.cjs').provide(name, () => apply(factory, undefined, [outside, host]))
  }

  function begin(id, eventText, inputKind, input, resultBytes, logBytes) {
    run = id
    limits = { __proto__: null, resultBytes, logBytes }
    journal = createJournal(logBytes, [])
    try {
      event = parse(eventText)
      journal = createJournal(logBytes, secretForms(event))
      host.context = event.context
      host.context.accessToken = event.accessToken
      delete event.context
      delete event.accessToken
      host.event = event
      event.input = parseInput(inputKind, input)
      if (typeof event.rawBody === 'boolean') {
        event.rawBody = event.rawBody ? decodeRawBody(inputKind, input) : ''
      }
      if (event.responseStream === true) {
        answer = require('./response-stream.cjs').createResponseStream(host)
        event.responseStream = answer.stream
      }
      medplum = require('./medplum/client.cjs').createClient(host, host.context)
    } catch (error) {
      fail(error)
      return
    }
    if (handler !== undefined) void invoke()
  }

  function parseInput(kind, input) {
    if (kind === 'none' || input === undefined) return {}
    if (kind === 'json') return decimals.parse(input)
    if (kind === 'form') return { ...require('./web/query.cjs').parse(input) }
    if (kind === 'hl7') return require('./medplum/hl7.cjs').Hl7Message.parse(input)
    if (kind === 'bytes') return require('./web/encoding.cjs').base64Decode(input)
    return input
  }

  /** Returns the raw body, which signatures cover. */
  function decodeRawBody(kind, input) {
    if (kind !== 'bytes') return input
    const { base64Decode, utf8Decode } = require('./web/encoding.cjs')
    return utf8Decode(base64Decode(input))
  }

  function load(main) {
    try {
      const module = { exports: {} }
      apply(main, module.exports, [module.exports, botRequire, module])
      choose(module.exports?.handler, module.exports)
    } catch (error) {
      fail(error)
    }
  }

  function adopt(namespace) {
    try {
      choose(namespace.handler, namespace.default)
    } catch (error) {
      fail(error)
    }
  }

  function choose(first, second) {
    handler = typeof first === 'function' ? first : second
    if (typeof handler !== 'function') throw new IntrinsicError('Bot has no handler export')
    send('loaded', run)
    void invoke()
  }

  async function invoke() {
    const id = run
    try {
      const value = await handler(medplum, event)
      if (id === run && answer !== undefined) await answer.settled()
      if (id === run) finish(results.ofValue(value, limits.resultBytes))
    } catch (error) {
      if (id === run) fail(error)
    }
  }

  function fail(error) {
    if (run === 0) return
    const result = results.ofError(error, limits.resultBytes)
    if (result.stack !== '') journal.add('ERROR', botFrames(result.stack))
    finish(result)
  }

  function finish(result) {
    const ended = run
    run = 0
    timers.clear()
    calls.clear()
    medplum = event = answer = undefined
    send('done', ended, result.failure, result.kind, result.body, journal.read())
  }

  // Names of a module for `import`; its wrapper reads the module from a global before any bot code runs.
  function offer(name, wanted) {
    const { has, absent } = require('./modules.cjs')
    const found =
      name === 'botica:adopt' ? adopt : has(name) ? botRequire(name) : absent(name, wanted)
    globalThis[`import ${name}`] = found
    return apply(results.stringify, undefined, [keys(found)])
  }

  return function enter(what, a, b, c, d, e, f) {
    isHere = what === 'settle here' || what === 'begin here' || what === 'fire here'
    if (what === 'settle' || what === 'settle here') {
      if (a === run) calls.settle(b, c, d)
    } else if (what === 'begin' || what === 'begin here') begin(a, b, c, d, e, f)
    else if (what === 'fire' || what === 'fire here') {
      if (a === run) timers.fire(b)
    } else if (what === 'load') load(a)
    else if (what === 'extend') extend(a, b)
    else if (what === 'offer') return offer(a, b)
    else if (what === 'withdraw') delete globalThis[`import ${a}`]
    else if (what === 'log') return a === run ? journal.read() : ''
  }
}
