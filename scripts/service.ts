/** A program in the background: started with its log in a file, watched until ready, stopped. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { Account } from './account.ts'
import { terminateLeftover, writeProcessNote } from './processes.ts'

export interface Service {
  readonly name: string
  readonly url: string
  /** Holds its log. */
  readonly folder: string
  /** Settles when the process is gone, whatever the reason, with how it went. */
  readonly ended: Promise<string>
  /** Asks it to end, waits, and kills it after so many milliseconds; 15 s by default. */
  stop(withinMs?: number): Promise<void>
}

export interface Program {
  readonly name: string
  readonly url: string
  readonly command: string
  readonly args: readonly string[]
  readonly cwd?: string
  readonly env: NodeJS.ProcessEnv
  /** Written to its standard input: the place for secrets, which `ps` would show as arguments. */
  readonly input?: string
  /** Holds `log`, the log before (`log.old`) and a note of the process. */
  readonly folder: string
  /** The account to run as; the caller's own when undefined. */
  readonly account: Account | undefined
  readonly stopSignal: NodeJS.Signals
  isReady(): Promise<boolean>
}

const READY_MS = 40_000
const STOP_MS = 15_000
const FIRST_PORT = 16_384
const LAST_PORT = 32_767

/** Gets a process as soon as it runs, to be able to stop it before it is ready. */
export type OnSpawn = (service: Service) => void

/** Resolves when it is ready; throws its last words when it ends first or takes longer than 40 s. */
export async function startService(program: Program, onSpawn?: OnSpawn): Promise<Service> {
  const note = join(program.folder, 'process.json')
  await terminateLeftover(note, program.stopSignal)
  const child = await spawnProgram(program)
  writeProcessNote(note, child.pid ?? 0)
  const ended = new Promise<string>((resolve) => {
    child.once('close', (code, signal) => resolve(signal ? `by ${signal}` : `with code ${code}`))
  })
  const service: Service = {
    name: program.name,
    url: program.url,
    folder: program.folder,
    ended,
    async stop(withinMs = STOP_MS) {
      child.kill(program.stopSignal)
      const timer = setTimeout(() => child.kill('SIGKILL'), withinMs)
      await ended
      clearTimeout(timer)
      rmSync(note, { force: true })
    },
  }
  onSpawn?.(service)
  await untilReady(program, child)
  return service
}

// Its own process group: Ctrl-C in a terminal must reach our script alone, which stops all in order.
async function spawnProgram(program: Program): Promise<ChildProcess> {
  const file = join(program.folder, 'log')
  keepOldLog(file)
  const log = openSync(file, 'w', 0o600)
  try {
    const child = spawn(program.command, program.args, {
      ...program.account,
      cwd: program.cwd ?? '/',
      detached: true,
      env: program.env,
      stdio: ['pipe', log, log],
    })
    await once(child, 'spawn')
    child.stdin?.on('error', () => undefined)
    child.stdin?.end(program.input ?? '')
    return child
  } finally {
    closeSync(log)
  }
}

function keepOldLog(file: string): void {
  try {
    renameSync(file, `${file}.old`)
  } catch {
    // The first start has no log before it.
  }
}

async function untilReady(program: Program, child: ChildProcess): Promise<void> {
  const deadline = Date.now() + READY_MS
  while (!(await program.isReady())) {
    const isGone = child.exitCode !== null || child.signalCode !== null
    if (isGone || Date.now() > deadline) {
      child.kill('SIGKILL')
      throw new Error(`${program.name} did not start: ${readLastError(program.folder)}`)
    }
    await delay(25)
  }
}

/** Returns the last words in a program's log: the message of a JSON line, else the error or the line itself. */
export function readLastError(folder: string): string {
  const lines = readFileSync(join(folder, 'log'), 'utf8').trim().split('\n')
  const line = lines.findLast((text) => /^\w*Error\b/.test(text)) ?? lines.at(-1)
  return parseLogMessage(line ?? '') || 'it said nothing'
}

function parseLogMessage(line: string): string {
  try {
    const { msg, err }: { msg?: string; err?: { message?: string } } = JSON.parse(line)
    return [msg, err?.message].filter(Boolean).join(': ')
  } catch {
    return line
  }
}

/**
 * Below those that systems give to connections going out: one of these would now and then have the port
 * by the time it is used.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(FIRST_PORT, LAST_PORT + 1)
    const server = createServer().listen(port, '127.0.0.1')
    try {
      await once(server, 'listening')
    } catch {
      continue
    }
    server.close()
    await once(server, 'close')
    return port
  }
}
