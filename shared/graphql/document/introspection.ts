/** Answers to queries for the schema alone, which are cached in gzip: packed they take a twentieth. */
import { promisify } from 'node:util'
import { gunzip, gzip } from 'node:zlib'
import { LRUCache } from 'lru-cache'

const MAX_CACHED_BYTES = 8_000_000
/** 75 ms for the whole schema; one more would be 180, for a fourteenth less. */
const LEVEL = 3

const cached = new LRUCache<string, Buffer>({
  maxSize: MAX_CACHED_BYTES,
  sizeCalculation: (packed, key) => packed.length + key.length,
})
const running = new Map<string, Promise<Buffer>>()
const pack = promisify(gzip)

export const unpack = promisify(gunzip)

/** The answer of a key, made once. Errors: those of `make`. */
export async function packed(key: string, make: () => Promise<string>): Promise<Buffer> {
  const known = cached.get(key)
  if (known !== undefined) return known
  const answer = running.get(key) ?? make().then((text) => pack(text, { level: LEVEL }))
  running.set(key, answer)
  try {
    const made = await answer
    cached.set(key, made)
    return made
  } finally {
    running.delete(key)
  }
}
