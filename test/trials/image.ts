/**
 * `node test/trials/image.ts`, as root on a Debian: runs the steps of the Dockerfile without a container engine. Each stage
 * is this machine's file system with a separate layer above it, in which the steps run by chroot; then release step, web,
 * worker and the health check run as the image's user, on a root that cannot be written. Needs the packages of npm's registry.
 */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, mkdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { temporaryFolder } from '../../scripts/account.ts'
import { startPostgres } from '../../scripts/postgres.ts'
import { startRedis } from '../../scripts/redis.ts'
import { freePort } from '../../scripts/service.ts'

const ROOT = join(import.meta.dirname, '../..')
const READY_MS = 60_000

interface Stage {
  readonly name: string
  readonly root: string
  readonly env: Record<string, string>
  folder: string
  user: string
  health: readonly string[]
  command: readonly string[]
}

function run(command: string, args: readonly string[]): string {
  return execFileSync(command, args, { encoding: 'utf8', maxBuffer: 1 << 26 })
}

const say = (text: string) => process.stdout.write(`${text}\n`)

async function until(what: string, isTrue: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + READY_MS
  while (!(await isTrue())) {
    if (Date.now() > deadline) throw new Error(`${what} does not succeed`)
    await delay(200)
  }
  say(`${what} succeeds`)
}

/** In the stage's own file system, with nothing of our environment. */
function inside({ root, env, folder, user }: Stage, command: readonly string[]): readonly string[] {
  const settings = Object.entries(env).map(([name, value]) => `${name}=${value}`)
  const path = 'PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin'
  const isRoot = user === 'root'
  const account = isRoot ? [] : [`--userspec=${user}`]
  const start = ['sh', '-c', `cd ${folder} && exec "$@"`, 'sh', ...command]
  return [
    ...account,
    root,
    'env',
    '-i',
    path,
    `HOME=${isRoot ? '/root' : '/tmp'}`,
    ...settings,
    ...start,
  ]
}

function openStage(folder: string, name: string): Stage {
  const [upper, work, root] = ['upper', 'work', 'root'].map((part) => join(folder, name, part))
  if (!upper || !work || !root) throw new Error('A stage has three folders')
  for (const part of [upper, work, root]) mkdirSync(part, { recursive: true })
  run('mount', [
    '-t',
    'overlay',
    'overlay',
    '-o',
    `lowerdir=/,upperdir=${upper},workdir=${work}`,
    root,
  ])
  // The image's base brings this Node and this user.
  copyFileSync(process.execPath, join(root, 'usr/local/bin/node'))
  run('chroot', [root, 'useradd', '--create-home', 'node'])
  run('mount', ['--bind', '/dev', join(root, 'dev')])
  run('mount', ['-t', 'proc', 'proc', join(root, 'proc')])
  const none = { env: {}, folder: '/', user: 'root', health: [], command: [] }
  return { name, root, ...none }
}

/** Carries out a step of the Dockerfile. */
function carryOut(stage: Stage, step: string, from: (stage?: string) => string): void {
  const [, word = '', rest = ''] = /^(\w+) (.*)$/s.exec(step) ?? []
  const words = rest.split(/\s+/)
  switch (word) {
    case 'ENV':
      for (const pair of words) stage.env[pair.split('=')[0] ?? ''] = pair.split('=')[1] ?? ''
      return
    case 'WORKDIR':
      stage.folder = rest
      mkdirSync(join(stage.root, rest), { recursive: true })
      return
    case 'COPY': {
      const source = from(/^--from=(\w+)/.exec(rest)?.[1])
      const paths = words.filter((one) => !one.startsWith('--'))
      const target = join(stage.root, stage.folder, paths.pop() ?? '')
      for (const path of paths) {
        const isFolder = statSync(join(source, path)).isDirectory()
        if (isFolder) mkdirSync(target, { recursive: true })
        run('cp', ['-a', `${join(source, path)}${isFolder ? '/.' : ''}`, target])
      }
      return
    }
    case 'RUN':
      run('chroot', inside(stage, ['sh', '-c', rest]))
      return
    case 'USER':
      stage.user = rest
      return
    case 'HEALTHCHECK':
      stage.health = JSON.parse(rest.slice(rest.indexOf('[')))
      return
    case 'CMD':
      stage.command = JSON.parse(rest)
      return
    default:
      if (!['EXPOSE', 'VOLUME', 'STOPSIGNAL'].includes(word)) throw new Error(`Unknown: ${step}`)
  }
}

/** Builds all stages; answers the last one. */
function build(folder: string): Stage {
  const context = join(folder, 'context')
  mkdirSync(context)
  execFileSync('sh', ['-c', `git archive HEAD | tar x -C ${context}`], { cwd: ROOT })
  for (const name of readFileSync(join(ROOT, '.dockerignore'), 'utf8').trim().split('\n')) {
    rmSync(join(context, name), { recursive: true, force: true })
  }
  const stages: Stage[] = []
  const steps = readFileSync(join(ROOT, 'Dockerfile'), 'utf8')
    .replace(/^#.*\n/gm, '')
    .replace(/\\\n\s*/g, '')
    .split('\n')
    .filter(Boolean)
  for (const step of steps) {
    say(step)
    const name = /^FROM \S+(?: AS (\w+))?/.exec(step)
    const stage = stages.at(-1)
    if (name) stages.push(openStage(folder, name[1] ?? 'image'))
    else if (stage) {
      carryOut(stage, step, (other) => stages.find((one) => one.name === other)?.root ?? context)
    }
  }
  const last = stages.at(-1)
  if (last === undefined) throw new Error('The Dockerfile has no stage')
  return last
}

async function main(folder: string): Promise<void> {
  const image = build(folder)
  const size = run('du', ['-sm', join(folder, image.name, 'upper')]).split('\t')[0]
  say(`The image's own layers have ${size} MB`)
  const [postgres, redis] = await Promise.all([
    startPostgres({ folder: join(folder, 'postgres'), sharedBuffersMb: 64, durable: false }),
    startRedis({ folder: join(folder, 'redis'), durable: false }),
  ])
  try {
    const { root, env } = image
    for (const place of ['tmp', 'data'])
      run('mount', ['-t', 'tmpfs', '-o', 'mode=1777', 'tmpfs', join(root, place)])
    run('mount', ['-o', 'remount,ro', root])
    const port = String(await freePort())
    Object.assign(env, { PORT: port, DATABASE_URL: postgres.url, REDIS_URL: redis.url })
    Object.assign(env, {
      SUPER_ADMIN_PASSWORD: 'of a trial',
      SUPER_ADMIN_CLIENT_SECRET: 'of a trial of it',
    })
    say(run('chroot', inside(image, ['node', 'scripts/migrate.ts', '--who'])))
    const written = spawn('chroot', inside(image, ['sh', '-c', 'id -un; touch /app/x']), {
      stdio: 'inherit',
    })
    const [code] = await once(written, 'close')
    if (code === 0) throw new Error('The root file system can be written')
    const start = (main: string) => {
      const command = [...image.command.slice(0, -1), main]
      return spawn('chroot', inside(image, command), { stdio: 'inherit' })
    }
    const processes = [start('server/main.ts'), start('worker/main.ts')]
    const ended = processes.map((one) => once(one, 'close'))
    await until('The health check', async () => {
      const [code] = await once(spawn('chroot', inside(image, image.health)), 'close')
      return code === 0
    })
    await until('The look at workers', async () => {
      const answer = await fetch(`http://127.0.0.1:${port}/healthcheck`)
      const found = Object(await answer.json())
      return found.ok === true && found.workers === true
    })
    for (const one of processes) one.kill('SIGTERM')
    say(
      `After SIGTERM web and worker ended with ${(await Promise.all(ended)).map(([code]) => code)}`,
    )
  } finally {
    await Promise.all([postgres.stop(), redis.stop()])
  }
}

if (process.env.IMAGE_TRIAL === undefined) {
  // Mounts of a separate namespace end with it.
  const folder = temporaryFolder('botica-image-')
  const child = spawn('unshare', ['-m', process.execPath, import.meta.filename], {
    stdio: 'inherit',
    env: { ...process.env, IMAGE_TRIAL: folder },
  })
  const [code] = await once(child, 'close')
  rmSync(folder, { recursive: true, force: true })
  process.exitCode = code ?? 1
} else {
  await main(process.env.IMAGE_TRIAL)
}
