/**
 * The guest files (guest, with its folders) as one script. Each becomes a function that runs at its first `require`, so
 * a bot pays only for what it uses, and one code cache covers all of them. The cache is machine code: it is
 * made here, kept in memory and never taken from elsewhere.
 */

import { readdirSync, readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { createContext, Script } from 'node:vm'
import type ivm from 'isolated-vm'

/** The way into an isolate: what to do, and up to six strings, numbers or references. */
export type Enter = ivm.Reference<(what: string, ...args: ivm.Transferable[]) => unknown>

const FILE = 'botica:guest'

export class GuestCode {
  readonly #source: string
  readonly #cachedData: ivm.ExternalCopy<ArrayBuffer>

  constructor(source: string, cachedData: ivm.ExternalCopy<ArrayBuffer>) {
    this.#source = source
    this.#cachedData = cachedData
  }

  /** Runs the glue in a new context; the reference is its way in. `send` and `ask` are its ways out. */
  boot(isolate: ivm.Isolate, context: ivm.Context, send: ivm.Callback, ask: ivm.Callback): Enter {
    const script = isolate.compileScriptSync(this.#source, {
      filename: FILE,
      cachedData: this.#cachedData,
    })
    const main = script.runSync(context, { reference: true, release: true })
    const enter = main.applySync(undefined, [send, ask], { result: { reference: true } })
    main.release()
    // The glue's boot returns its `enter`.
    return enter as Enter
  }
}

/** Reads the guest files and runs a small bot on them, so that the cache holds what every run needs. */
export async function readGuestCode(library: typeof ivm, folder: URL): Promise<GuestCode> {
  const source = withoutWide(readGuestFiles(folder))
  const script = new Script(source, { filename: FILE })
  const context = createContext()
  const enter = script.runInContext(context)(
    () => {},
    () => '1',
  )
  enter('begin', 1, '{"context":{"baseUrl":"http://localhost/"}}', 'json', '{}', 1024, 1024)
  enter('load', new Script(SMALL_BOT).runInContext(context))
  await new Promise((resolve) => setImmediate(resolve))
  // Taken now and not at compile time it covers the functions that ran: 0.9 instead of 1.6 ms a boot and
  // first run, 4 ms without any.
  const data = new Uint8Array(script.createCachedData())
  return new GuestCode(source, new library.ExternalCopy(data.buffer))
}

/** The same script in a byte a character, where one character alone would make it two: each isolate holds a copy. */
function withoutWide(source: string): string {
  const escaped = source.replaceAll(
    /[^\0-\x7f]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
  // V8 keeps what it has cut from a wide text wide.
  return Buffer.from(escaped, 'latin1').toString('latin1')
}

const SMALL_BOT = `(function (exports) {
  exports.handler = async (medplum, event) => {
    console.log('input', event.input)
    return event.input
  }
})`

/** The code cache that `produceCachedData` left on a script or module; the types do not know it. */
export function cachedDataOf(compiled: object): ivm.ExternalCopy<ArrayBuffer> | undefined {
  return (compiled as { cachedData?: ivm.ExternalCopy<ArrayBuffer> }).cachedData
}

const RELATIVE = /'\.{1,2}\/(?:[\w-]+\/)*([\w-]+\.cjs)'/g

function readGuestFiles(folder: URL): string {
  const paths = readdirSync(folder, { recursive: true, encoding: 'utf8' })
  const files = paths
    .filter((path) => path.endsWith('.cjs'))
    .map((path) => {
      // A file is known by its name alone, from whatever folder: to join paths in the isolate would take functions
      // that bots may have replaced.
      const name = basename(path)
      const code = readFileSync(new URL(path, folder), 'utf8').replaceAll(RELATIVE, "'./$1'")
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
