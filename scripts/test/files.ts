/** Runs test files in parallel, possibly several per process, which reports as TAP. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { countAssertions, readCpu, readFailures, readSections, readSummary } from './tap-report.ts'

export interface FileEnd {
  readonly file: string
  readonly ms: number
  /** Includes ended child processes. */
  readonly cpuS: number
  readonly passed: number
  readonly failed: number
  readonly failures: readonly string[]
}

export interface RunOptions {
  readonly cwd: string
  readonly env: NodeJS.ProcessEnv
  readonly jobs: number
  readonly isBail: boolean
  readonly signal: AbortSignal
  onEnd(end: FileEnd): void
}

/**
 * Without tap's runner, which loads source maps, mocks and coverage into every process. The young generation starts at
 * production size, as files end before it has grown.
 */
const ARGUMENTS = [
  '--max-semi-space-size=32',
  '--min-semi-space-size=16',
  '--disable-warning=ExperimentalWarning',
]
/** A file fails after this time; its process is killed a minute later. */
const TIMEOUT_S = 600
const KILL_S = 60

const FIRST = join(import.meta.dirname, 'process.ts')
const BATCH = join(import.meta.dirname, 'batch.ts')

/** Returns the files in order of completion; those of a batch share a process. */
export async function runFiles(
  batches: readonly (readonly string[])[],
  options: RunOptions,
): Promise<FileEnd[]> {
  const waiting = [...batches]
  const ends: FileEnd[] = []
  const { isBail, signal } = options
  const lane = async () => {
    for (let files = waiting.shift(); files !== undefined; files = waiting.shift()) {
      if (signal.aborted || (isBail && ends.some(({ failed }) => failed > 0))) return
      for (const end of await runBatch(files, options)) {
        ends.push(end)
        options.onEnd(end)
      }
    }
  }
  await Promise.all(Array.from({ length: options.jobs }, lane))
  return ends
}

async function runBatch(files: readonly string[], options: RunOptions): Promise<FileEnd[]> {
  const { cwd, env, isBail, signal } = options
  const startedAt = performance.now()
  const what = files.length === 1 ? files : [BATCH, ...files]
  const timeoutS = TIMEOUT_S * files.length
  const child = spawn(process.execPath, [...ARGUMENTS, '--import', FIRST, ...what], {
    cwd,
    env: { ...env, TAP: '1', TAP_BAIL: isBail ? '1' : '0', TAP_TIMEOUT: String(timeoutS) },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const end = () => child.kill(signal.reason)
  signal.addEventListener('abort', end)
  const timer = setTimeout(() => child.kill('SIGKILL'), (timeoutS + KILL_S) * 1000)
  const chunks: Buffer[] = []
  child.stdout.on('data', (chunk: Buffer) => chunks.push(chunk))
  const [code, killedBy] = await once(child, 'close')
  clearTimeout(timer)
  signal.removeEventListener('abort', end)
  const report = Buffer.concat(chunks).toString()
  const failure = code === 0 ? undefined : (killedBy ?? `exit code ${code}`)
  const ms = performance.now() - startedAt
  const [only = ''] = files
  return files.length === 1
    ? [summarizeFile(only, report, ms, failure)]
    : summarizeFiles(files, report, failure)
}

/** A process that ends before its report is complete counts as failed. */
function summarizeFile(
  file: string,
  report: string,
  ms: number,
  failure: string | undefined,
): FileEnd {
  const failures = readFailures(report)
  const { passed, failed } = readSummary(report) ?? { passed: 0, failed: 1 }
  const isGood = failure === undefined && failed === 0
  if (!isGood && failures.length === 0) {
    failures.push(`not ok - ${file} ended by ${failure}\n${report.slice(-2000)}`)
  }
  const cpuS = readCpu(report, file)
  return { file, ms, cpuS, passed, failed: isGood ? 0 : Math.max(failed, 1), failures }
}

/** When the process failed but none of its files did, all fail. */
function summarizeFiles(
  files: readonly string[],
  report: string,
  failure: string | undefined,
): FileEnd[] {
  const sections = readSections(report)
  const ends = files.map((file) => {
    const { text, ms } = sections.get(file) ?? { text: '', ms: 0 }
    const ended = `not ok - ${file} ended by ${failure}\n${report.slice(-2000)}`
    const failures = sections.has(file) ? readFailures(text) : [ended]
    const { passed } = countAssertions(text)
    return { file, ms, cpuS: readCpu(report, file), failures, passed, failed: failures.length }
  })
  if (failure === undefined || ends.some(({ failed }) => failed > 0)) return ends
  const failures = [`not ok - ${files.join(' ')} ended by ${failure}\n${report.slice(-2000)}`]
  return ends.map((end) => ({ ...end, failures, failed: 1 }))
}
