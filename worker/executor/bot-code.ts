/** The code of one bot version, and how it gets into an isolate. */
import type { CodeMessage } from './messages.ts'
import type { Code, Context, Isolate, Module } from './sandbox.ts'

const BOT = 'botica:bot'
/** Takes the exports of a module; offered before any code of the bot runs. */
const ADOPT = 'botica:adopt'
const OPEN = '(function (exports, require, module) {'
const METHOD_OPEN = '({ m() {'
const CLOSE = '\n})'

export class BotCode {
  readonly shortRuns = new ShortRuns()
  readonly #text: string
  readonly #code: Code
  readonly #isModule: boolean
  readonly #libraries: readonly Library[]
  #isChecked = false

  /** `libraries` are those that the bot names. */
  constructor(
    { format, file }: Pick<CodeMessage, 'format' | 'file'>,
    text: string,
    libraries: readonly Library[],
  ) {
    this.#text = text.startsWith('#!') ? `//${text}` : text
    this.#isModule = format === 'module'
    this.#libraries = libraries
    this.#code = this.#isModule
      ? { text: this.#text, file, isCachedAtOnce: true }
      : { text: OPEN + this.#text + CLOSE, file, columns: OPEN.length, isCachedAtOnce: true }
  }

  /** Ends with the handler on its way, or rejects with what compiling or the top level threw. */
  async load(isolate: Isolate, context: Context, timeout: number): Promise<void> {
    for (const { name, code } of this.#libraries) await context.run(code, undefined, 'extend', name)
    await (this.#isModule ? this.#loadModule(context, timeout) : this.#loadScript(context, timeout))
    // Behind the load of the bot: the cache covers the functions that have run, half the time in the next isolate.
    for (const { code } of this.#libraries) if (!code.cache) await isolate.makeCache(code)
  }

  async #loadScript(context: Context, timeout: number): Promise<void> {
    if (!this.#isChecked) {
      // Text that closes the wrapper would run outside the glue's try. It cannot close both of these.
      const text = `${METHOD_OPEN}${this.#text}\n} })`
      await context.check({ text, file: this.#code.file, columns: METHOD_OPEN.length })
      this.#isChecked = true
    }
    await context.run(this.#code, timeout, 'load')
  }

  async #loadModule(context: Context, timeout: number): Promise<void> {
    const module = await context.compileModule(this.#code)
    await module.link((name) => importedModule(context, name, this.#text))
    // A top level may wait: what imports the module runs when it is through.
    const text = `import adopt from '${ADOPT}'\nimport * as bot from '${BOT}'\nadopt(bot)`
    const main = await context.compileModule({ text, file: 'botica:main' })
    await main.link((name) => (name === ADOPT ? importedModule(context, name, '') : module))
    await main.evaluate(timeout)
  }
}

/** A library that bots may use as one script: an isolate gets it before the code of a bot that names it. */
export interface Library {
  readonly name: string
  /** A function of `require` and `host`. */
  readonly code: Code
}

/** Names that the importer takes from a module; a module that is not there is made to have them. */
function namesIn(importer: string, module: string): string {
  const quoted = module.replaceAll(/[^\w]/g, '\\$&')
  const clauses = importer.matchAll(new RegExp(`{([^{}]*)}\\s*from\\s*['"]${quoted}['"]`, 'g'))
  const names = [...clauses].flatMap(([, list = '']) => list.split(','))
  return names.map((name) => name.trim().split(/\s/)[0]).join(' ')
}

/** A module of the table (@medplum/core, crypto, …) as an ES module. Runs before any bot code. */
async function importedModule(context: Context, name: string, importer: string): Promise<Module> {
  const offered = await context.call(undefined, 'offer', name, namesIn(importer, name))
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
  const module = await context.compileModule({ text: lines.join('\n'), file: 'botica:import' })
  await module.link(() => {
    throw new Error(`Cannot find module '${name}'`)
  })
  await module.evaluate()
  await context.call(undefined, 'withdraw', name)
  return module
}

// * Runs of a bot version that are known to be short begin on the executor's own thread. To hand one to a thread of its
// isolate and back costs a fifth of such a run (docs/decisions/0012-paths-and-engine-of-executors.md). One that takes
// longer begins again on a thread of its own, in another isolate, and only its reads have left the executor before.

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
