/**
 * The published `@medplum/core` as one script, for the names that the guest's own files do not have. It is
 * read when the first bot of this executor needs it; its code cache is made here and kept in memory only.
 */
import { readFileSync } from 'node:fs'
import type ivm from 'isolated-vm'
import { cacheOf, type Enter } from './guest-code.ts'

const FILE = 'botica:guest/core'

export class CoreLibrary {
  readonly #path: string
  #source: string | undefined
  #cachedData: ivm.ExternalCopy<ArrayBuffer> | undefined

  /** `path` is the CommonJS build. */
  constructor(path: string) {
    this.#path = path
  }

  /** Runs it in the context, whose `@medplum/core` then has all its names. Before any code of the bot. */
  async install(isolate: ivm.Isolate, context: ivm.Context, enter: Enter): Promise<void> {
    this.#source ??= `(function (module, exports) {${readFileSync(this.#path, 'utf8')}\n})`
    const cachedData = this.#cachedData
    const script = await isolate.compileScript(this.#source, {
      filename: FILE,
      ...(cachedData ? { cachedData } : {}),
    })
    const main = await script.run(context, { reference: true, release: true })
    await enter.apply(undefined, ['extend', main.derefInto({ release: true })])
    // Made after it has run, the cache covers the functions of its top level: half the time in an isolate.
    this.#cachedData ??= cacheOf(isolate, this.#source, FILE)
  }
}
