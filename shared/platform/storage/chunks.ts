/**
 * The chunks of a stream, as they arrive. Node's own iterator joins those that have gathered into larger
 * ones; the small ones, which nobody can release, cost up to 64 MiB until V8 collects garbage. The
 * stream is left as it is when the reader stops early.
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
