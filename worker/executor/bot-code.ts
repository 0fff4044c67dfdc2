/**
 * The code of one bot version and how it gets into an isolate. The compiled form is kept beside the text, in
 * memory only: it is machine code, so it is never taken from elsewhere.
 */
import type ivm from 'isolated-vm'
import { cachedDataOf, type Enter } from './guest-code.ts'
import type { CodeMessage } from './messages.ts'

const BOT = 'botica:bot'
/** Takes the exports of a module; offered before any code of the bot runs. */
const ADOPT = 'botica:adopt'
const OPEN = '(function (exports, require, module) {'
const METHOD_OPEN = '({ m() {'
const CLOSE = '\n})'

export class BotCode {
  readonly shortRuns = new ShortRuns()
  readonly #text: string
  readonly #format: 'commonjs' | 'module'
  readonly #file: string
  readonly #libraries: readonly Library[]
  #isChecked = false
  #cachedData: ivm.ExternalCopy<ArrayBuffer> | undefined

  /** `libraries` are those that the bot names. */
  constructor(
    { format, file }: Pick<CodeMessage, 'format' | 'file'>,
    text: string,
    libraries: readonly Library[],
  ) {
    this.#format = format
    this.#file = file
    this.#libraries = libraries
    this.#text = text.startsWith('#!') ? `//${text}` : text
  }

  /** Ends with the handler on its way, or rejects with what compiling or the top level threw. */
  async load(
    isolate: ivm.Isolate,
    context: ivm.Context,
    enter: Enter,
    timeout: number,
  ): Promise<void> {
    for (const library of this.#libraries) await library.install(isolate, context, enter)
    if (this.#format === 'module') await this.#loadModule(isolate, context, enter, timeout)
    else await this.#loadScript(isolate, context, enter, timeout)
    await Promise.all(this.#libraries.map((library) => library.keepCache(isolate)))
  }

  async #loadScript(isolate: ivm.Isolate, context: ivm.Context, enter: Enter, timeout: number) {
    if (!this.#isChecked) {
      // Text that closes the wrapper would run outside the glue's try. It cannot close both of these.
      const method = await isolate.compileScript(`${METHOD_OPEN}${this.#text}\n} })`, {
        filename: this.#file,
        columnOffset: 0 - METHOD_OPEN.length,
      })
      method.release()
      this.#isChecked = true
    }
    const script = await isolate.compileScript(
      OPEN + this.#text + CLOSE,
      this.#options(OPEN.length),
    )
    this.#keepCache(script)
    const main = await script.run(context, { reference: true, release: true })
    await enter.apply(undefined, ['load', main.derefInto({ release: true })], { timeout })
  }

  async #loadModule(isolate: ivm.Isolate, context: ivm.Context, enter: Enter, timeout: number) {
    const module = await isolate.compileModule(this.#text, this.#options(0))
    this.#keepCache(module)
    await module.instantiate(context, (name) =>
      importedModule(isolate, context, enter, { name, importer: this.#text }),
    )
    // A top level may wait: what imports the module runs when it is through.
    const main = await isolate.compileModule(
      `import adopt from '${ADOPT}'\nimport * as bot from '${BOT}'\nadopt(bot)`,
      { filename: 'botica:main' },
    )
    await main.instantiate(context, (name) =>
      name === ADOPT ? importedModule(isolate, context, enter, { name, importer: '' }) : module,
    )
    await main.evaluate({ timeout })
  }

  #options(columns: number): ivm.ScriptInfo {
    return {
      filename: this.#file,
      columnOffset: 0 - columns,
      ...(this.#cachedData ? { cachedData: this.#cachedData } : { produceCachedData: true }),
    }
  }

  #keepCache(compiled: ivm.Script | ivm.Module): void {
    this.#cachedData ??= cachedDataOf(compiled)
  }
}

/** Names that the importer takes from a module; a module that is not there is made to have them. */
function namesIn(importer: string, module: string): string {
  const quoted = module.replaceAll(/[^\w]/g, '\\$&')
  const clauses = importer.matchAll(new RegExp(`{([^{}]*)}\\s*from\\s*['"]${quoted}['"]`, 'g'))
  const names = [...clauses].flatMap(([, list = '']) => list.split(','))
  return names.map((name) => name.trim().split(/\s/)[0]).join(' ')
}

/** A module of the table (@medplum/core, crypto, …) as an ES module. Runs before any bot code. */
async function importedModule(
  isolate: ivm.Isolate,
  context: ivm.Context,
  enter: Enter,
  { name, importer }: { readonly name: string; readonly importer: string },
): Promise<ivm.Module> {
  const offered = await enter.apply(undefined, ['offer', name, namesIn(importer, name)])
  const names: unknown = JSON.parse(String(offered))
  // Reading a name loads the file behind it, so names that the importer cannot mean stay untouched.
  const wantsAll = /\*\s*(as|from)\b/.test(importer)
  const lines = [
    `const found = globalThis[${JSON.stringify(`import ${name}`)}]`,
    'export default found.default ?? found',
  ]
  for (const [index, key] of Array.isArray(names) ? names.entries() : []) {
    if (key === 'default' || !(wantsAll || importer.includes(key))) continue
    const text = JSON.stringify(key)
    lines.push(`const v${index} = found[${text}]`, `export { v${index} as ${text} }`)
  }
  const module = await isolate.compileModule(lines.join('\n'), { filename: 'botica:import' })
  await module.instantiate(context, () => {
    throw new Error(`Cannot find module '${name}'`)
  })
  await module.evaluate()
  await enter.apply(undefined, ['withdraw', name])
  return module
}

/** The line of the log that a failure of the code's top level leaves, with the frames that are in the code. */
export function loadingLog({ stack = '' }: Error): string {
  const [own = ''] = stack.split(/\n *at \(<isolated-vm boundary>\)/)
  return `${new Date().toISOString()} ERROR ${own}\n`
}

// * A library that bots may use as one script, which an isolate gets before the code of a bot that names it. Its code cache
// is made in the first of these isolates, and kept in memory only.

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

/**
 * Runs of a bot version that are known to be short begin on the executor's own thread: handing one to a thread of its
 * isolate and back wakes several, which costs more than such a run. One that turns out to be longer is begun again on
 * a thread of its own, in another isolate, and nothing of it has come out before.
 */

/** How long the executor's thread may be kept; hardly a beat is late by it. */
export const HERE_MS = 20
const SHORT_MS = 2
const FEWEST_SHORT = 20
const MOST_SHORT = 100_000
/** A longer one outweighs so many short ones for each time that it takes as long: a busy machine makes some look longer. */
const WEIGHT = 8
/** More short ones than are wanted are remembered up to this. */
const SPARE_SHORT = 100

class ShortRuns {
  #seen = 0
  #wanted = FEWEST_SHORT

  /** True when the next one will be short, too, as far as one can tell. */
  get areTheRule(): boolean {
    return this.#seen >= this.#wanted
  }

  note(cpuMs: number): void {
    const step = cpuMs <= SHORT_MS ? 1 : -WEIGHT * (cpuMs / SHORT_MS)
    this.#seen = Math.max(0, Math.min(this.#seen + step, this.#wanted + SPARE_SHORT))
  }

  /** One was begun here and took too long: it takes twice as many from now on. */
  refute(): void {
    this.#seen = 0
    this.#wanted = Math.min(MOST_SHORT, this.#wanted * 2)
  }
}
