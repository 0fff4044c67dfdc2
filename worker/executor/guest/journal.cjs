// The log of one run, within a byte budget: the first half keeps the head, the second half the tail. It leaves the
// isolate once, with the result, so that a flood of lines costs only the bot's own time. Uses intrinsics taken before
// any bot code ran.

const { stringify } = JSON
const { keys } = Object
const { apply } = Reflect
const { toISOString } = Date.prototype
const { slice, split, lastIndexOf } = String.prototype
const { join } = Array.prototype
const DateTime = Date
const IntrinsicError = Error
const IntrinsicString = String

const MAX_LINE = 8192
const MAX_TEXT = 65_536
const MAX_STACK = 8192
const MAX_CAUSES = 5
const SHORTEST_SECRET = 8

exports.createJournal = function createJournal(budget, secrets) {
  const half = budget / 2
  const longest = secrets.length > 0 ? secrets[0].length : 0
  const tail = { __proto__: null }
  let head = ''
  let headFull = false
  let first = 0
  let next = 0
  let tailSize = 0
  let dropped = 0

  /** Comes before each other cut of a text: the half of a secret is not recognised. */
  function redact(text) {
    const isCut = text.length > MAX_TEXT
    let cleaned = isCut ? apply(slice, text, [0, MAX_TEXT]) : text
    for (let index = 0; index < secrets.length; index++) {
      cleaned = apply(join, apply(split, cleaned, [secrets[index]]), ['***'])
    }
    if (!isCut) return cleaned
    return cleaned.length > longest ? apply(slice, cleaned, [0, cleaned.length - longest]) : ''
  }

  function clean(text) {
    const line = redact(text)
    return line.length > MAX_LINE ? `${apply(slice, line, [0, MAX_LINE])}…` : line
  }

  function add(level, text) {
    const line = `${apply(toISOString, new DateTime(), [])} ${level} ${clean(text)}\n`
    if (!headFull && head.length + line.length <= half) {
      head += line
      return
    }
    headFull = true
    tail[next++] = line
    tailSize += line.length
    while (tailSize > half && first < next - 1) {
      tailSize -= tail[first].length
      delete tail[first++]
      dropped++
    }
  }

  function read() {
    let text = head
    if (dropped > 0) text += `… ${dropped} lines left out\n`
    for (let index = first; index < next; index++) text += tail[index]
    return text
  }

  return { __proto__: null, add, read, redact }
}

// Returns the forms in which secrets may appear in a log, longest first: one may contain another.
exports.secretForms = function secretForms(event) {
  const texts = []
  const all = event.secrets
  if (typeof all !== 'object' || all === null) return texts
  const names = keys(all)
  for (let index = 0; index < names.length; index++) {
    const secret = all[names[index]]
    const text = IntrinsicString(
      secret?.valueString ?? secret?.valueInteger ?? secret?.valueDecimal ?? '',
    )
    if (text.length < SHORTEST_SECRET) continue
    insert(texts, text)
    const escaped = apply(slice, stringify(text), [1, -1])
    if (escaped !== text) insert(texts, escaped)
  }
  return texts
}

// Keeps only frames of the bot's own file.
exports.botFrames = function botFrames(stack) {
  const lines = apply(split, stack, ['\n'])
  let text = ''
  for (let index = 0; index < lines.length && index < 50; index++) {
    const line = lines[index]
    if (apply(lastIndexOf, line, ['botica:']) !== -1) continue
    text += text !== '' ? `\n${line}` : line
  }
  return text
}

// Returns an error's stack with its causes: the cause holds the reason of a failed fetch.
exports.formatStack = function formatStack(error) {
  let text = ''
  let next = error
  for (let depth = 0; depth < MAX_CAUSES && next instanceof IntrinsicError; depth++) {
    const stack = IntrinsicString(next.stack ?? next.message)
    text += depth === 0 ? stack : `\nCaused by: ${stack}`
    if (text.length > MAX_STACK) break
    next = next.cause
  }
  return text
}

function insert(texts, text) {
  let at = texts.length
  for (; at > 0 && texts[at - 1].length < text.length; at--) texts[at] = texts[at - 1]
  texts[at] = text
}
