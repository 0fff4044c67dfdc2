/** Code of one bot version, and its load into an isolate. */
import type { CodeMessage } from './messages.ts'
import type { Code, Context, Isolate, Module } from './sandbox.ts'

const BOT = 'botica:bot'
/** Takes the exports of a module; offered before any bot code runs. */
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

  /** Resolves with the handler set. Rejects with errors of compilation or of the top level. */
  async load(isolate: Isolate, context: Context, timeout: number): Promise<void> {
    for (const { name, code } of this.#libraries) await context.run(code, undefined, 'extend', name)
    await (this.#isModule ? this.#loadModule(context, timeout) : this.#loadScript(context, timeout))
    // After the bot's load, so that the cache covers the functions that have run.
    for (const { code } of this.#libraries) if (!code.cache) await isolate.makeCache(code)
  }

  async #loadScript(context: Context, timeout: number): Promise<void> {
    if (!this.#isChecked) {
      // Two different wrappers: text that closes one of them cannot close both.
      const text = `${METHOD_OPEN}${this.#text}\n} })`
      await context.check({ text, file: this.#code.file, columns: METHOD_OPEN.length })
      this.#isChecked = true
    }
    await context.run(this.#code, timeout, 'load')
  }

  async #loadModule(context: Context, timeout: number): Promise<void> {
    const module = await context.compileModule(this.#code)
    await module.link((name) => importedModule(context, name, this.#text))
    // Importing waits for a top-level await.
    const text = `import adopt from '${ADOPT}'\nimport * as bot from '${BOT}'\nadopt(bot)`
    const main = await context.compileModule({ text, file: 'botica:main' })
    await main.link((name) => (name === ADOPT ? importedModule(context, name, '') : module))
    await main.evaluate(timeout)
  }
}

/** A library as one script, loaded into an isolate before the code of a bot that names it. */
export interface Library {
  readonly name: string
  readonly code: Code
}

/** Returns the names imported from a module; a missing module is stubbed with them. */
function namesIn(importer: string, module: string): string {
  const quoted = module.replaceAll(/[^\w]/g, '\\$&')
  const clauses = importer.matchAll(new RegExp(`{([^{}]*)}\\s*from\\s*['"]${quoted}['"]`, 'g'))
  const names = [...clauses].flatMap(([, list = '']) => list.split(','))
  return names.map((name) => name.trim().split(/\s/)[0]).join(' ')
}

/** Wraps a module of the table (@medplum/core, crypto, …) as an ES module, before any bot code runs. */
async function importedModule(context: Context, name: string, importer: string): Promise<Module> {
  const offered = await context.call(undefined, 'offer', name, namesIn(importer, name))
  const names: unknown = JSON.parse(String(offered))
  // Reading a name loads its file, so only names in the importer are read.
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

// Short runs begin on the executor's main thread, which saves two thread switches
// (docs/decisions/0012-paths-and-engine-of-executors.md). One that takes longer starts again on an isolate thread; only
// its reads have left the executor before.

/** Limit on blocking the main thread, below the heartbeat interval. */
export const MAIN_THREAD_MS = 20
const SHORT_MS = 2
const FEWEST_SHORT = 20
const MOST_SHORT = 100_000
/** Short runs needed to outweigh a long one; doubled each time, since a busy machine makes some look longer. */
const WEIGHT = 8
const SPARE_SHORT = 100

class ShortRuns {
  #seen = 0
  #wanted = FEWEST_SHORT

  /** True when the next run is expected to be short. */
  get areTheRule(): boolean {
    return this.#seen >= this.#wanted
  }

  note(cpuMs: number): void {
    const step = cpuMs <= SHORT_MS ? 1 : -WEIGHT * (cpuMs / SHORT_MS)
    this.#seen = Math.max(0, Math.min(this.#seen + step, this.#wanted + SPARE_SHORT))
  }

  /** Records a run that was too long for the main thread; the required number doubles. */
  refute(): void {
    this.#seen = 0
    this.#wanted = Math.min(MOST_SHORT, this.#wanted * 2)
  }
}
