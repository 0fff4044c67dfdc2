/** Processes of the service for one bench run: started on a Stage, ended with it. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { nodeArguments } from '../procfile.ts'

const root = path.join(import.meta.dirname, '..', '..')
const READY_MS = 120_000

export function startWeb(env: NodeJS.ProcessEnv): ChildProcess {
  return start(env, 'web')
}

export function startWorker(env: NodeJS.ProcessEnv): ChildProcess {
  return start(env, 'worker')
}

/** `ready` resolves when it takes jobs; its log is read for that, and not shown. */
export function startHeardWorker(env: NodeJS.ProcessEnv): {
  readonly child: ChildProcess
  readonly ready: Promise<void>
} {
  const child = spawn(process.execPath, nodeArguments('worker'), {
    cwd: root,
    env: { ...env, LOG_LEVEL: 'info' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ready = new Promise<void>((resolve, reject) => {
    child.stdout.on('data', (text: Buffer) => {
      if (text.includes('"taking jobs"')) resolve()
    })
    child.once('exit', () => reject(new Error('A worker ended before it took jobs')))
  })
  return { child, ready }
}

export async function stopChild(child: ChildProcess): Promise<void> {
  child.kill('SIGTERM')
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
}

/** Throws after 120 s; `needsWorker` waits for one that takes jobs, too. */
export async function untilReady(baseUrl: string, needsWorker: boolean): Promise<void> {
  for (const deadline = Date.now() + READY_MS; Date.now() < deadline; await delay(100)) {
    const answer = await fetch(`${baseUrl}healthcheck`).catch(() => undefined)
    if (!answer?.ok) continue
    const { workers } = (await answer.json()) as { workers: boolean }
    if (workers || !needsWorker) return
  }
  throw new Error(`The service was not ready within ${READY_MS / 1000} s`)
}

function start(env: NodeJS.ProcessEnv, name: 'web' | 'worker'): ChildProcess {
  return spawn(process.execPath, nodeArguments(name), {
    cwd: root,
    env,
    stdio: ['ignore', 'inherit', 'inherit'],
  })
}
