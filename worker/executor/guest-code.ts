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

  get isCached(): boolean {
    return this.#cachedData !== undefined
  }

  /**
   * Makes the cache in an isolate where a bot has run, and answers it in base64. V8 still has what it has compiled of the
   * same text, so the cache covers the functions that a small bot needs: 0.9 instead of 1.6 ms a boot and first run,
   * 4 ms without any.
   */
  makeCache(isolate: ivm.Isolate): string {
    const options = { filename: FILE, produceCachedData: true }
    const script = isolate.compileScriptSync(this.#source, options)
    const made = cachedDataOf(script)?.copy()
    script.release()
    if (made === undefined) return ''
    const bytes = new Uint8Array(made)
    this.#keep(bytes)
    return Buffer.from(bytes).toString('base64')
  }

  #keep(bytes: Uint8Array<ArrayBuffer>): void {
    this.#cachedData = new this.#ivm.ExternalCopy(bytes.buffer)
  }
}

/** The code cache that `produceCachedData` left on a script or module; the types do not know it. */
export function cachedDataOf(compiled: object): ivm.ExternalCopy<ArrayBuffer> | undefined {
  return (compiled as { cachedData?: ivm.ExternalCopy<ArrayBuffer> }).cachedData
}
