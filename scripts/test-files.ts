/** Runs test files side by side, each in a process of its own that prints its report as TAP. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFailures, readSummary } from './tap-report.ts'

export interface FileEnd {
  readonly file: string
  readonly ms: number
  readonly passed: number
  readonly failed: number
  /** Each failed assertion with its difference and its place. */
  readonly failures: readonly string[]
}

export interface RunOptions {
  readonly cwd: string
  readonly env: NodeJS.ProcessEnv
  readonly jobs: number
  /** No file is started after the first that fails. */
  readonly isBail: boolean
  /** Its reason is the signal that ends the files which run. */
  readonly signal: AbortSignal
  onEnd(end: FileEnd): void
}

/**
 * tap's own runner loads source maps, mocks and coverage into every process, which is 1 CPU second a file.
 * The young generation is as large as in production from the start: a file is over before it has grown.
 */
const ARGUMENTS = [
  '--max-semi-space-size=32',
  '--min-semi-space-size=16',
  '--disable-warning=ExperimentalWarning',
]
/** A file fails by itself after this time; a minute later its process is killed. */
const TIMEOUT_S = 400
const KILL_MS = (TIMEOUT_S + 60) * 1000

/** The files that were run, in the order of their ends. */
export async function runFiles(files: readonly string[], options: RunOptions): Promise<FileEnd[]> {
  const waiting = [...files]
  const ends: FileEnd[] = []
  const { isBail, signal } = options
  const lane = async () => {
    for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) {
      if (signal.aborted || (isBail && ends.some(({ failed }) => failed > 0))) return
      const end = await runFile(file, options)
      ends.push(end)
      options.onEnd(end)
    }
  }
  await Promise.all(Array.from({ length: options.jobs }, lane))
  return ends
}

async function runFile(file: string, { cwd, env, isBail, signal }: RunOptions): Promise<FileEnd> {
  const startedAt = performance.now()
  const child = spawn(process.execPath, [...ARGUMENTS, file], {
    cwd,
    env: { ...env, TAP: '1', TAP_BAIL: isBail ? '1' : '0', TAP_TIMEOUT: String(TIMEOUT_S) },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const end = () => child.kill(signal.reason)
  signal.addEventListener('abort', end)
  const timer = setTimeout(() => child.kill('SIGKILL'), KILL_MS)
  const chunks: Buffer[] = []
  child.stdout.on('data', (chunk: Buffer) => chunks.push(chunk))
  const [code, killedBy] = await once(child, 'close')
  clearTimeout(timer)
  signal.removeEventListener('abort', end)
  const report = Buffer.concat(chunks).toString()
  const failures = readFailures(report)
  const { passed, failed } = readSummary(report) ?? { passed: 0, failed: 1 }
  // A process that ends before its report does is a failure, even if all that it had reported passed.
  const isGood = code === 0 && failed === 0
  if (!isGood && failures.length === 0) {
    const how = killedBy ?? `exit code ${code}`
    failures.push(`not ok - ${file} ended by ${how}\n${report.slice(-2000)}`)
  }
  const ms = performance.now() - startedAt
  return { file, ms, passed, failed: isGood ? 0 : Math.max(failed, 1), failures }
}
