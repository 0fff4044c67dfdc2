/**
 * Isolates of V8: contexts, code, host functions and limits. No other file imports isolated-vm, so this is what another
 * engine has to offer (docs/decisions/0012-paths-and-engine-of-executors.md).
 */
import type ivm from 'isolated-vm'

/** A value that enters an isolate as a copy. */
export type Copied = string | number | boolean | undefined

/** The glue calls these with copies. A bot may have tricked the glue, so every argument is checked by its receiver. */
interface HostFunctions {
  /** Called after the isolate has gone on. */
  readonly send: (...said: unknown[]) => void
  /** `send` for the time of a `Context.callHere`: called before that returns. */
  readonly sendHere: (...said: unknown[]) => void
  /** Called while the isolate waits for the answer. */
  readonly ask: (kind: unknown, question: unknown) => string
}

interface IsolateLimits {
  readonly memoryMb: number
  /** V8 has lost control of a thread: the process must end. */
  readonly onFatal: (failure: 'memory' | 'timeout') => void
}

/** A script or module. Its code cache is machine code, so it is kept in memory only. */
export interface Code {
  readonly text: string
  readonly file: string
  /** Columns of the first line that precede the code of its author. */
  readonly columns?: number
  /** The cache is made at the first compilation; otherwise by `Isolate.makeCache`. */
  readonly isCachedAtOnce?: boolean
  cache?: ivm.ExternalCopy<ArrayBuffer> | undefined
}

/** The addon. Its own loader would probe files that an executor may not read. */
export class Engine {
  readonly #ivm: typeof ivm

  /** `path` is that of the addon. */
  constructor(path: string) {
    const addon: { exports: { ivm?: typeof ivm } } = { exports: {} }
    process.dlopen(addon, path)
    if (addon.exports.ivm === undefined) throw new Error('The addon does not export isolates')
    this.#ivm = addon.exports.ivm
  }

  openIsolate(limits: IsolateLimits): Isolate {
    return new Isolate(this.#ivm, limits)
  }

  /** `cache` is the base64 text that `Isolate.makeCache` returned in another process. */
  setCache(code: Code, cache: string): void {
    code.cache = new this.#ivm.ExternalCopy(new Uint8Array(Buffer.from(cache, 'base64')).buffer)
  }
}

export class Isolate {
  readonly #ivm: typeof ivm
  readonly #isolate: ivm.Isolate

  constructor(library: typeof ivm, { memoryMb, onFatal }: IsolateLimits) {
    this.#ivm = library
    this.#isolate = new library.Isolate({
      memoryLimit: memoryMb,
      onCatastrophicError: (message) => onFatal(message.includes('memory') ? 'memory' : 'timeout'),
    })
  }

  /** True after `dispose`, and after V8 has ended it at its memory limit. */
  get isDisposed(): boolean {
    return this.#isolate.isDisposed
  }

  /** Time for which code was entered, in ms, with or without a processor. */
  get enteredMs(): number {
    return Number(this.#isolate.cpuTime) / 1e6
  }

  /** A context in which the glue has booted: `glue` is a function of the host functions, and returns its `enter`. */
  openContext(glue: Code, { send, ask, sendHere }: HostFunctions): Context {
    const context = this.#isolate.createContextSync()
    const script = this.#isolate.compileScriptSync(glue.text, optionsOf(glue))
    const main = script.runSync(context, { reference: true, release: true })
    const host = [
      new this.#ivm.Callback(send, { ignored: true }),
      new this.#ivm.Callback(ask),
      new this.#ivm.Callback(sendHere),
    ]
    const enter = main.applySync(undefined, host, { result: { reference: true } })
    main.release()
    // The glue returns a function of these parameters.
    return new Context(this.#isolate, context, enter as Enter)
  }

  /**
   * Makes the code cache of a script that has run here and returns it in base64. V8 still has the functions that it has
   * compiled of the text, so the cache covers those that a bot needs. Errors: the isolate has ended.
   */
  async makeCache(code: Code): Promise<string> {
    const options = { filename: code.file, produceCachedData: true }
    const script = await this.#isolate.compileScript(code.text, options)
    keepCache(code, script)
    script.release()
    const made = code.cache?.copy()
    return made === undefined ? '' : Buffer.from(made).toString('base64')
  }

  /** Heap in use, in MB. Errors: the isolate has ended. */
  async heapMb(): Promise<number> {
    const { used_heap_size, externally_allocated_size } = await this.#isolate.getHeapStatistics()
    return (used_heap_size + externally_allocated_size) / (1024 * 1024)
  }

  /** Interrupts what runs in it. */
  dispose(): void {
    if (!this.#isolate.isDisposed) this.#isolate.dispose()
  }
}

type Enter = ivm.Reference<(what: string, ...args: ivm.Transferable[]) => unknown>

/** Globals of their own in an isolate. Timeouts are in ms of entered time; what takes longer is interrupted. */
export class Context {
  readonly #isolate: ivm.Isolate
  readonly #context: ivm.Context
  readonly #enter: Enter

  constructor(isolate: ivm.Isolate, context: ivm.Context, enter: Enter) {
    this.#isolate = isolate
    this.#context = context
    this.#enter = enter
  }

  /** Enters the glue on a thread of the isolate, and hears of no error. */
  send(timeout: number, what: string, ...args: Copied[]): void {
    this.#enter.applyIgnored(undefined, [what, ...args], { timeout })
  }

  /** Enters the glue on a thread of the isolate. Errors: an interruption, the end of the isolate. */
  async call(timeout: number | undefined, what: string, ...args: Copied[]): Promise<unknown> {
    return await this.#enter.apply(
      undefined,
      [what, ...args],
      timeout === undefined ? {} : { timeout },
    )
  }

  /** Enters the glue on this thread. Errors: as `call`. */
  callHere(timeout: number, what: string, ...args: Copied[]): void {
    this.#enter.applySync(undefined, [what, ...args], { timeout })
  }

  /** Errors: SyntaxError. */
  async check(code: Code): Promise<void> {
    const script = await this.#isolate.compileScript(code.text, optionsOf(code))
    script.release()
  }

  /** Runs a script, and hands its value to the glue behind `args`. Errors: those of the code, and as `call`. */
  async run(code: Code, timeout: number | undefined, what: string, ...args: Copied[]) {
    const script = await this.#isolate.compileScript(code.text, optionsOf(code))
    if (code.isCachedAtOnce) keepCache(code, script)
    const value = await script.run(this.#context, { reference: true, release: true })
    const main = value.derefInto({ release: true })
    const options = timeout === undefined ? {} : { timeout }
    await this.#enter.apply(undefined, [what, ...args, main], options)
  }

  /** Compiles an ES module. Errors: SyntaxError. */
  async compileModule(code: Code): Promise<Module> {
    const module = await this.#isolate.compileModule(code.text, optionsOf(code))
    if (code.isCachedAtOnce) keepCache(code, module)
    return new Module(this.#context, module)
  }

  /** Gives its memory back to an isolate that goes on. */
  release(): void {
    this.#enter.release()
    this.#context.release()
  }
}

export class Module {
  readonly #context: ivm.Context
  readonly #module: ivm.Module

  constructor(context: ivm.Context, module: ivm.Module) {
    this.#context = context
    this.#module = module
  }

  /** `find` returns the module of an import. */
  async link(find: (name: string) => Module | Promise<Module>): Promise<void> {
    await this.#module.instantiate(this.#context, async (name) => (await find(name)).#module)
  }

  /** Errors: those of the code, and as `Context.call`. */
  async evaluate(timeout?: number): Promise<void> {
    await this.#module.evaluate(timeout === undefined ? {} : { timeout })
  }
}

/** True for an entry that was interrupted at its timeout. */
export function isInterruption(error: unknown): boolean {
  return error instanceof Error && error.message === 'Script execution timed out.'
}

/** True for an entry during which V8 ended the isolate, or for an error of a bot that says so. */
export function saysDisposed(error: unknown): boolean {
  return error instanceof Error && /disposed during execution/.test(error.message)
}

/** The frames of an error that are inside the isolate. */
export function stackInside({ stack = '' }: Error): string {
  return stack.split(/\n *at \(<isolated-vm boundary>\)/)[0] ?? ''
}

function optionsOf({ file, columns = 0, cache, isCachedAtOnce = false }: Code): ivm.ScriptInfo {
  const made = cache ? { cachedData: cache } : isCachedAtOnce ? { produceCachedData: true } : {}
  return { filename: file, columnOffset: 0 - columns, ...made }
}

/** The types do not know what `produceCachedData` leaves on a script or module. */
function keepCache(code: Code, compiled: ivm.Script | ivm.Module): void {
  code.cache ??= (compiled as { cachedData?: Code['cache'] }).cachedData
}
