/**
 * Elements taken out of a text as it is stored: what stays is copied as it is written, and nothing is
 * parsed but an element of which a part is hidden. Measured: a quarter of the time of a parse and its way back,
 * and a tenth of that where whole elements are hidden whose names are found nowhere else.
 */

import { elementsOf } from '../../fhir/definitions.ts'
import { parseJson } from '../../fhir/json.ts'
import { cutBelow, wholeMembers } from './paths.ts'

/** Cuts paths out of a JSON object without white space. Errors: SyntaxError. */
export function textWithout(type: string, text: string, paths: readonly string[]): string {
  const names = soughtNames(type, paths)
  const isPlain = names !== undefined && !text.includes('"contained":')
  return (isPlain ? withoutNames(text, names) : undefined) ?? withoutWalk(type, text, paths)
}

function withoutWalk(type: string, text: string, paths: readonly string[]): string {
  const members: string[] = []
  eachMember(text, (name, at, start, end) => {
    const left = cutBelow(type, paths, name, () => parseJson(text.slice(start, end)))
    if (left === 'all') members.push(text.slice(at, end))
    else if (left !== undefined) members.push(`"${name}":${JSON.stringify(left)}`)
  })
  return `{${members.join(',')}}`
}

/** More of them are dearer to look for than a walk. */
const MAX_SOUGHT = 16
const sought = new WeakMap<readonly string[], Map<string, readonly string[] | undefined>>()

/** Names of what is hidden, if all of it is; undefined when members elsewhere are called the same. */
function soughtNames(type: string, paths: readonly string[]): readonly string[] | undefined {
  const byType = sought.get(paths) ?? new Map<string, readonly string[] | undefined>()
  if (byType.has(type)) return byType.get(type)
  sought.set(paths, byType)
  const nested = nestedNames(type)
  const whole = wholeMembers(type, paths)?.flatMap((name) => [name, `_${name}`]) ?? []
  const isAlone = nested !== undefined && !whole.some((name) => nested.has(name))
  const isSought = isAlone && whole.length > 0 && whole.length <= MAX_SOUGHT
  byType.set(type, isSought ? whole : undefined)
  return byType.get(type)
}

/** Undefined when the text does not decide it. Quotes in strings are escaped, so each match is a member. */
function withoutNames(text: string, names: readonly string[]): string | undefined {
  let left = text
  for (const name of names) {
    const key = `"${name}":`
    const at = left.indexOf(key)
    if (at < 0) continue
    // Never the first one, which is `resourceType`; a second one stands where no element is called so.
    if (left.charCodeAt(at - 1) !== COMMA || left.includes(key, at + 1)) return undefined
    const end = valueEnd(left, at + name.length + 3)
    left = left.slice(0, at - 1) + left.slice(end)
  }
  return left
}

/** Returns the wanted members of an object. Errors: SyntaxError. */
export function membersOf(
  text: string,
  isWanted: (name: string) => boolean,
): Record<string, unknown> {
  const members: Record<string, unknown> = {}
  eachMember(text, (name, _at, start, end) => {
    if (isWanted(name)) members[name] = parseJson(text.slice(start, end))
  })
  return members
}

/** `at`: where its name begins; `start` and `end` are those of its value. */
function eachMember(
  text: string,
  take: (name: string, at: number, start: number, end: number) => void,
): void {
  let at = 1
  while (text.charCodeAt(at) === QUOTE) {
    const name = text.slice(at + 1, stringEnd(text, at) - 1)
    const start = at + name.length + 3
    const end = valueEnd(text, start)
    take(name, at, start, end)
    at = text.charCodeAt(end) === COMMA ? end + 1 : end
  }
  if (at !== text.length - 1) throw broken()
}

const [QUOTE, COMMA, OPEN_LIST, BACKSLASH, CLOSE_LIST, OPEN, CLOSE] = [34, 44, 91, 92, 93, 123, 125]

/** Behind the closing quote of the string that begins at `start`. */
function stringEnd(text: string, start: number): number {
  for (let at = text.indexOf('"', start + 1); at > 0; at = text.indexOf('"', at + 1)) {
    let slashes = 0
    while (text.charCodeAt(at - 1 - slashes) === BACKSLASH) slashes++
    if (slashes % 2 === 0) return at + 1
  }
  throw broken()
}

/** Behind the value that begins at `start`. */
function valueEnd(text: string, start: number): number {
  let depth = 0
  for (let at = start; at < text.length; ) {
    const code = text.charCodeAt(at)
    if (code === QUOTE) {
      at = stringEnd(text, at)
      continue
    }
    if (code === CLOSE || code === CLOSE_LIST) depth--
    // The end of the object around it, or what comes next in it.
    if (depth < 0 || (depth === 0 && code === COMMA)) return at
    if (code === OPEN || code === OPEN_LIST) depth++
    at++
  }
  throw broken()
}

function broken(): SyntaxError {
  return new SyntaxError('The content is no JSON object')
}

/**
 * Collects the names in all types that an element below the root, or an extension, may have. Undefined for a type
 * that holds whole resources, as a Bundle does; the caller looks for `contained` ones.
 */
function nestedNames(type: string): ReadonlySet<string> | undefined {
  if (!known.has(type)) known.set(type, namesBelow(type))
  return known.get(type)
}

const known = new Map<string, ReadonlySet<string> | undefined>()

function namesBelow(type: string): ReadonlySet<string> | undefined {
  const names = new Set<string>()
  const seen = new Set<string>()
  const pending = ['Extension', 'Element']
  const take = (owner: string, isRoot: boolean) => {
    for (const { path, choice, types } of elementsOf(owner)) {
      if (isRoot && path === 'contained') continue
      const name = path.slice(path.lastIndexOf('.') + 1)
      const forms = choice ? types.map(({ code }) => name + capital(code)) : [name]
      if (!isRoot || path.includes('.')) for (const form of forms) names.add(form)
      pending.push(...types.map(({ code }) => code))
    }
  }
  take(type, true)
  for (let owner = pending.pop(); owner !== undefined; owner = pending.pop()) {
    if (owner === 'Resource' || owner === 'DomainResource') return undefined
    if (seen.has(owner)) continue
    seen.add(owner)
    take(owner, false)
  }
  return names
}

function capital(code: string): string {
  return code.charAt(0).toUpperCase() + code.slice(1)
}
