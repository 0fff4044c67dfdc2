/** A large result → JSON text, some of it at a time. */
import { tooLarge } from '../errors.ts'
import { isDecimal } from '../fhir/json.ts'

export const MAX_CHARACTERS = 52_428_800
/** Of a part that is written at once: a millisecond at most, where texts are short. */
const PART_VALUES = 2_000
const PART_CHARACTERS = 65_536

/** `rest` waits for a turn of the event loop. Errors: 413. */
export async function writeJson(value: unknown, rest: () => Promise<void>): Promise<string> {
  const parts: string[] = []
  let length = 0
  let written = 0
  const push = (text: string) => {
    parts.push(text)
    length += text.length
    if (length > MAX_CHARACTERS) throw tooLarge()
  }
  const write = async (item: unknown): Promise<void> => {
    if (length - written > PART_CHARACTERS) {
      written = length
      await rest()
    }
    if (typeof item !== 'object' || item === null || roomAfter(item, PART_VALUES) > 0) {
      push(JSON.stringify(item) ?? 'null')
      return
    }
    const isList = Array.isArray(item)
    const entries: readonly (readonly [string, unknown])[] = isList
      ? item.map((one) => ['', one])
      : Object.entries(item)
    push(isList ? '[' : '{')
    let separator = ''
    for (const [name, child] of entries) {
      if (child === undefined && !isList) continue
      push(isList ? separator : `${separator}${JSON.stringify(name)}:`)
      separator = ','
      await write(child)
    }
    push(isList ? ']' : '}')
  }
  await write(value)
  return parts.join('')
}

/** Values that may still be written at once after this one; none once it has more. */
function roomAfter(value: unknown, room: number): number {
  if (typeof value === 'string') return room - 1 - Math.floor(value.length / 32)
  if (typeof value !== 'object' || value === null || isDecimal(value)) return room - 1
  let left = room - 1
  // Much faster than `for … in` on results, which are objects without a prototype.
  const children: readonly unknown[] = Array.isArray(value) ? value : Object.values(value)
  for (const child of children) {
    if (left <= 0) return 0
    left = roomAfter(child, left)
  }
  return left
}
