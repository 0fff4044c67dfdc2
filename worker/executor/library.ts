/**
 * A library that bots may use as one script, which an isolate gets before the code of a bot that names it. Its code cache
 * is made in the first of these isolates, and kept in memory only.
 */
import type ivm from 'isolated-vm'
import { cachedDataOf, type Enter } from './guest-code.ts'

export class Library {
  readonly #name: string
  readonly #source: string
  readonly #filename: string
  #cachedData: ivm.ExternalCopy<ArrayBuffer> | undefined

  /** `source` is the text of a function of `require` and `host`. */
  constructor(name: string, source: string) {
    this.#name = name
    this.#source = source
    this.#filename = `botica:guest/${name}`
  }

  /** Hands it to the glue, whose module of that name it then is. Before any code of the bot. */
  async install(isolate: ivm.Isolate, context: ivm.Context, enter: Enter): Promise<void> {
    const cachedData = this.#cachedData
    const script = await isolate.compileScript(this.#source, {
      filename: this.#filename,
      ...(cachedData ? { cachedData } : {}),
    })
    const main = await script.run(context, { reference: true, release: true })
    await enter.apply(undefined, ['extend', this.#name, main.derefInto({ release: true })])
  }

  /**
   * Once the bot is loaded: the cache covers the functions that have run, half the time in the next isolate. Rejects
   * when the isolate has ended.
   */
  async keepCache(isolate: ivm.Isolate): Promise<void> {
    if (this.#cachedData) return
    const options = { filename: this.#filename, produceCachedData: true }
    const script = await isolate.compileScript(this.#source, options)
    this.#cachedData ??= cachedDataOf(script)
    script.release()
  }
}
