/**
 * One executor: a child process without environment and without rights, and what this worker knows about it.
 * It is killed, never asked to stop: its threads may be past listening.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { getPriority, setPriority } from 'node:os'
import { platform } from 'node:process'
import type { Duplex } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { type Frame, FrameReader, writeFrame } from '../../executor/frames.ts'
import type { FromExecutor, ToExecutor } from '../../executor/messages.ts'
import { type ActiveRun, answerCall, type Death, type Ended, remainingMs } from '../active-run.ts'
import { librarySource } from '../libraries/sources.ts'
import type { BotRun } from '../run-result.ts'
import { executorInput, keepCaches } from './sources.ts'

const BOOT = fileURLToPath(new URL('../../executor/boot.cjs', import.meta.url))
/** An executor that has nothing to do for so long has lost its beat: two are missing. */
const BEATS_MISSING_MS = 3000
/** A busy machine takes seconds to start a process. */
const START_MS = 30_000
/** How long after the end of a run its thread may still be reported as stuck. */
const STOPPED_MS = 5000
const CANCEL_MS = 1000
const DEADLINE_GRACE_MS = 500
const WARM_ISOLATE_MB = 4
/**
 * The C library keeps what it was given back, but for blocks beyond a size: the half of an isolate that V8 takes from it
 * has such blocks, while those that a compilation takes again and again (32 KB) are below. After a burst of 750
 * isolates an executor keeps 200 instead of 370 MB. https://man7.org/linux/man-pages/man3/mallopt.3.html
 */
const ALLOCATOR = { MALLOC_MMAP_THRESHOLD_: '40960' }
/** Beyond what its isolates take, an executor that has become so large takes no new run and ends after its last. */
const BLOATED_MB = 400
/** How often an executor without a run is looked at, of which there may be hundreds. */
const LOOK_MS = 1000
/** Codes an executor keeps by hash. */
const MAX_CODES = 200

export class ExecutorProcess {
  readonly startedAt = Date.now()
  /** Resolves at the first heartbeat, rejects when the process ends before. */
  readonly ready: Promise<void>
  readonly died: Promise<Death>
  rssMb = 0
  /** Without the pages that it shares with others. */
  ownMb = 0
  isolates = 0
  /** The run whose thread cannot be ended: the process should take no more and end after its last. */
  spentBy: BotRun | undefined
  readonly active = new Map<number, ActiveRun>()
  readonly #child: ChildProcess
  readonly #pipe: Duplex
  readonly #stopped = new Map<number, BotRun>()
  readonly #codes = new Set<string>()
  readonly #libraries = new Set<string>()
  readonly #behind = new Set<string>()
  #death: Death | undefined
  #isDead = false
  #hasSpoken = false
  #lastRun = 0
  #lastHeard = Date.now()
  #restingRssMb = 0
  #restSeenAt = 0
  #stderr = ''

  /** `mostIsolates` are what the worker has memory for. */
  constructor(mostIsolates = Number.POSITIVE_INFINITY) {
    this.#child = spawn(process.execPath, executorArguments(mostIsolates), {
      env: ALLOCATOR,
      cwd: '/',
      stdio: ['pipe', 'ignore', 'pipe', 'pipe'],
    })
    // A child that ends at once does not read it; its exit is heard below.
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
      this.#hasSpoken = true
      try {
        for (const frame of reader.push(chunk)) this.#hear(frame)
      } catch {
        this.kill({ cause: 'exit' })
      }
      ready.resolve()
    })
    // The exit tells all there is to know about a broken pipe.
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

  /** How many it was given so far. */
  get runs(): number {
    return this.#lastRun
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  /** False from the moment it is to be killed. */
  get isAlive(): boolean {
    return this.#death === undefined
  }

  /** V8 and the allocator keep what they have been given back for the next burst; this is more than that. */
  get isBloated(): boolean {
    return this.rssMb > BLOATED_MB + Math.max(this.isolates, this.active.size) * WARM_ISOLATE_MB
  }

  /** Sends the run with its wall limit, or what is left of it. */
  start(run: ActiveRun): Promise<Ended> {
    const wallMs = Math.max(1, remainingMs(run))
    run.deadline ??= Date.now() + wallMs
    const id = ++this.#lastRun
    const { promise, resolve } = Promise.withResolvers<Ended>()
    this.#restSeenAt = 0
    if (this.active.size === 0) this.#restingRssMb = this.rssMb || (memoryOf(this.pid)?.rssMb ?? 0)
    const deadline = setTimeout(
      () => this.kill({ cause: 'timeout', guilty: id }),
      wallMs + DEADLINE_GRACE_MS,
    )
    const onAbort = () => {
      this.#say({ t: 'cancel', run: id })
      const late = setTimeout(() => this.kill({ cause: 'cancelled', guilty: id }), CANCEL_MS)
      void promise.then(() => clearTimeout(late))
    }
    run.signal.addEventListener('abort', onAbort, { once: true })
    // Named first: V8 makes a function old at once that is written into a property, and with it all of the run.
    const end: ActiveRun['end'] = (ended) => {
      clearTimeout(deadline)
      run.signal.removeEventListener('abort', onAbort)
      this.active.delete(id)
      rest(run, false)
      if (ended.t === 'done' && ended.message.status === 'error') this.#rememberStopped(id, run.run)
      resolve(ended)
    }
    run.end = end
    this.active.set(id, run)
    this.#sendCode(run)
    const { botKey, asker, codeHash, inputKind, limits, event, input, fresh } = run.run
    this.#say(
      {
        t: 'run',
        run: id,
        bot: botKey,
        asker,
        hash: codeHash,
        inputKind,
        limits: { ...limits, wallMs },
        fresh: fresh === true,
        concurrent: run.run.concurrent === true,
        follow: run.run.onLog !== undefined,
      },
      event,
      ...(input === undefined ? [] : [input]),
    )
    return promise
  }

  kill(death: Death): void {
    this.#death ??= death
    this.#child.kill('SIGKILL')
  }

  /** Kills a process that lost its heartbeat or takes more memory than its runs may. */
  check(): void {
    if (!this.isAlive) return
    const silenceMs = this.#hasSpoken ? BEATS_MISSING_MS : START_MS
    if (Date.now() - this.#lastHeard > silenceMs) this.kill({ cause: 'heartbeat' })
    const rests = this.active.size === 0 && this.#hasSpoken
    if (rests && Date.now() - this.#restSeenAt < LOOK_MS) return
    this.#restSeenAt = rests ? Date.now() : 0
    const { rssMb, ownMb } = memoryOf(this.pid) ?? this
    this.rssMb = rssMb
    this.ownMb = ownMb
    if (this.active.size === 0) return
    if (platform === 'linux') stepBehindOnceBusy(this.pid, this.#behind)
    const limits = [...this.active.values()].map(({ run }) => run.limits.memoryMb)
    const runsMb = limits.reduce((sum, limit) => sum + limit, 0)
    // V8 enforces the limits late, and warm isolates that came since the process last rested take their part.
    const allowedMb = runsMb * 1.5 + 64 + this.isolates * WARM_ISOLATE_MB
    if (this.rssMb > this.#restingRssMb + allowedMb) this.kill({ cause: 'memory' })
  }

  /** The event loop of this worker stood still, so silence means nothing. */
  forgive(): void {
    this.#lastHeard = Date.now()
  }

  #rememberStopped(id: number, run: BotRun): void {
    this.#stopped.set(id, run)
    setTimeout(() => this.#stopped.delete(id), STOPPED_MS).unref()
  }

  #sendCode({ run: { codeHash, code, format, file = 'bot.js', libraries = [] } }: ActiveRun): void {
    if (this.#codes.delete(codeHash)) {
      this.#codes.add(codeHash)
      return
    }
    const [oldest] = this.#codes
    if (this.#codes.size >= MAX_CODES && oldest !== undefined) {
      this.#codes.delete(oldest)
      this.#say({ t: 'forget', hash: oldest })
    }
    this.#codes.add(codeHash)
    for (const name of libraries.filter((one) => !this.#libraries.has(one))) {
      this.#libraries.add(name)
      this.#say({ t: 'library', name }, librarySource(name))
    }
    this.#say({ t: 'code', hash: codeHash, format, file, libraries }, code)
  }

  #hear({ header, parts: [first = '', second = ''] }: Frame<FromExecutor>): void {
    switch (header.t) {
      case 'done':
        this.active.get(header.run)?.end({ t: 'done', message: header, body: first, log: second })
        return
      case 'call': {
        const run = this.active.get(header.run)
        if (run) void answerCall(run, header, first, (reply, text) => this.#say(reply, text))
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
        this.spentBy = this.#stopped.get(header.run)
        return
      case 'rest': {
        const run = this.active.get(header.run)
        if (run) rest(run, header.isResting)
        return
      }
      case 'beat':
        this.isolates = header.isolates
        return
      case 'cache':
        // Whoever has run code of bots is not believed.
        if (this.#lastRun === 0) keepCaches(first, second)
        return
      default:
        header satisfies never
    }
  }

  #say(message: ToExecutor, ...parts: string[]): void {
    if (this.isAlive) writeFrame(this.#pipe, message, parts)
  }

  #endAll(death: Death): void {
    const isAloneInMemory = death.cause === 'memory' && this.active.size === 1
    for (const [id, run] of [...this.active]) {
      const isGuilty = 'guilty' in death ? death.guilty === id : isAloneInMemory || undefined
      run.end({ t: 'died', death, isGuilty })
    }
  }
}

function rest(run: ActiveRun, isResting: boolean): void {
  if (run.isResting === isResting) return
  run.isResting = isResting
  run.onRest(isResting)
}

function executorArguments(mostIsolates: number): string[] {
  const addon = addonPath()
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

let foundAddon: string | undefined

/** The prebuilt addon of this platform, found the way isolated-vm's own loader finds it. */
function addonPath(): string {
  if (foundAddon === undefined) {
    const own = createRequire(import.meta.url).resolve('isolated-vm')
    const folder = own.slice(0, own.lastIndexOf('/'))
    const loader: { path(folder: string): string } = createRequire(own)('node-gyp-build')
    foundAddon = loader.path(folder)
  }
  return foundAddon
}

/** Linux only; elsewhere memory is bounded by the isolates' own limits. */
function memoryOf(pid: number): { readonly rssMb: number; readonly ownMb: number } | undefined {
  if (platform !== 'linux') return undefined
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'latin1')
    const match = /^VmRSS:\s+(\d+) kB\nRssAnon:\s+(\d+) kB/m.exec(status)
    return match ? { rssMb: Number(match[1]) / 1024, ownMb: Number(match[2]) / 1024 } : undefined
  } catch {
    return undefined
  }
}

// * How executors share the processor with everybody else (Linux). The bots of one that have used much step behind:
// whoever serves others, and the bots of a project that asks for little, then need not wait for a crowd of runs.
// It costs nothing while nobody else wants the processor. Nobody but root can step forward again, so it lasts as
// long as the process does. Its first thread runs no bot, it hands runs over: it stays, since a place for which
// it waited behind the bots that compute would be empty meanwhile.

/** Below this process: a core is then shared 3 : 1. https://man7.org/linux/man-pages/man7/sched.7.html */
const BEHIND = 5
const LOWEST = 19
const MUCH_MS = 1000
/** The kernel reports in hundredths of a second, whatever its own clock. */
const TICK_MS = 10

/** `behind` are the threads that have stepped behind; those that came since the last look follow. */
function stepBehindOnceBusy(pid: number, behind: Set<string>): void {
  try {
    if (behind.size === 0 && usedMs(pid) < MUCH_MS) return
    const priority = Math.min(getPriority() + BEHIND, LOWEST)
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      if (Number(thread) === pid || behind.has(thread)) continue
      setPriority(Number(thread), priority)
      behind.add(thread)
    }
  } catch {
    // The process, or a thread of it, ended meanwhile; or this is no Linux.
  }
}

/** User and system time; the fields after the command, which may hold spaces and brackets itself (proc(5)). */
function usedMs(pid: number): number {
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}
