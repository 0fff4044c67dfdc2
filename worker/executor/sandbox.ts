/**
 * V8 isolates: contexts, code, host functions and limits. The only file that imports isolated-vm, so another engine
 * replaces it here (docs/decisions/0012-paths-and-engine-of-executors.md).
 */
import type ivm from 'isolated-vm'

export type Copied = string | number | boolean | undefined

/** Called by the glue with copies. Bot code may have tricked the glue, so receivers check every argument. */
interface HostFunctions {
  /** Called after the isolate has gone on. */
  readonly send: (...message: unknown[]) => void
  /** Synchronous `send`, during a `Context.callSync`. */
  readonly sendSync: (...message: unknown[]) => void
  /** Called synchronously. */
  readonly ask: (kind: unknown, question: unknown) => string
}

interface IsolateLimits {
  readonly memoryMb: number
  /** V8 has lost control of a thread: the process must end. */
  readonly onFatal: (failure: 'memory' | 'timeout') => void
}

/** A script or module. Its code cache is machine code, so it stays in memory. */
export interface Code {
  readonly text: string
  readonly file: string
  /** Columns before the author's code in the first line. */
  readonly columns?: number
  /** Makes the cache at the first compilation; otherwise `Isolate.makeCache` does. */
  readonly isCachedAtOnce?: boolean
  cache?: ivm.ExternalCopy<ArrayBuffer> | undefined
}

/** The addon. Its own loader would probe files outside the executor's permissions. */
export class Engine {
  readonly #ivm: typeof ivm

  constructor(path: string) {
    const addon: { exports: { ivm?: typeof ivm } } = { exports: {} }
    process.dlopen(addon, path)
    if (addon.exports.ivm === undefined) throw new Error('The addon does not export isolates')
    this.#ivm = addon.exports.ivm
  }

  openIsolate(limits: IsolateLimits): Isolate {
    return new Isolate(this.#ivm, limits)
  }

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

  get isDisposed(): boolean {
    return this.#isolate.isDisposed
  }

  get enteredMs(): number {
    return Number(this.#isolate.cpuTime) / 1e6
  }

  /** Boots a context: `glue` is a function of the host functions, and returns its `enter`. */
  openContext(glue: Code, { send, ask, sendSync }: HostFunctions): Context {
    const context = this.#isolate.createContextSync()
    const script = this.#isolate.compileScriptSync(glue.text, scriptOptions(glue))
    const main = script.runSync(context, { reference: true, release: true })
    const host = [
      new this.#ivm.Callback(send, { ignored: true }),
      new this.#ivm.Callback(ask),
      new this.#ivm.Callback(sendSync),
    ]
    const enter = main.applySync(undefined, host, { result: { reference: true } })
    main.release()
    return new Context(this.#isolate, context, enter as Enter)
  }

  /**
   * Returns the base64 code cache of a script that has run here. V8 keeps its compiled functions, so the cache covers
   * those a bot needs. Errors: the isolate has ended.
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

  dispose(): void {
    if (!this.#isolate.isDisposed) this.#isolate.dispose()
  }
}

type Enter = ivm.Reference<(what: string, ...args: ivm.Transferable[]) => unknown>

/** Separate globals in an isolate. Timeouts are ms of entered time, after which code is interrupted. */
export class Context {
  readonly #isolate: ivm.Isolate
  readonly #context: ivm.Context
  readonly #enter: Enter

  constructor(isolate: ivm.Isolate, context: ivm.Context, enter: Enter) {
    this.#isolate = isolate
    this.#context = context
    this.#enter = enter
  }

  send(timeout: number, what: string, ...args: Copied[]): void {
    this.#enter.applyIgnored(undefined, [what, ...args], { timeout })
  }

  /** Enters the glue on an isolate thread. Errors: an interruption, the end of the isolate. */
  async call(timeout: number | undefined, what: string, ...args: Copied[]): Promise<unknown> {
    return await this.#enter.apply(
      undefined,
      [what, ...args],
      timeout === undefined ? {} : { timeout },
    )
  }

  /** Enters the glue on this thread. Errors: as `call`. */
  callSync(timeout: number, what: string, ...args: Copied[]): void {
    this.#enter.applySync(undefined, [what, ...args], { timeout })
  }

  async check(code: Code): Promise<void> {
    const script = await this.#isolate.compileScript(code.text, scriptOptions(code))
    script.release()
  }

  /** Runs a script and passes its value to the glue after `args`. Errors: those of the code, and as `call`. */
  async run(code: Code, timeout: number | undefined, what: string, ...args: Copied[]) {
    const script = await this.#isolate.compileScript(code.text, scriptOptions(code))
    if (code.isCachedAtOnce) keepCache(code, script)
    const value = await script.run(this.#context, { reference: true, release: true })
    const main = value.derefInto({ release: true })
    const options = timeout === undefined ? {} : { timeout }
    await this.#enter.apply(undefined, [what, ...args, main], options)
  }

  async compileModule(code: Code): Promise<Module> {
    const module = await this.#isolate.compileModule(code.text, scriptOptions(code))
    if (code.isCachedAtOnce) keepCache(code, module)
    return new Module(this.#context, module)
  }

  /** Frees its memory while the isolate goes on. */
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

  async link(find: (name: string) => Module | Promise<Module>): Promise<void> {
    await this.#module.instantiate(this.#context, async (name) => (await find(name)).#module)
  }

  /** Errors: those of the code, and as `Context.call`. */
  async evaluate(timeout?: number): Promise<void> {
    await this.#module.evaluate(timeout === undefined ? {} : { timeout })
  }
}

export function isInterruption(error: unknown): boolean {
  return error instanceof Error && error.message === 'Script execution timed out.'
}

/** True for V8 ending the isolate during an entry, or for a bot's error with the same message. */
export function isDisposalError(error: unknown): boolean {
  return error instanceof Error && /disposed during execution/.test(error.message)
}

export function isolateStack({ stack = '' }: Error): string {
  return stack.split(/\n *at \(<isolated-vm boundary>\)/)[0] ?? ''
}

function scriptOptions({ file, columns = 0, cache, isCachedAtOnce = false }: Code): ivm.ScriptInfo {
  const made = cache ? { cachedData: cache } : isCachedAtOnce ? { produceCachedData: true } : {}
  return { filename: file, columnOffset: 0 - columns, ...made }
}

/** The types lack the result of `produceCachedData`. */
function keepCache(code: Code, compiled: ivm.Script | ivm.Module): void {
  code.cache ??= (compiled as { cachedData?: Code['cache'] }).cachedData
}
