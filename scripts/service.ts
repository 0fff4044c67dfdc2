/** A program in the background: started with its log in a file, watched until ready, stopped. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { serviceAccount } from './account.ts'

export interface Service {
  readonly name: string
  readonly url: string
  readonly pid: number
  /** Settles when the process is gone, whatever the reason. */
  readonly ended: Promise<void>
  /** Asks it to end and waits; kills it after 15 s. */
  stop(): Promise<void>
}

export interface Program {
  readonly name: string
  readonly url: string
  readonly command: string
  readonly args: readonly string[]
  /** Written to its standard input: the place for secrets, which `ps` would show as arguments. */
  readonly input?: string
  readonly logFile: string
  readonly stopSignal: NodeJS.Signals
  isReady(): Promise<boolean>
}

const READY_MS = 30_000
const STOP_MS = 15_000

/** Throws with the last line of its log when it ends, or is not ready within 30 s. */
export async function startService(program: Program): Promise<Service> {
  const child = spawnProgram(program)
  const ended = new Promise<void>((resolve) => child.once('close', () => resolve()))
  const failed = new Promise<never>((_, reject) => child.once('error', reject))
  failed.catch(() => undefined)
  const deadline = Date.now() + READY_MS
  while (!(await Promise.race([program.isReady(), failed]))) {
    if (child.exitCode !== null || child.signalCode !== null || Date.now() > deadline) {
      child.kill('SIGKILL')
      throw new Error(`${program.name} did not start: ${lastLine(program.logFile)}`)
    }
    await delay(20)
  }
  return {
    name: program.name,
    url: program.url,
    pid: child.pid ?? 0,
    ended,
    async stop() {
      child.kill(program.stopSignal)
      const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
      await ended
      clearTimeout(timer)
    },
  }
}

// Its own process group: Ctrl-C in a terminal must reach our script alone, which stops all in order.
function spawnProgram(program: Program): ChildProcess {
  const log = openSync(program.logFile, 'a', 0o600)
  try {
    const child = spawn(program.command, program.args, {
      ...serviceAccount(),
      cwd: '/',
      detached: true,
      env: { PATH: process.env.PATH, LANG: 'C.UTF-8', TZ: 'UTC' },
      stdio: ['pipe', log, log],
    })
    child.stdin?.on('error', () => undefined)
    child.stdin?.end(program.input ?? '')
    return child
  } finally {
    closeSync(log)
  }
}

export function lastLine(file: string): string {
  return readFileSync(file, 'utf8').trim().split('\n').at(-1) || 'it said nothing'
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo // a TCP server's address is never a string
  server.close()
  await once(server, 'close')
  return port
}
