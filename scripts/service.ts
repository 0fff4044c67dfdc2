/**
 * Background programs: starts them with a log file, waits until ready, and stops them. A record of each running process
 * lets the next run wait for those that a killed one has left.
 */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import {
  accessSync,
  closeSync,
  constants,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { delimiter, join, resolve } from 'node:path'
import { StringDecoder } from 'node:string_decoder'
import { setTimeout as delay } from 'node:timers/promises'
import type { Account } from './account.ts'

export interface Service {
  readonly name: string
  readonly pid: number
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
  readonly account?: Account | undefined
  readonly stopSignal?: NodeJS.Signals
  /** Rejects until the program is ready. */
  check(): Promise<unknown>
}

const ROOT = resolve(import.meta.dirname, '..')
const READY_MS = 40_000
const STOP_MS = 15_000
const SURVIVOR_MS = 10_000
const LOG_MS = 250
const FIRST_PORT = 16_384
const LAST_PORT = 32_767

/** Ends a group when its input does: a subshell holds the pipe, so that the program gets none of it. */
const GROUP = `
exec 3<&0 </dev/null
(trap '' TERM; cat <&3; kill -TERM 0; sleep 5; kill -KILL 0) >/dev/null 2>&1 &
exec "$0" "$@" 3<&-`

/** Called once the process runs, so that it can be stopped before it is ready. */
export type OnSpawn = (service: Service) => void

/** Resolves when ready; throws its last error when it ends first or takes longer than 40 s. */
export async function startService(program: Program, onSpawn?: OnSpawn): Promise<Service> {
  const { name, url, folder, stopSignal = 'SIGTERM' } = program
  const note = join(folder, 'process.json')
  const child = await spawnProgram(program)
  const pid = child.pid ?? 0
  writeProcessNote(note, pid)
  const ended = once(child, 'close').then(([code, signal]) =>
    signal ? `by ${signal}` : `with code ${code}`,
  )
  const stop = async (withinMs = STOP_MS) => {
    child.kill(stopSignal)
    const timer = setTimeout(() => child.kill('SIGKILL'), withinMs)
    await ended
    clearTimeout(timer)
    rmSync(note, { force: true })
  }
  const service: Service = { name, pid, url, folder, ended, stop }
  onSpawn?.(service)
  const deadline = Date.now() + READY_MS
  const isReady = () =>
    program.check().then(
      () => true,
      () => false,
    )
  while (!(await isReady())) {
    const isGone = child.exitCode !== null || child.signalCode !== null
    if (isGone || Date.now() > deadline) {
      child.kill('SIGKILL')
      throw new Error(`${name} did not start: ${readLastError(folder)}`)
    }
    await delay(25)
  }
  return service
}

/**
 * Starts a program in its own process group. Once the child's input is closed, or this process has ended in any way, all
 * processes of the group get SIGTERM, and after 5 s SIGKILL.
 */
export function spawnGroup(
  command: string,
  args: readonly string[],
  { stdio, ...options }: SpawnOptions & { readonly stdio: readonly ('pipe' | 'inherit')[] },
): ChildProcess {
  return spawn('sh', ['-c', GROUP, command, ...args], {
    ...options,
    detached: true,
    stdio: ['pipe', ...stdio],
  })
}

// A separate process group: Ctrl-C reaches only our script, which stops all in order.
async function spawnProgram(program: Program): Promise<ChildProcess> {
  const file = join(program.folder, 'log')
  try {
    renameSync(file, `${file}.old`)
  } catch {
    // No earlier log at the first start.
  }
  const log = openSync(file, 'w', 0o600)
  const [command = '', ...args] = boundToParent(program)
  const child = spawn(command, args, {
    ...program.account,
    cwd: program.cwd ?? '/',
    detached: true,
    env: program.env,
    stdio: ['pipe', log, log],
  })
  try {
    await once(child, 'spawn')
  } finally {
    closeSync(log)
  }
  child.stdin?.on('error', () => undefined)
  child.stdin?.end(program.input ?? '')
  return child
}

/** Where util-linux is installed, the program gets its stop signal also when this process is killed. */
function boundToParent({ command, args, stopSignal = 'SIGTERM' }: Program): readonly string[] {
  const wrapper = findOnPath('setpriv')
  return [...(wrapper ? [wrapper, '--pdeathsig', stopSignal] : []), command, ...args]
}

/** Finds an installed program. */
export function findOnPath(name: string): string | undefined {
  const folders = (process.env.PATH ?? '').split(delimiter)
  return folders.map((folder) => join(folder, name)).find(isExecutable)
}

export function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/**
 * Starts web or worker by the command of the Procfile, with its log in `folder`, next to a web on PORT. A worker is
 * ready when that web sees one.
 */
export async function startProcess(
  name: 'web' | 'worker',
  folder: string,
  env: NodeJS.ProcessEnv,
  onSpawn?: OnSpawn,
): Promise<Service> {
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const url = `http://127.0.0.1:${env.PORT}/`
  const program: Program = {
    name: name === 'web' ? 'The web process' : 'The worker',
    url,
    command: process.execPath,
    args: nodeArguments(name),
    cwd: ROOT,
    // Each arena of malloc keeps memory for its threads; two save 7 MB of a web process under load.
    env: { MALLOC_ARENA_MAX: '2', ...env },
    folder,
    check: () => checkHealth(`${url}${name === 'web' ? 'livez' : 'healthcheck'}`),
  }
  return await startService(program, onSpawn)
}

async function checkHealth(url: string): Promise<void> {
  const response = await fetch(url, { signal: AbortSignal.timeout(5000) })
  const body = await response.text()
  if (!response.ok || body.includes('"workers":false')) throw new Error(body)
}

/** Returns a Procfile command's arguments for Node, run in the repository root. */
export function nodeArguments(name: 'web' | 'worker'): string[] {
  const procfile = readFileSync(join(ROOT, 'Procfile'), 'utf8')
  const command = new RegExp(`^${name}: node (.*)$`, 'm').exec(procfile)?.[1]
  if (command === undefined) throw new Error(`The Procfile starts no ${name} with node`)
  return command.split(' ')
}

/** Calls `onLine` with each line of a log until this process ends, without keeping it alive. */
export function followLog(folder: string, onLine: (line: string) => void): void {
  const descriptor = openSync(join(folder, 'log'), 'r')
  const decoder = new StringDecoder()
  const buffer = Buffer.alloc(65_536)
  let rest = ''
  const look = () => {
    for (let size = readSync(descriptor, buffer); size > 0; size = readSync(descriptor, buffer)) {
      const lines = (rest + decoder.write(buffer.subarray(0, size))).split('\n')
      rest = lines.pop() ?? ''
      for (const line of lines) onLine(line)
    }
  }
  setInterval(look, LOG_MS).unref()
}

/** Returns the last error in a program's log: the message of a JSON line, otherwise the error or the line itself. */
export function readLastError(folder: string): string {
  const lines = readFileSync(join(folder, 'log'), 'utf8').trim().split('\n')
  const line = lines.findLast((text) => /^\w*Error\b/.test(text)) ?? lines.at(-1) ?? ''
  try {
    const { msg, err }: { msg?: string; err?: { message?: string } } = JSON.parse(line)
    return [msg, err?.message].filter(Boolean).join(': ')
  } catch {
    return line || 'it logged nothing'
  }
}

export function writeProcessNote(file: string, pid: number): void {
  const note = { pid, started: readStartTime(pid) ?? '' }
  writeFileSync(file, JSON.stringify(note), { mode: 0o600 })
}

/** Returns the pid of a recorded process that still runs; its start time distinguishes it from a later one of that pid. */
export function findNotedProcess(file: string): number | undefined {
  try {
    const { pid, started } = JSON.parse(readFileSync(file, 'utf8'))
    return started === readStartTime(pid) ? pid : undefined
  } catch {
    return undefined
  }
}

/** Ends a leftover process; kills it after 10 s. */
export async function terminateLeftover(file: string, signal: NodeJS.Signals): Promise<void> {
  const pid = findNotedProcess(file)
  if (pid === undefined) return
  process.kill(pid, signal)
  const deadline = Date.now() + SURVIVOR_MS
  while (findNotedProcess(file) === pid) {
    if (Date.now() > deadline) process.kill(pid, 'SIGKILL')
    await delay(50)
  }
  rmSync(file, { force: true })
}

/** Returns boot id and start ticks: field 22 of /proc/<pid>/stat, counted after the name's bracket. */
function readStartTime(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    if (fields[0] === 'Z') return undefined
    return `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()} ${fields[19]}`
  } catch {
    return undefined
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
