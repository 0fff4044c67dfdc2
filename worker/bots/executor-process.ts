/**
 * One executor: a child process without environment or permissions, and its state in this worker.
 * It is killed, never asked to stop: its threads may no longer respond.
 */
import type { ChildProcess } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { getPriority, setPriority } from 'node:os'
import { platform } from 'node:process'
import type { Duplex } from 'node:stream'
import { librarySource } from '../../shared/bots/libraries/table.ts'
import { corkForTick } from '../../shared/core/batching.ts'
import {
  type CallMessage,
  encodeFrame,
  type Frame,
  FrameReader,
  type FromExecutor,
  type ReplyMessage,
  type ToExecutor,
} from '../executor/messages.ts'
import type { BotRun, DoneRun, HostCall } from './run-result.ts'
import { keepCaches, spawnExecutor } from './spawn-executor.ts'

/** An executor silent for this long has missed two heartbeats. */
const BEATS_MISSING_MS = 3000
/** A busy machine takes seconds to start a process. */
const START_MS = 30_000
/** How long after the end of a run its thread may still be reported as stuck. */
const STOPPED_MS = 5000
const CANCEL_MS = 1000
const DEADLINE_GRACE_MS = 500
const WARM_ISOLATE_MB = 4
/** Memory beyond that of its isolates, such as code, above which an executor takes no new run and ends after its last. */
const BLOATED_MB = 400
const LOOK_MS = 1000

/** How an executor ended; `guilty` is the run that caused it, if known. */
export type Death =
  | { readonly cause: 'exit' | 'heartbeat' | 'memory' | 'closed' }
  | { readonly cause: 'timeout' | 'memory' | 'cancelled'; readonly guilty: number }

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
    const { child, pipe } = spawnExecutor(mostIsolates)
    this.#child = child
    this.#pipe = pipe
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

// Memory and priority on Linux. On other systems the limits of isolates must suffice.

function readMemory(pid: number): { readonly rssMb: number; readonly ownMb: number } | undefined {
  if (platform !== 'linux') return undefined
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'latin1')
    const match = /^VmRSS:\s+(\d+) kB\nRssAnon:\s+(\d+) kB/m.exec(status)
    return match ? { rssMb: Number(match[1]) / 1024, ownMb: Number(match[2]) / 1024 } : undefined
  } catch {
    return undefined
  }
}

// A CPU-heavy executor gets a lower priority, so that other processes need not wait for a crowd of runs. Only root can
// raise a priority again, so it lasts as long as the process. The main thread keeps its priority: it runs no long bot
// code and dispatches runs.

/** Nice value: a core is then shared 3 : 1. https://man7.org/linux/man-pages/man7/sched.7.html */
const NICER_BY = 5
const LOWEST = 19
const MUCH_MS = 1000
/** The kernel reports in hundredths of a second on every machine. */
const TICK_MS = 10

/** Lowers the priority of a busy process. `lowered` holds the threads already lowered; later ones follow. */
function lowerPriorityOnceBusy(pid: number, lowered: Set<string>): void {
  if (platform !== 'linux') return
  try {
    if (lowered.size === 0 && usedMs(pid) < MUCH_MS) return
    const priority = Math.min(getPriority() + NICER_BY, LOWEST)
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      if (Number(thread) === pid || lowered.has(thread)) continue
      setPriority(Number(thread), priority)
      lowered.add(thread)
    }
  } catch {
    // The process or thread ended meanwhile.
  }
}

/** Returns user and system time, parsed after the command, which may contain spaces and brackets (proc(5)). */
function usedMs(pid: number): number {
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}
