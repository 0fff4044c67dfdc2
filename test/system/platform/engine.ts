/** A container engine, and containers of the image of the Dockerfile on the network of this machine. */
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { ROOT } from '../../fixtures/page.ts'

/** Bytes. */
interface ImageSizes {
  readonly whole: number
  readonly base: number
}

interface Container {
  /** Returns standard output of a command inside. Errors: its status is not 0. */
  exec(...command: readonly string[]): string
  logs(): string
  /** Sends SIGTERM, and SIGKILL after 30 s; resolves with the exit code. */
  stop(): Promise<number>
  kill(): void
  /** Waits for its end; returns the exit code. */
  wait(): number
}

interface Engine {
  readonly name: string
  readonly image: string
  readonly sizes: ImageSizes
  /** Starts a container that is removed with the test: read-only, with 512 MB. */
  start(t: Test, env: Readonly<Record<string, string>>, ...command: readonly string[]): Container
}

/** A file system of 8 MB. */
export const SMALL_FOLDER = '/small'
const LIMITS = [
  '--read-only',
  '--tmpfs=/tmp',
  `--tmpfs=${SMALL_FOLDER}:size=8m,mode=1777`,
  '--memory=512m',
  '--network=host',
]
const STOP_SECONDS = 30

const [, BASE = ''] =
  /^FROM (\S+) AS base$/m.exec(readFileSync(join(ROOT, 'Dockerfile'), 'utf8')) ?? []

/** Finds docker or podman with a service behind it and the base image, or a registry that has it; undefined if none. */
export function findEngine(): string | undefined {
  const succeeds = (name: string, ...args: readonly string[]) =>
    spawnSync(name, args, { stdio: 'ignore', timeout: 120_000 }).status === 0
  return ['docker', 'podman'].find(
    (name) =>
      succeeds(name, 'info') &&
      // Docker's builder keeps a base image to itself.
      (succeeds(name, 'image', 'inspect', BASE) || succeeds(name, 'pull', BASE)),
  )
}

/**
 * Options of podman's build with which npm trusts the certificates of this machine, for a registry behind a proxy.
 * They are mounted, so the image has none of them. Docker's builder cannot mount files of the host.
 */
function trustOfThisMachine(t: Test): readonly string[] {
  const certificates = process.env.NODE_EXTRA_CA_CERTS
  if (certificates === undefined) return []
  const folder = mkdtempSync(join(tmpdir(), 'botica-npmrc-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  writeFileSync(join(folder, 'npmrc'), 'cafile=/run/certificates.pem\n')
  return [
    '--network=host',
    `--volume=${certificates}:/run/certificates.pem:ro`,
    `--volume=${join(folder, 'npmrc')}:/root/.npmrc:ro`,
  ]
}

/** Builds the image, unless TEST_IMAGE names one. Containers share their files, which are removed with the test. */
export function openEngine(t: Test, name: string): Engine {
  const run = (...args: readonly string[]) =>
    execFileSync(name, args, { encoding: 'utf8', cwd: ROOT, maxBuffer: 1 << 26 }).trim()
  const image = process.env.TEST_IMAGE ?? 'botica-test'
  if (process.env.TEST_IMAGE === undefined) {
    // Podman's own format has no health check.
    const ofPodman = name === 'podman' ? ['--format=docker', ...trustOfThisMachine(t)] : []
    run('build', ...ofPodman, '--tag', image, '.')
  }
  const volume = run('volume', 'create')
  t.teardown(() => run('volume', 'rm', volume))
  const mounted = [...LIMITS, `--volume=${volume}:/data`]
  const size = (of: string) => Number(run('image', 'inspect', '--format', '{{.Size}}', of))
  return {
    name,
    image,
    sizes: { whole: size(image), base: size(BASE) },
    start(t, env, ...command) {
      const settings = Object.entries(env).flatMap(([key, value]) => ['--env', `${key}=${value}`])
      const id = run('run', '--detach', ...mounted, ...settings, image, ...command)
      t.teardown(() => run('rm', '--force', id))
      const wait = () => Number(run('wait', id))
      return {
        exec: (...words) => run('exec', id, ...words),
        logs: () => {
          const { stdout, stderr } = spawnSync(name, ['logs', id], { encoding: 'utf8' })
          return stdout + stderr
        },
        async stop() {
          const stopping = spawn(name, ['stop', '-t', String(STOP_SECONDS), id], {
            stdio: 'ignore',
          })
          await once(stopping, 'close')
          return wait()
        },
        kill: () => void run('kill', id),
        wait,
      }
    },
  }
}
