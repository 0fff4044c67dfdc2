/** A large result → JSON text, some of it at a time. */
import { tooLarge } from '../../errors.ts'
import { isDecimal } from '../../fhir/json.ts'

const MAX_CHARACTERS = 52_428_800
/** Below this depth a value is written at once. */
const DEPTH = 7
const SLICE_CHARACTERS = 65_536

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
  const write = async (item: unknown, depth: number): Promise<void> => {
    if (length - written > SLICE_CHARACTERS) {
      written = length
      await rest()
    }
    if (depth === DEPTH || typeof item !== 'object' || item === null || isDecimal(item)) {
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
      const text = isLeaf(child) ? JSON.stringify(child) : undefined
      if (text === undefined) await write(child, depth + 1)
      else push(text)
    }
    push(isList ? ']' : '}')
  }
  await write(value, 0)
  return parts.join('')
}

function isLeaf(value: unknown): boolean {
  return typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean'
}
