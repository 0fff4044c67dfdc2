/** The script of the guest, as each isolate runs it first. Its code cache is machine code: it is kept in memory only. */
import type ivm from 'isolated-vm'

/** The way into an isolate: what to do, and up to six strings, numbers or references. */
export type Enter = ivm.Reference<(what: string, ...args: ivm.Transferable[]) => unknown>

/** The ways out of an isolate; `sendHere` is `send` for what the executor's own thread does there. */
export interface WaysOut {
  readonly send: ivm.Callback
  readonly ask: ivm.Callback
  readonly sendHere: ivm.Callback
}

const FILE = 'botica:guest'
const FIRST_MB = 16
const LOG_LENGTH = 1024
const SMALL_BOT = `(function (exports) {
  exports.handler = async (medplum, event) => {
    console.log('input', event.input)
    return event.input
  }
})`

export class GuestCode {
  readonly #ivm: typeof ivm
  readonly #source: string
  #cachedData: ivm.ExternalCopy<ArrayBuffer> | undefined

  /** `cache` in base64, as another executor of this worker has made it, or ''. */
  constructor(library: typeof ivm, source: string, cache: string) {
    this.#ivm = library
    this.#source = source
    if (cache !== '') this.#keep(new Uint8Array(Buffer.from(cache, 'base64')))
  }

  /** Runs the glue in a new context; the reference is its way in. */
  boot(isolate: ivm.Isolate, context: ivm.Context, { send, ask, sendHere }: WaysOut): Enter {
    const cachedData = this.#cachedData
    const script = isolate.compileScriptSync(this.#source, {
      filename: FILE,
      ...(cachedData ? { cachedData } : {}),
    })
    const main = script.runSync(context, { reference: true, release: true })
    const enter = main.applySync(undefined, [send, ask, sendHere], { result: { reference: true } })
    main.release()
    // The glue's boot returns its `enter`.
    return enter as Enter
  }

  /**
   * Makes the cache in a first isolate, before anybody waits, and answers it in base64; undefined where there was one.
   * An isolate that warms up and no more would be a fifth of a start, and the first run hardly sooner done.
   */
  makeMissingCache(): string | undefined {
    if (this.#cachedData) return undefined
    const isolate = new this.#ivm.Isolate({ memoryLimit: FIRST_MB })
    try {
      const context = isolate.createContextSync()
      const send = new this.#ivm.Callback(() => {}, { ignored: true })
      const ask = new this.#ivm.Callback(() => '1')
      const enter = this.boot(isolate, context, { send, ask, sendHere: send })
      return this.#makeCache(isolate, context, enter)
    } finally {
      isolate.dispose()
    }
  }

  // V8 still has what it has compiled of the same text, so the cache covers the functions that a small bot needs:
  // 0.9 instead of 1.6 ms a boot and first run, 4 ms without any.
  #makeCache(isolate: ivm.Isolate, context: ivm.Context, enter: Enter): string | undefined {
    const event = '{"context":{"baseUrl":"http://localhost/"}}'
    enter.applySync(undefined, ['begin', 1, event, 'json', '{}', LOG_LENGTH, LOG_LENGTH])
    const bot = isolate.compileScriptSync(SMALL_BOT).runSync(context, { reference: true })
    enter.applySync(undefined, ['load', bot.derefInto({ release: true })])
    const made = cacheOf(isolate, this.#source, FILE)?.copy()
    if (made === undefined) return undefined
    const bytes = new Uint8Array(made)
    this.#keep(bytes)
    return Buffer.from(bytes).toString('base64')
  }

  #keep(bytes: Uint8Array<ArrayBuffer>): void {
    this.#cachedData = new this.#ivm.ExternalCopy(bytes.buffer)
  }
}

/** The code cache of a script that has run in the isolate: it covers the functions that have run. */
function cacheOf(
  isolate: ivm.Isolate,
  source: string,
  filename: string,
): ivm.ExternalCopy<ArrayBuffer> | undefined {
  const script = isolate.compileScriptSync(source, { filename, produceCachedData: true })
  const cachedData = cachedDataOf(script)
  script.release()
  return cachedData
}

/** The code cache that `produceCachedData` left on a script or module; the types do not know it. */
export function cachedDataOf(compiled: object): ivm.ExternalCopy<ArrayBuffer> | undefined {
  return (compiled as { cachedData?: ivm.ExternalCopy<ArrayBuffer> }).cachedData
}
