/**
 * The executor: a child process that runs the bots of one project, without credentials and with minimal file access.
 * Frames travel on file descriptor 3; arguments are the path of the addon of sandbox.ts and the number of isolates that
 * fit in memory.
 */
import { Socket } from 'node:net'
import { BotCode, type Library } from './bot-code.ts'
import type { BotIsolate } from './isolate.ts'
import type { BotRun, IsolatePort, RunEnd, Watched } from './isolate-port.ts'
import { ProcessorShare } from './isolate-port.ts'
import {
  encodeFrame,
  type Frame,
  FrameReader,
  type FromExecutor,
  type RunMessage,
  type ToExecutor,
} from './messages.ts'
import { Engine } from './sandbox.ts'
import { WarmIsolates } from './warm-isolates.ts'

const BEAT_MS = 1000
/** Also the delay until a waiting run frees its place. */
const WATCH_MS = 5
/** Uncounted time above which even an idle isolate is counted: its thread reported late. */
const LATE_MS = 0.5
/** Time for handling frames before timers run. */
const TURN_MS = 5
/** Name of glue and library frames, hidden from authors. */
const GLUE = 'botica:guest'
const SMALL_BOT = `exports.handler = async (medplum, event) => {
  console.log('input', event.input)
  return event.input
}`

const pipe = new Socket({ fd: 3, readable: true, writable: true })
const reader = new FrameReader<ToExecutor>()
const libraries = new Map<string, Library>()
const codes = new Map<string, BotCode>()
const running = new Map<number, BotIsolate>()
const watched = new Set<Watched>()
const received: Frame<ToExecutor>[] = []
let receiving: NodeJS.Immediate | undefined
let watching: NodeJS.Timeout | undefined

const share = new ProcessorShare()
const port: IsolatePort = {
  engine: new Engine(process.argv[2] ?? ''),
  share,
  glue: { text: '', file: GLUE },
  watch,
  call: (run, call, kind, payload) => send({ t: 'call', run, call, kind }, payload),
  log: (run, text) => send({ t: 'log', run }, text),
  fatal(run, failure) {
    send({ t: 'fatal', run, failure })
    // V8 is broken in one thread: lets the frame leave, then ends the process.
    setTimeout(killSelf, 20)
  },
  stuck: (run) => send({ t: 'stuck', run }),
  idle: (run, isIdle) => send({ t: 'idle', run, isIdle }),
}
const warm = new WarmIsolates(port, Number(process.argv[3]))

pipe.on('data', (chunk: Buffer) => {
  received.push(...reader.push(chunk))
  if (receiving === undefined) receiveAll()
})
// Without a worker there is no work. `exit` would wait for threads that may never end.
pipe.on('close', killSelf)
pipe.on('error', killSelf)

// In order but interruptible: isolates for many runs would delay a heartbeat.
function receiveAll(): void {
  receiving = undefined
  const beganAt = performance.now()
  for (let frame = received.shift(); frame !== undefined; frame = received.shift()) {
    receive(frame)
    if (received.length === 0 || performance.now() - beganAt < TURN_MS) continue
    receiving = setImmediate(receiveAll)
    return
  }
}

function receive({ header, parts: [first = '', second] }: Frame<ToExecutor>): void {
  switch (header.t) {
    case 'run':
      start(header, first, second)
      return
    case 'reply':
      running.get(header.run)?.reply(header, first)
      return
    case 'cancel':
      running.get(header.run)?.stop('cancelled')
      return
    case 'library':
      libraries.set(header.name, {
        name: header.name,
        code: { text: first, file: `${GLUE}/${header.name}` },
      })
      return
    case 'code': {
      const used = header.libraries.flatMap((name) => libraries.get(name) ?? [])
      codes.set(header.hash, new BotCode(header, first, used))
      return
    }
    default:
      header satisfies never
  }
}

/** Called once by boot.cjs. `source`: the guest script; `cache`: its code cache or ''. */
export function open(source: string, cache: string, makeCodeCache: () => string): void {
  port.glue = { text: source, file: GLUE }
  if (cache !== '') {
    port.engine.setCache(port.glue, cache)
    startHeartbeat()
    return
  }
  const run = firstRun()
  const isolate = warm.take(run.message)
  isolate.run(run, () => void makeCaches(run, isolate, makeCodeCache))
}

async function makeCaches(run: BotRun, isolate: BotIsolate, makeCodeCache: () => string) {
  if (isolate.isUsable) send({ t: 'cache' }, await isolate.makeGlueCache(), makeCodeCache())
  await warm.giveBack(run.message, isolate)
  startHeartbeat()
}

/** A warm-up run: code caches cover only functions that have run. */
function firstRun(): BotRun {
  const limits = { wallMs: 5000, cpuMs: 5000, memoryMb: 16, resultBytes: 1024, logBytes: 1024 }
  const first = { t: 'run', run: 1, bot: '', identity: '', hash: '', inputKind: 'json' } as const
  return {
    message: { ...first, limits, fresh: true, concurrent: false, follow: false },
    code: new BotCode({ format: 'commonjs', file: 'index.js' }, SMALL_BOT, []),
    event: '{"context":{"baseUrl":"http://localhost/"}}',
    input: '{}',
  }
}

function startHeartbeat(): void {
  setInterval(beat, BEAT_MS)
  beat()
}

function start(message: RunMessage, event: string, input: string | undefined): void {
  const code = codes.get(message.hash)
  if (!code) throw new Error('A run came before its code')
  begin({ message, code, event, input })
}

function begin(run: BotRun): void {
  const isolate = warm.take(run.message)
  running.set(run.message.run, isolate)
  isolate.run(run, (end) => finish(run, isolate, end))
}

function finish(run: BotRun, isolate: BotIsolate, end: RunEnd): void {
  const { message, code } = run
  running.delete(message.run)
  if (end.isTooLong) {
    code.shortRuns.refute()
    void warm.giveBack(message, isolate)
    const wallMs = Math.max(1, message.limits.wallMs - end.message.wallMs)
    begin({ ...run, message: { ...message, limits: { ...message.limits, wallMs } } })
    return
  }
  if (end.lostBy !== undefined) {
    send({ t: 'lost', run: message.run, isCleared: end.lostBy === 'another' })
    void warm.giveBack(message, isolate)
    return
  }
  code.shortRuns.note(end.message.cpuMs)
  const give = (memoryMb: number | undefined) => {
    sendEnd(message, end, memoryMb)
    void warm.giveBack(message, isolate)
  }
  if (isolate.isWorthMeasuring(end.message.cpuMs)) void isolate.heapMbSoon().then(give)
  else give(isolate.lastHeapMb)
}

function sendEnd(message: RunMessage, end: RunEnd, memoryMb: number | undefined): void {
  const { status, failure, kind, cpuMs, wallMs } = end.message
  const { resultBytes, logBytes } = message.limits
  const log = withinBytes(end.log, logBytes)
  const done = { t: 'done', run: message.run, cpuMs, wallMs, memoryMb } as const
  if (end.unsent !== '') send({ t: 'log', run: message.run }, end.unsent)
  if (Buffer.byteLength(end.body) > resultBytes) {
    send({ ...done, status: 'error', failure: 'result', kind: 'undefined' }, '', log)
  } else {
    send({ ...done, status, kind, ...(failure ? { failure } : {}) }, end.body, log)
  }
}

function watch(isolate: Watched): void {
  watched.add(isolate)
  if (watching !== undefined) return
  share.restart()
  watching = setInterval(watchAll, WATCH_MS)
}

function watchAll(): void {
  let enteredMs = 0
  for (const isolate of running.values()) {
    // Counted at each entry; polling hundreds of waiting runs would be costly.
    if (isolate.isOnMainThread) continue
    const { uncountedMs } = isolate
    enteredMs += uncountedMs
    if (uncountedMs > LATE_MS) watched.add(isolate)
  }
  share.measure(enteredMs)
  for (const isolate of watched) if (!isolate.watch()) watched.delete(isolate)
  if (running.size > 0) return
  clearInterval(watching)
  watching = undefined
}

function beat(): void {
  warm.sweep()
  send({ t: 'beat', isolates: running.size + warm.idleCount })
}

/** Each write wakes the worker, so the messages of one turn of the event loop go together. */
function send(message: FromExecutor, ...parts: string[]): void {
  if (pipe.writableCorked === 0) {
    pipe.cork()
    setImmediate(() => pipe.uncork())
  }
  pipe.write(encodeFrame(message, parts))
}

/** Keeps the head and tail of a long text; the glue counts characters, not bytes. */
function withinBytes(text: string, limit: number): string {
  if (text.length * 3 <= limit || Buffer.byteLength(text) <= limit) return text
  const bytes = Buffer.from(text)
  const half = Math.floor((limit - 16) / 2)
  return `${bytes.subarray(0, half).toString()}\n…\n${bytes.subarray(-half).toString()}`
}

function killSelf(): void {
  process.kill(process.pid, 'SIGKILL')
}
