/** A platform like Heroku: builds a slug of the repository, runs the Procfile and routes to web. */
import { execFileSync } from 'node:child_process'
import { existsSync, globSync, mkdirSync, readFileSync } from 'node:fs'
import { Agent, createServer, type IncomingMessage, request, type ServerResponse } from 'node:http'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import type { Test } from 'tap'
import { freePort, nodeArguments } from '../../../scripts/service.ts'
import { until } from '../../fixtures/botica.ts'
import { type Running, said, startNode } from '../../fixtures/services/cluster.ts'

const ROOT = join(import.meta.dirname, '../../..')
const READY_MS = 120_000
/** The router learns of the end of a dyno with this delay. */
const NEWS_MS = 500
const ROUTER_IDLE_MS = 90_000

/**
 * Builds a slug from files that are not ignored, the bundle and production packages, which are
 * copied instead of installed. Returns its size as gzip.
 */
export function makeSlug(folder: string): number {
  const run = (command: string, input = '', cwd = ROOT) =>
    execFileSync('sh', ['-c', command], { cwd, input, encoding: 'utf8', maxBuffer: 1 << 26 })
  const ignored = readFileSync(join(ROOT, '.slugignore'), 'utf8').trim().split('\n')
  const files = run('git ls-files').split('\n').filter(isHere)
  const packages = run('npm ls --omit=dev --omit=optional --parseable --all')
    .split('\n')
    .map((path) => path.slice(ROOT.length + 1))
    .filter((path) => path.startsWith('node_modules/') && !path.includes('/node_modules/'))
  const kept = [
    ...files.filter((file) => !ignored.some((name) => file.startsWith(`${name}/`))),
    ...packages,
    'dist',
  ]
  mkdirSync(folder, { recursive: true })
  run(`tar c -T - | tar x -C '${folder}'`, kept.join('\n'))
  run('npm run -s heroku-cleanup', '', folder)
  return Number(run('tar cz . | wc -c', '', folder))
}

const isHere = (file: string) => file !== '' && existsSync(join(ROOT, file))

interface Dyno extends Running {
  readonly type: 'web' | 'worker'
  readonly port: number
  /** Milliseconds until it listened, or was ready for jobs. */
  readonly bootMs: Promise<number>
}

interface Platform {
  readonly url: string
  /** Requests that a dyno accepted and did not answer. */
  readonly resets: readonly string[]
  readonly dynos: readonly Dyno[]
  /** Runs a command in a separate dyno; returns its output. */
  once(slug: string, args: readonly string[]): Promise<string>
  /** Stops the dynos while those of the slug start; resolves when only these run. */
  roll(slug: string): Promise<void>
}

const FORMATION = ['web', 'web', 'worker', 'worker'] as const

/** Opens the platform, which runs nothing before the first roll; it stops with the test. */
export async function openPlatform(
  t: Test,
  settingsOf: (url: string) => Readonly<Record<string, string>>,
): Promise<Platform> {
  const router = await openRouter(t)
  // The platform sets a memory limit, by which Node sizes its heap.
  const env = {
    PATH: process.env.PATH,
    NODE_OPTIONS: '--max-old-space-size=256',
    ...settingsOf(router.url),
  }
  let dynos: readonly Dyno[] = []
  const begin = async (slug: string, type: Dyno['type']): Promise<Dyno> => {
    const port = await freePort()
    const startedAt = Date.now()
    const running = startNode(t, nodeArguments(type), { ...env, PORT: String(port) }, slug)
    const text = type === 'web' ? '"listening"' : '"taking jobs"'
    const bootMs = said(running, text).then(() => {
      const line = running
        .said()
        .split('\n')
        .find((line) => line.includes(text)) // The line was just printed.
      return JSON.parse(line ?? '{}').time - startedAt
    })
    return { ...running, type, port, bootMs }
  }
  return {
    url: router.url,
    resets: router.resets,
    get dynos() {
      return dynos
    },
    async once(slug, args) {
      const running = startNode(t, args, env, slug)
      if ((await running.ended) !== 0) throw new Error(`${args}: ${running.said()}`)
      return running.said()
    },
    async roll(slug) {
      const old = dynos
      for (const { child } of old) child.kill('SIGTERM')
      setTimeout(() => {
        for (const { port } of old) router.targets.delete(port)
      }, NEWS_MS)
      dynos = await Promise.all(FORMATION.map((type) => begin(slug, type)))
      for (const { type, port, bootMs } of dynos) {
        await bootMs
        if (type === 'web') router.targets.add(port)
      }
      const codes = await Promise.all(old.map(({ ended }) => ended))
      if (codes.some((code) => code !== 0)) throw new Error(`Dynos ended with ${codes}`)
    },
  }
}

/** Keeps connections; retries another dyno if one refuses, and queues requests without any dyno. */
async function openRouter(t: Test) {
  const port = await freePort()
  const agent = new Agent({ keepAlive: true, timeout: ROUTER_IDLE_MS })
  const targets = new Set<number>()
  const resets: string[] = []
  const server = createServer(async (req, res) => {
    const body = await buffer(req)
    let next: number | undefined
    do {
      await until(async () => targets.size > 0, READY_MS)
      const all = [...targets]
      next = all[Math.floor(Math.random() * all.length)] ?? 0
    } while ((await pass(agent, next, { req, res, body }, resets)) === 'refused')
  })
  // Node's default of five seconds is too short for a busy machine.
  server.keepAliveTimeout = ROUTER_IDLE_MS
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
    agent.destroy()
  })
  return { url: `http://127.0.0.1:${port}/`, targets, resets }
}

interface Passed {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly body: Buffer
}

function pass(
  agent: Agent,
  port: number,
  { req, res, body }: Passed,
  resets: string[],
): Promise<'refused' | 'passed'> {
  const { method, url: path, headers } = req
  const forwarded = { 'x-forwarded-for': '203.0.113.7', 'x-forwarded-proto': 'http' }
  const { connection: _, ...kept } = headers
  return new Promise((resolve) => {
    const reset = (error: Error) => {
      resets.push(`${method} ${path}: ${error.message}`)
      res.destroy()
      resolve('passed')
    }
    const onward = request(
      { agent, port, host: '127.0.0.1', method, path, headers: { ...kept, ...forwarded } },
      (answer) => {
        const { connection: _, ...said } = answer.headers
        res.writeHead(answer.statusCode ?? 502, said)
        answer.once('error', reset)
        answer.pipe(res).once('close', () => resolve('passed'))
      },
    )
    onward.on('error', (error: NodeJS.ErrnoException) =>
      error.code === 'ECONNREFUSED' ? resolve('refused') : reset(error),
    )
    onward.end(body)
  })
}

/** Returns the proportional memory of the process and its descendants in MB. */
export function familyMb(pid: number): number {
  const children = globSync(`/proc/${pid}/task/*/children`).flatMap((file) =>
    readIfThere(file).split(' ').filter(Boolean).map(Number),
  )
  const [, kb = 0] = /^Pss:\s+(\d+) kB$/m.exec(readIfThere(`/proc/${pid}/smaps_rollup`)) ?? []
  return Number(kb) / 1024 + children.reduce((sum, child) => sum + familyMb(child), 0)
}

/** Reads a file of a process that may end at any time. */
function readIfThere(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}
