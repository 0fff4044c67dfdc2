/** Limits of the production install, its install scripts, and the packages that a start needs. */
import { execFileSync } from 'node:child_process'
import { readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { temporaryFolder } from '../../../scripts/account.ts'
import { freePort, nodeArguments } from '../../../scripts/service.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { ROOT } from '../../fixtures/page.ts'
import { said, startNode } from '../../fixtures/services/cluster.ts'
import { makeSlug } from './dynos.ts'

const MOST_MB = 60
const MOST_PACKAGES = 250

interface Package {
  readonly dev?: boolean
  readonly optional?: boolean
  readonly devOptional?: boolean
  readonly hasInstallScript?: boolean
}
const { packages }: { packages: Record<string, Package> } = JSON.parse(
  readFileSync(join(ROOT, 'package-lock.json'), 'utf8'),
)
const packageName = (path: string) => path.slice(path.lastIndexOf('node_modules/') + 13)

t.test(`installs at most ${MOST_PACKAGES} packages for production`, async (t) => {
  const installed = Object.entries(packages).filter(
    ([path, { dev, optional, devOptional }]) => path !== '' && !dev && !optional && !devOptional,
  )
  t.ok(installed.length > 50, `${installed.length}`)
  t.ok(installed.length <= MOST_PACKAGES, `${installed.length}`)
})

t.test('decides on the install script of each package that has one', async (t) => {
  const { allowScripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
  const scripted = Object.entries(packages).filter(([, { hasInstallScript }]) => hasInstallScript)
  const names = new Set(scripted.map(([path]) => packageName(path)).filter((name) => name !== ''))
  t.same(
    [...names].filter((name) => !(name in allowScripts)),
    [],
  )
})

const slug = temporaryFolder('botica-install-')
t.teardown(() => rmSync(slug, { recursive: true, force: true }))
makeSlug(slug)

t.test(`has at most ${MOST_MB} MB of packages after the clean-up`, async (t) => {
  const bytes = execFileSync('du', ['-sb', join(slug, 'node_modules')], { encoding: 'utf8' })
  const megabytes = Number.parseInt(bytes, 10) / 1e6
  t.ok(megabytes > 10 && megabytes <= MOST_MB, `${megabytes} MB`)
})

t.test('starts web and worker without the S3 client, which only S3 needs', async (t) => {
  rmSync(join(slug, 'node_modules/@aws-sdk'), { recursive: true })
  const { services } = await openBotica(t)
  const { databaseUrl: DATABASE_URL, redisUrl: REDIS_URL, baseUrl: BASE_URL } = services.config
  const env = { ...process.env, DATABASE_URL, REDIS_URL, BASE_URL, NODE_OPTIONS: '' }
  const port = String(await freePort())
  const start = (type: 'web' | 'worker') =>
    startNode(t, nodeArguments(type), { ...env, PORT: port, LOG_LEVEL: 'info' }, slug)
  await said(start('web'), '"listening"')
  await said(start('worker'), '"taking jobs"')
})
