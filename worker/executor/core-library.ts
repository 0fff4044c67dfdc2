/**
 * The published `@medplum/core` as one script, for the names that the guest's own files do not have. It is
 * read when the first bot of this executor needs it; its code cache is made here and kept in memory only.
 */
import { readFileSync } from 'node:fs'
import { createContext, Script } from 'node:vm'
import type ivm from 'isolated-vm'
import type { Enter } from './guest-code.ts'

const FILE = 'botica:guest/core'

interface Made {
  readonly source: string
  readonly cachedData: ivm.ExternalCopy<ArrayBuffer>
}

export class CoreLibrary {
  readonly #ivm: typeof ivm
  readonly #path: string
  #made: Made | undefined

  /** `path` is the CommonJS build. */
  constructor(library: typeof ivm, path: string) {
    this.#ivm = library
    this.#path = path
  }

  /** Runs it in the context, whose `@medplum/core` then has all its names. Before any code of the bot. */
  async install(isolate: ivm.Isolate, context: ivm.Context, enter: Enter): Promise<void> {
    const { source, cachedData } = this.#read()
    const script = await isolate.compileScript(source, { filename: FILE, cachedData })
    const main = await script.run(context, { reference: true, release: true })
    await enter.apply(undefined, ['extend', main.derefInto({ release: true })])
  }

  #read(): Made {
    this.#made ??= this.#make()
    return this.#made
  }

  // Run once, so that the cache covers the functions of its top level: half the time in an isolate.
  #make(): Made {
    const source = `(function (module, exports) {${readFileSync(this.#path, 'utf8')}\n})`
    const script = new Script(source, { filename: FILE })
    const module = { exports: {} }
    script.runInContext(createContext())(module, module.exports)
    const data = new Uint8Array(script.createCachedData())
    return { source, cachedData: new this.#ivm.ExternalCopy(data.buffer) }
  }
}
