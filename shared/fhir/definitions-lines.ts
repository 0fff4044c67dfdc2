/** A gzipped file of one JSON object a line, unpacked once and parsed line by line when asked. */
import { readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import { LRUCache } from 'lru-cache'

export interface Lines<T> {
  get(name: string): T | undefined
  names(): readonly string[]
}

/**
 * Opens `data/<file>.json.gz`, whose lines all begin with their `nameMember`. At most `maxParsed` of
 * them are kept as values; absent: all that were asked for.
 */
export function openLines<T extends object>(
  file: string,
  nameMember: string,
  maxParsed?: number,
): Lines<T> {
  const packed = readFileSync(new URL(`data/${file}.json.gz`, import.meta.url))
  const start = `{"${nameMember}":"`
  const texts = new Map<string, string>()
  for (const line of gunzipSync(packed).toString().split('\n')) {
    texts.set(line.slice(start.length, line.indexOf('"', start.length)), line)
  }
  const parsed =
    maxParsed === undefined ? new Map<string, T>() : new LRUCache<string, T>({ max: maxParsed })
  return {
    get(name) {
      const known = parsed.get(name)
      const text = texts.get(name)
      if (known !== undefined || text === undefined) return known
      const line: T = JSON.parse(text)
      parsed.set(name, line)
      return line
    },
    names: () => [...texts.keys()],
  }
}

/** Calls `open` at the first use and keeps what it gave. */
export function openOnce<T>(open: () => T): () => T {
  let opened: { readonly value: T } | undefined
  return () => {
    opened ??= { value: open() }
    return opened.value
  }
}
