/** scripts/setup.sh gets a Redis on Debian without root, and without a change of the system. */
import { execFileSync, spawnSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { serviceAccount, temporaryFolder } from '../../scripts/account.ts'
import { ROOT } from '../fixtures/page.ts'

if (!existsSync('/usr/bin/apt-get')) {
  t.pass('no apt-get')
  process.exit(0)
}

const account = serviceAccount()
const folder = temporaryFolder('botica-setup-')
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const clone = join(folder, 'clone')
const programs = join(folder, 'bin')

for (const name of ['scripts/reference', 'node_modules/.bin']) {
  mkdirSync(join(clone, name), { recursive: true })
}
for (const name of ['scripts/setup.sh', 'scripts/reference/site.sh']) {
  copyFileSync(join(ROOT, name), join(clone, name))
}
for (const name of ['package-lock.json', 'node_modules/.package-lock.installed']) {
  writeFileSync(join(clone, name), '{}')
}
for (const [name, text] of [
  ['tap', '#!/bin/sh\n'],
  ['node', '#!/bin/sh\nexit 0\n'],
] as const) {
  writeFileSync(join(clone, 'node_modules/.bin', name), text)
  chmodSync(join(clone, 'node_modules/.bin', name), 0o755)
}
if (account) execFileSync('chown', ['-R', `${account.uid}:${account.gid}`, clone])

// The programs of this machine, except a Redis.
mkdirSync(programs)
for (const name of readdirSync('/usr/bin')) {
  if (!/^(?:redis|valkey)/.test(name)) symlinkSync(join('/usr/bin', name), join(programs, name))
}

function setUp(env: NodeJS.ProcessEnv = {}) {
  const options = { ...account, encoding: 'utf8', env: { PATH: programs, ...env } } as const
  const { stdout, stderr, status } = spawnSync('sh', [join(clone, 'scripts/setup.sh')], options)
  return { status, output: stdout + stderr }
}

const server = join(clone, '.data/programs/redis/redis-server')

t.test('downloads nothing with SETUP_DOWNLOADS=no, or with another Redis', async (t) => {
  for (const env of [{ SETUP_DOWNLOADS: 'no' }, { REDIS_URL: 'redis://localhost' }]) {
    t.same(setUp(env), { status: 0, output: '' })
    t.notOk(existsSync(server))
  }
})

t.test('unpacks a Redis that runs, with one line of output', async (t) => {
  t.same(setUp(), { status: 0, output: `Downloading Redis to ${join(server, '..')} …\n` })
  const version = execFileSync(server, ['--version'], { ...account, env: {}, encoding: 'utf8' })
  t.match(version, /^Redis server v=\d/)
  t.same(readdirSync(join(clone, '.data/programs')), ['redis'], 'leaves only Redis')
})

t.test('does not download it again', async (t) => {
  t.same(setUp(), { status: 0, output: '' })
})
