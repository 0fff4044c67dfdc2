/** Reads the process table, since a client cannot see which processes `npm test` leaves. */
import '../../fixtures/services/bare-spawn.ts'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { until } from '../../fixtures/botica.ts'
import { ROOT } from '../../fixtures/page.ts'

const DEADLINE_MS = 120_000
/** An end in order takes a few seconds, a forced one begins after 5. */
const LEFT_MS = 60_000
/** Two PostgreSQL and two Redis, web and worker, an executor and a shell's child. */
const STARTED = [
  [2, /\/postgres -D /],
  [2, /redis-server|valkey-server/],
  [1, / server\/main\.ts/],
  [1, / worker\/main\.ts/],
  [1, /executor/],
  [1, /^sleep 1234/],
] as const

interface Process {
  readonly pid: number
  readonly parent: number
  readonly command: string
}

t.setTimeout(600_000)

function processes(): readonly Process[] {
  const lines = execFileSync('ps', ['-eo', 'pid=,ppid=,args='], { encoding: 'utf8' }).split('\n')
  return lines.map((line) => {
    const [pid, parent, ...words] = line.trim().split(/\s+/)
    return { pid: Number(pid), parent: Number(parent), command: words.join(' ') }
  })
}

function descendants(pid: number, all = processes()): readonly Process[] {
  const children = all.filter(({ parent }) => parent === pid)
  return [...children, ...children.flatMap((child) => descendants(child.pid, all))]
}

const cases: readonly (readonly [string, NodeJS.Signals, RegExp])[] = [
  ['npm test gets SIGTERM', 'SIGTERM', /^npm test/],
  ['npm test is killed', 'SIGKILL', /^npm test/],
  ['its script is killed', 'SIGKILL', /^\S*node .*scripts\/test\.ts/],
]
for (const [name, signal, pattern] of cases) {
  t.test(`leaves no process when ${name}`, async (t) => {
    const folder = mkdtempSync(join(tmpdir(), 'botica-interrupted-'))
    t.teardown(() => rmSync(folder, { recursive: true, force: true }))
    const ready = join(folder, 'ready')
    const { TEST_DATABASE_URL: _, TEST_REDIS_URL: __, ...env } = process.env
    const child = spawn('npm', ['test', '--', 'test/system/platform/endless.ts'], {
      cwd: ROOT,
      env: { ...env, NODE_OPTIONS: '', READY_FILE: ready },
      stdio: ['ignore', 'ignore', 'inherit'],
    })
    const exited = once(child, 'exit')
    const pid = child.pid ?? 0
    await until(async () => existsSync(ready), DEADLINE_MS)

    const run = [...processes().filter((process) => process.pid === pid), ...descendants(pid)]
    for (const [count, command] of STARTED) {
      const found = run.filter((process) => command.test(process.command))
      t.ok(found.length >= count, `${command} runs`)
    }
    const target = run.find(({ command }) => pattern.test(command))
    process.kill(target?.pid ?? Number.NaN, signal)
    await exited

    const pids = new Set(run.map(({ pid }) => pid))
    let left: readonly Process[] = run
    await until(async () => {
      left = processes().filter(({ pid }) => pids.has(pid))
      return left.length === 0
    }, LEFT_MS).catch(() => undefined)
    t.same(left, [])
    for (const { pid } of left) process.kill(pid, 'SIGKILL')
  })
}
