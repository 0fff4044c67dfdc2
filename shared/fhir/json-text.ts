/** Reads single members from the JSON text of a resource without parsing the rest into objects. */

const QUOTE = 0x22
const COMMA = 0x2c
const COLON = 0x3a
const OPEN_LIST = 0x5b
const BACKSLASH = 0x5c
const CLOSE_LIST = 0x5d
const OPEN = 0x7b
const CLOSE = 0x7d
const SPACE = 0x20

/** Member names, numbered from 0. */
export type Names = ReadonlyMap<string, number>

/**
 * Finds members of the object at `from`: member n spans `[2n]` to `[2n + 1]`, 0 when absent. Undefined for an empty
 * object or whitespace, which stored text never has. `text` is valid JSON without repeated names.
 */
export function memberOffsets(text: string, from: number, names: Names): number[] | undefined {
  const places: number[] = []
  for (let n = names.size * 2; n > 0; n--) places.push(0)
  let left = names.size
  let at = from
  while (left > 0) {
    const start = at + 2
    if (text.charCodeAt(start - 1) !== QUOTE) return undefined
    const end = text.indexOf('"', start)
    const isNamed = text.charCodeAt(end - 1) !== BACKSLASH && text.charCodeAt(end + 1) === COLON
    if (!isNamed) return undefined
    const begin = end + 2
    at = valueEnd(text, begin)
    const next = text.charCodeAt(at)
    if (text.charCodeAt(begin) <= SPACE || (next !== COMMA && next !== CLOSE)) return undefined
    const number = names.get(text.slice(start, end))
    if (number !== undefined) {
      places[2 * number] = begin
      places[2 * number + 1] = at
      left--
    }
    if (next === CLOSE) break
  }
  return places
}

/**
 * Calls `take` for each member of an object without white space: `at` is where its name begins, `start` and `end` are
 * those of its value. Errors: SyntaxError.
 */
export function eachMember(
  text: string,
  take: (name: string, at: number, start: number, end: number) => void,
): void {
  let at = 1
  while (text.charCodeAt(at) === QUOTE) {
    const start = lastQuote(text, at) + 2
    const end = valueEnd(text, start)
    take(text.slice(at + 1, start - 2), at, start, end)
    at = text.charCodeAt(end) === COMMA ? end + 1 : end
  }
  if (at !== text.length - 1) throw new SyntaxError('The content is not a JSON object')
}

/** Finds the items of the list at `from`, as `memberOffsets` finds members; undefined for one with spaces between its parts. */
export function itemOffsets(text: string, from: number): number[] | undefined {
  const places: number[] = []
  if (text.charCodeAt(from + 1) === CLOSE_LIST) return places
  for (let at = from; ; ) {
    const begin = at + 1
    at = valueEnd(text, begin)
    const next = text.charCodeAt(at)
    if (text.charCodeAt(begin) <= SPACE || (next !== COMMA && next !== CLOSE_LIST)) return undefined
    places.push(begin, at)
    if (next === CLOSE_LIST) return places
  }
}

export function numbered(names: Iterable<string>): Names {
  return new Map([...new Set(names)].map((name, number) => [name, number]))
}

/** An object or list on the stack of the walk. */
interface Level {
  /** Names seen so far; undefined in a list. */
  readonly names: Set<string> | undefined
  place: string | number
}

/** Returns the path of the first repeated name, as in `entry[1].resource.gender`. `text` is valid JSON. */
export function repeatedName(text: string): string | undefined {
  const levels: Level[] = []
  for (let at = 0; at < text.length; at++) {
    const level = levels.at(-1)
    const code = text.charCodeAt(at)
    if (code === OPEN) levels.push({ names: new Set(), place: '' })
    else if (code === OPEN_LIST) levels.push({ names: undefined, place: 0 })
    else if (code === CLOSE || code === CLOSE_LIST) levels.pop()
    else if (code === COMMA && typeof level?.place === 'number') level.place++
    else if (code === QUOTE) {
      const end = lastQuote(text, at)
      if (level?.names !== undefined && isName(text, end)) {
        const name: string = JSON.parse(text.slice(at, end + 1))
        level.place = name
        if (level.names.has(name)) return formatPath(levels)
        level.names.add(name)
      }
      at = end
    }
  }
  return undefined
}

/** True when the string that ends at this quote stands before a colon. */
function isName(text: string, end: number): boolean {
  let next = end + 1
  while (isSpace(text.charCodeAt(next))) next++
  return text.charCodeAt(next) === COLON
}

function isSpace(code: number): boolean {
  return code === SPACE || code === 0x0a || code === 0x0d || code === 0x09
}

function formatPath(levels: readonly Level[]): string {
  const parts = levels.map(({ place }) => (typeof place === 'number' ? `[${place}]` : `.${place}`))
  return parts.join('').replace(/^\./, '')
}

/** Returns the place after the value that begins at `from`; the end of a text that is cut off in it. */
function valueEnd(text: string, from: number): number {
  // A read of it in each turn of the loop would be a call, as texts are of several kinds.
  const { length } = text
  const first = text.charCodeAt(from)
  if (first === QUOTE) return lastQuote(text, from) + 1
  let depth = 0
  for (let at = from; at < length; at++) {
    const code = text.charCodeAt(at)
    if (code === QUOTE) at = lastQuote(text, at)
    else if (code === COMMA && depth === 0) return at
    // All brackets sort after this code, most other characters outside strings before it.
    else if (code < OPEN_LIST) continue
    else if (code === OPEN || code === OPEN_LIST) depth++
    else if (code === CLOSE || code === CLOSE_LIST) {
      if (depth === 0) return at
      depth--
      if (depth === 0) return at + 1
    }
  }
  return length
}

function lastQuote(text: string, first: number): number {
  for (let at = text.indexOf('"', first + 1); at >= 0; at = text.indexOf('"', at + 1)) {
    let start = at
    while (text.charCodeAt(start - 1) === BACKSLASH) start--
    // An even number of backslashes escapes only backslashes.
    if ((at - start) % 2 === 0) return at
  }
  return text.length
}
