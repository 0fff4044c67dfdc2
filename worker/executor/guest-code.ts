/**
 * The guest files (guest/*.cjs) as one script. Each becomes a function that runs at its first `require`, so
 * a bot pays only for what it uses, and one code cache covers all of them. The cache is machine code: it is
 * made here, kept in memory and never taken from elsewhere.
 */
import { readdirSync, readFileSync } from 'node:fs'
import type ivm from 'isolated-vm'

/** The way into an isolate: what to do, and up to six strings, numbers or references. */
export type Enter = ivm.Reference<(what: string, ...args: ivm.Transferable[]) => unknown>

export class GuestCode {
  readonly #source: string
  #cachedData: ivm.ExternalCopy<ArrayBuffer> | undefined

  constructor(folder: URL) {
    this.#source = readGuestFiles(folder)
  }

  /** Runs the glue in a new context; the reference is its way in. `send` and `ask` are its ways out. */
  boot(isolate: ivm.Isolate, context: ivm.Context, send: ivm.Callback, ask: ivm.Callback): Enter {
    const options = this.#cachedData
      ? { cachedData: this.#cachedData }
      : { produceCachedData: true as const }
    const script = isolate.compileScriptSync(this.#source, {
      filename: 'botica:guest',
      ...options,
    })
    this.#cachedData ??= cachedDataOf(script)
    const main = script.runSync(context, { reference: true, release: true })
    const enter = main.applySync(undefined, [send, ask], { result: { reference: true } })
    main.release()
    // The glue's boot returns its `enter`.
    return enter as Enter
  }
}

/** The code cache that `produceCachedData` left on a script or module; the types do not know it. */
export function cachedDataOf(compiled: object): ivm.ExternalCopy<ArrayBuffer> | undefined {
  return (compiled as { cachedData?: ivm.ExternalCopy<ArrayBuffer> }).cachedData
}

function readGuestFiles(folder: URL): string {
  const names = readdirSync(folder).filter((name) => name.endsWith('.cjs'))
  const files = names.map((name) => {
    const code = readFileSync(new URL(name, folder), 'utf8')
    // Strict code keeps its functions out of the call sites that Error.prepareStackTrace gets to see.
    return `${JSON.stringify(`./${name}`)}: (function (require, module, exports, host) {'use strict';\n${code}\n})`
  })
  return `(function (send, ask) {
'use strict'
const files = { __proto__: null, ${files.join(',\n')} }
const loaded = { __proto__: null }
const host = { __proto__: null }
const CannotFind = Error
function require(name) {
  const known = loaded[name]
  if (known !== undefined) return known.exports
  const file = files[name]
  if (file === undefined) throw new CannotFind("Cannot find module '" + name + "'")
  const module = (loaded[name] = { exports: {} })
  file(require, module, module.exports, host)
  return module.exports
}
require.loaded = loaded
return require('./glue.cjs').boot(send, ask)
})`
}
