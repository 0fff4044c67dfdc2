/** A background program: starts it with a log file, waits until ready, and stops it. */
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
  readonly folder: string
  /** Resolves with the outcome when the process has ended. */
  readonly ended: Promise<string>
  /** Terminates the process, and kills it after `withinMs`; 15 s by default. */
  stop(withinMs?: number): Promise<void>
}

export interface Program {
  readonly name: string
  readonly url: string
  readonly command: string
  readonly args: readonly string[]
  readonly cwd?: string
  readonly env: NodeJS.ProcessEnv
  /** Standard input, for secrets: `ps` would show arguments. */
  readonly input?: string
  /** Contains `log`, the previous log (`log.old`) and the process record. */
  readonly folder: string
  readonly account: Account | undefined
  readonly stopSignal: NodeJS.Signals
  isReady(): Promise<boolean>
}

const READY_MS = 40_000
const STOP_MS = 15_000
const FIRST_PORT = 16_384
const LAST_PORT = 32_767

/** Called once the process runs, so that it can be stopped before it is ready. */
export type OnSpawn = (service: Service) => void

/** Resolves when ready; throws its last error when it ends first or takes longer than 40 s. */
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

// A separate process group: Ctrl-C reaches only our script, which stops all in order.
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
    // No earlier log at the first start.
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

/** Returns the last error in a program's log: the message of a JSON line, otherwise the error or the line itself. */
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

/** Returns a port below the ephemeral range, from which the system could reassign it before its use. */
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
