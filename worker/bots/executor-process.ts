/**
 * One executor: a child process without environment or permissions, and its state in this worker.
 * It is killed, never asked to stop: its threads may no longer respond.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { createRequire } from 'node:module'
import { dirname } from 'node:path'
import type { Duplex } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { librarySource } from '../../shared/bots/libraries/table.ts'
import { corkForTick } from '../../shared/core/batching.ts'
import {
  type CallMessage,
  type DoneMessage,
  encodeFrame,
  type Frame,
  FrameReader,
  type FromExecutor,
  type ReplyMessage,
  type ToExecutor,
} from '../executor/messages.ts'
import { executorInput, keepCaches } from './executor-sources.ts'
import { readMemory, lowerPriorityOnceBusy } from './linux.ts'
import type { BotRun, HostCall } from './run-result.ts'

const BOOT = fileURLToPath(new URL('../executor/boot.cjs', import.meta.url))
/** An executor silent for this long has missed two heartbeats. */
const BEATS_MISSING_MS = 3000
/** A busy machine takes seconds to start a process. */
const START_MS = 30_000
/** How long after the end of a run its thread may still be reported as stuck. */
const STOPPED_MS = 5000
const CANCEL_MS = 1000
const DEADLINE_GRACE_MS = 500
const WARM_ISOLATE_MB = 4
/**
 * Blocks above this size are returned to the system. V8 frees half of an isolate in such blocks; those reused by
 * compilation (32 KB) stay below. https://man7.org/linux/man-pages/man3/mallopt.3.html
 */
const ALLOCATOR = { MALLOC_MMAP_THRESHOLD_: '40960' }
/** Memory beyond that of its isolates, such as code, above which an executor takes no new run and ends after its last. */
const BLOATED_MB = 400
const LOOK_MS = 1000

/** How an executor ended; `guilty` is the run that caused it, if known. */
export type Death =
  | { readonly cause: 'exit' | 'heartbeat' | 'memory' | 'closed' }
  | { readonly cause: 'timeout' | 'memory' | 'cancelled'; readonly guilty: number }

/** The end of a run as its executor reports it. */
export interface DoneRun {
  readonly t: 'done'
  readonly message: DoneMessage
  readonly body: string
  readonly log: string
}

export type Ended =
  | DoneRun
  /** `isGuilty` is undefined when any run of the process, or something outside it, may be at fault. */
  | { readonly t: 'died'; readonly death: Death; readonly isGuilty: boolean | undefined }

/** Answers the calls of one run. */
export interface Host {
  answer(call: HostCall): Promise<string>
  /** True once a call with a possible effect has begun: the run is not repeated. */
  readonly hasWritten: boolean
}

export interface ActiveRun {
  readonly run: BotRun
  readonly host: Host
  readonly signal: AbortSignal
  /** End of the wall limit in epoch ms; set at the first start and kept on a repeat. */
  deadline: number | undefined
  isIdle: boolean
  /** Called when `isIdle` has changed; a run that ends stops being idle first. */
  onIdle: (isIdle: boolean) => void
  end: (ended: Ended) => void
}

/** Returns the rest of the wall limit in ms. */
export function remainingMs({ run, deadline }: ActiveRun): number {
  return deadline === undefined ? run.limits.wallMs : deadline - Date.now()
}

export class ExecutorProcess {
  readonly startedAt = Date.now()
  /** Resolves at the first heartbeat, rejects when the process ends before. */
  readonly ready: Promise<void>
  readonly died: Promise<Death>
  rssMb = 0
  /** Excludes shared pages. */
  ownMb = 0
  isolates = 0
  /** The run whose thread cannot be ended: the process takes no more runs and ends after its last. */
  stuckRun: BotRun | undefined
  readonly active = new Map<number, ActiveRun>()
  readonly #child: ChildProcess
  readonly #pipe: Duplex
  readonly #stopped = new Map<number, BotRun>()
  readonly #codes = new Set<string>()
  readonly #libraries = new Set<string>()
  readonly #loweredThreads = new Set<string>()
  #death: Death | undefined
  #isDead = false
  #hasReported = false
  #lastRun = 0
  #lastHeard = Date.now()
  #idleRssMb = 0
  #idleSeenAt = 0
  #stderr = ''

  constructor(mostIsolates = Number.POSITIVE_INFINITY) {
    this.#child = spawn(process.execPath, executorArguments(mostIsolates), {
      env: ALLOCATOR,
      cwd: '/',
      stdio: ['pipe', 'ignore', 'pipe', 'pipe'],
    })
    // A child that exits early does not read it; the exit handler below reports that.
    this.#child.stdin?.on('error', () => {}).end(executorInput())
    // `stdio` above makes the fourth a pipe, which Node opens in both directions.
    this.#pipe = this.#child.stdio[3] as Duplex
    const ready = Promise.withResolvers<void>()
    const died = Promise.withResolvers<Death>()
    this.ready = ready.promise
    this.died = died.promise
    const reader = new FrameReader<FromExecutor>()
    this.#pipe.on('data', (chunk: Buffer) => {
      this.#lastHeard = Date.now()
      this.#hasReported = true
      try {
        for (const frame of reader.push(chunk)) this.#receive(frame)
      } catch {
        this.kill({ cause: 'exit' })
      }
      ready.resolve()
    })
    // The exit handler covers a broken pipe.
    this.#pipe.on('error', () => {})
    this.#child.stderr?.on('data', (chunk) => {
      this.#stderr = `${this.#stderr}${chunk}`.slice(-2000)
    })
    const onEnd = (reason: unknown) => {
      if (this.#isDead) return
      this.#isDead = true
      this.#death ??= { cause: 'exit' }
      this.#endAll(this.#death)
      ready.reject(new Error(`Executor did not start: ${reason} ${this.#stderr}`))
      died.resolve(this.#death)
    }
    this.#child.on('exit', (code, signal) => onEnd(signal ?? code))
    this.#child.on('error', onEnd)
    this.ready.catch(() => {})
  }

  get runs(): number {
    return this.#lastRun
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  /** False once it is being killed. */
  get isAlive(): boolean {
    return this.#death === undefined
  }

  /** True when memory exceeds the normal reserve of V8 and the allocator. */
  get isBloated(): boolean {
    return this.rssMb > BLOATED_MB + Math.max(this.isolates, this.active.size) * WARM_ISOLATE_MB
  }

  start(run: ActiveRun): Promise<Ended> {
    const wallMs = Math.max(1, remainingMs(run))
    run.deadline ??= Date.now() + wallMs
    const id = ++this.#lastRun
    const { promise, resolve } = Promise.withResolvers<Ended>()
    this.#idleSeenAt = 0
    if (this.active.size === 0) this.#idleRssMb = this.rssMb || (readMemory(this.pid)?.rssMb ?? 0)
    const deadline = setTimeout(
      () => this.kill({ cause: 'timeout', guilty: id }),
      wallMs + DEADLINE_GRACE_MS,
    )
    const onAbort = () => {
      this.#send({ t: 'cancel', run: id })
      const late = setTimeout(() => this.kill({ cause: 'cancelled', guilty: id }), CANCEL_MS)
      void promise.then(() => clearTimeout(late))
    }
    run.signal.addEventListener('abort', onAbort, { once: true })
    // Declared as a constant: V8 tenures a function assigned to a property, and with it the whole run.
    const end: ActiveRun['end'] = (ended) => {
      clearTimeout(deadline)
      run.signal.removeEventListener('abort', onAbort)
      this.active.delete(id)
      setIdle(run, false)
      if (ended.t === 'done' && ended.message.status === 'error') this.#rememberStopped(id, run.run)
      resolve(ended)
    }
    run.end = end
    this.active.set(id, run)
    this.#sendCode(run)
    try {
      this.#sendRun(id, run.run, wallMs)
    } catch {
      const message = { t: 'done', run: id, status: 'error', failure: 'thrown' } as const
      const done = { ...message, kind: 'string', cpuMs: 0, wallMs: 0 } as const
      end({ t: 'done', message: done, body: 'The input is too large', log: '' })
    }
    return promise
  }

  /** Errors: a RangeError for an input that does not fit into a frame. */
  #sendRun(id: number, run: BotRun, wallMs: number): void {
    const { botKey, identity, codeHash, inputKind, limits, event, input, fresh } = run
    this.#send(
      {
        t: 'run',
        run: id,
        bot: botKey,
        identity,
        hash: codeHash,
        inputKind,
        limits: { ...limits, wallMs },
        fresh: fresh === true,
        concurrent: run.concurrent === true,
        follow: run.onLog !== undefined,
      },
      event,
      ...(input === undefined ? [] : [input]),
    )
  }

  kill(death: Death): void {
    this.#death ??= death
    this.#child.kill('SIGKILL')
  }

  /** Kills a process that lost its heartbeat or exceeds the memory of its runs. */
  check(): void {
    if (!this.isAlive) return
    const silenceMs = this.#hasReported ? BEATS_MISSING_MS : START_MS
    if (Date.now() - this.#lastHeard > silenceMs) this.kill({ cause: 'heartbeat' })
    const isUnused = this.active.size === 0 && this.#hasReported
    if (isUnused && Date.now() - this.#idleSeenAt < LOOK_MS) return
    this.#idleSeenAt = isUnused ? Date.now() : 0
    const { rssMb, ownMb } = readMemory(this.pid) ?? this
    this.rssMb = rssMb
    this.ownMb = ownMb
    if (this.active.size === 0) return
    lowerPriorityOnceBusy(this.pid, this.#loweredThreads)
    const limits = [...this.active.values()].map(({ run }) => run.limits.memoryMb)
    const runsMb = limits.reduce((sum, limit) => sum + limit, 0)
    // V8 enforces limits late, and warm isolates since it was last unused add their share.
    const allowedMb = runsMb * 1.5 + 64 + this.isolates * WARM_ISOLATE_MB
    if (this.rssMb > this.#idleRssMb + allowedMb) this.kill({ cause: 'memory' })
  }

  /** Resets the heartbeat after this worker's own event loop was blocked. */
  resetHeartbeat(): void {
    this.#lastHeard = Date.now()
  }

  #rememberStopped(id: number, run: BotRun): void {
    this.#stopped.set(id, run)
    setTimeout(() => this.#stopped.delete(id), STOPPED_MS).unref()
  }

  #sendCode({ run: { codeHash, code, format, file = 'bot.js', libraries = [] } }: ActiveRun): void {
    if (this.#codes.has(codeHash)) return
    this.#codes.add(codeHash)
    for (const name of libraries.filter((one) => !this.#libraries.has(one))) {
      this.#libraries.add(name)
      this.#send({ t: 'library', name }, librarySource(name))
    }
    this.#send({ t: 'code', hash: codeHash, format, file, libraries }, code)
  }

  #receive({ header, parts: [first = '', second = ''] }: Frame<FromExecutor>): void {
    switch (header.t) {
      case 'done':
        this.active.get(header.run)?.end({ t: 'done', message: header, body: first, log: second })
        return
      case 'call': {
        const run = this.active.get(header.run)
        if (run) void answerCall(run, header, first, (reply, text) => this.#send(reply, text))
        return
      }
      case 'log':
        this.active.get(header.run)?.run.onLog?.(first)
        return
      case 'fatal':
        this.kill({ cause: header.failure, guilty: header.run })
        return
      case 'lost': {
        const isGuilty = header.isCleared ? false : undefined
        this.active.get(header.run)?.end({ t: 'died', death: { cause: 'memory' }, isGuilty })
        return
      }
      case 'stuck':
        this.stuckRun = this.#stopped.get(header.run)
        return
      case 'idle': {
        const run = this.active.get(header.run)
        if (run) setIdle(run, header.isIdle)
        return
      }
      case 'beat':
        this.isolates = header.isolates
        return
      case 'cache':
        // Caches are not trusted once bot code has run.
        if (this.#lastRun === 0) keepCaches(first, second)
        return
      default:
        header satisfies never
    }
  }

  #send(message: ToExecutor, ...parts: string[]): void {
    if (!this.isAlive) return
    corkForTick(this.#pipe)
    this.#pipe.write(encodeFrame(message, parts))
  }

  #endAll(death: Death): void {
    const isAloneInMemory = death.cause === 'memory' && this.active.size === 1
    for (const [id, run] of [...this.active]) {
      const isGuilty = 'guilty' in death ? death.guilty === id : isAloneInMemory || undefined
      run.end({ t: 'died', death, isGuilty })
    }
  }
}

function setIdle(run: ActiveRun, isIdle: boolean): void {
  if (run.isIdle === isIdle) return
  run.isIdle = isIdle
  run.onIdle(isIdle)
}

const MAX_MESSAGE = 2000

async function answerCall(
  { host }: ActiveRun,
  { run, call, kind }: CallMessage,
  payload: string,
  reply: (message: ReplyMessage, text: string) => void,
): Promise<void> {
  const [ok, text] = await host.answer({ kind, payload }).then(
    (answer) => [true, answer] as const,
    ({ message = 'The call failed' }) => [false, String(message).slice(0, MAX_MESSAGE)] as const,
  )
  const message = { t: 'reply', run, call, mayBeginAnew: !host.hasWritten } as const
  try {
    reply({ ...message, ok }, text)
  } catch {
    // It does not fit into a frame.
    reply({ ...message, ok: false }, 'The answer is too large')
  }
}

let addon: string | undefined

function executorArguments(mostIsolates: number): string[] {
  addon ??= addonPath()
  return [
    '--permission',
    '--allow-addons',
    `--allow-fs-read=${BOOT}`,
    `--allow-fs-read=${addon}`,
    '--disable-warning=ExperimentalWarning',
    '--disable-warning=SecurityWarning',
    BOOT,
    addon,
    String(mostIsolates),
  ]
}

/** The prebuilt addon of this platform, found as isolated-vm's own loader does. */
function addonPath(): string {
  const own = createRequire(import.meta.url).resolve('isolated-vm')
  const loader: { path(folder: string): string } = createRequire(own)('node-gyp-build')
  return loader.path(dirname(own))
}
