/**
 * The recipe of docs/deploy.md on a platform like Heroku: stores behind TLS with private
 * certificates, S3, two web and two worker dynos rolled under load, a release and its rollback. Limits of the production
 * install, its install scripts, and the packages that a start needs.
 */
import { execFileSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { temporaryFolder } from '../../scripts/account.ts'
import { freePort, nodeArguments } from '../../scripts/service.ts'
import { openBucket } from '../fixtures/binaries.ts'
import { makeTenant, openBotica, type Tenant } from '../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../fixtures/bots/bots.ts'
import { type Answer, signIn } from '../fixtures/client.ts'
import { exportAll, fetchManifest, statusUrl } from '../fixtures/exports/exports.ts'
import { ROOT } from '../fixtures/page.ts'
import { caseCount } from '../fixtures/policy/oracle.ts'
import { aPatient, MRN_SYSTEM } from '../fixtures/resources.ts'
import { said, startNode } from '../fixtures/services/cluster.ts'
import { familyMb, makeSlug, openPlatform } from './platform/dynos.ts'
import { startTlsPostgres, startTlsRedis } from './platform/tls-stores.ts'

/** The first is of the same version, the last goes back to it. */
const ROLLS = 2 + caseCount(2)
const CALLERS = 6
const PAUSE_MS = 300
const MEASURE_MS = 3000
const MB = 1024 * 1024
const MOST_INSTALLED_MB = 60
const MOST_PACKAGES = 250
/** Memory limits with a margin for late garbage collection on slow machines. */
const [MOST_SLUG_MB, MOST_WEB_MB, MOST_WORKER_MB] = [30, 220, 400]

const folder = temporaryFolder('botica-slug-')
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const slug = join(folder, 'v1')
const newer = join(folder, 'v2')
const slugBytes = makeSlug(slug)
cpSync(slug, newer, { recursive: true })
writeFileSync(
  join(newer, 'shared/store/schema/999-newer.ts'),
  `export const up = (knex) => knex.raw('alter table resource add column newer text')
   export const down = (knex) => knex.raw('alter table resource drop column newer')`,
)

const app: { env: Record<string, { value?: string; generator?: string }> } = JSON.parse(
  readFileSync(join(slug, 'app.json'), 'utf8'),
)
const [databaseUrl, redisUrl, bucket] = await Promise.all([
  startTlsPostgres(t, { durable: true }),
  startTlsRedis(t),
  openBucket(t),
])
const SECRET = randomUUID()
const platform = await openPlatform(t, (url) => ({
  ...Object.fromEntries(
    Object.entries(app.env).flatMap(([name, { value, generator }]) =>
      generator || value ? [[name, value ?? SECRET]] : [],
    ),
  ),
  ...bucket.env,
  AWS_ACCESS_KEY_ID: 'S3RVER',
  AWS_SECRET_ACCESS_KEY: 'S3RVER',
  SUPER_ADMIN_EMAIL: 'ops@example.org',
  BASE_URL: url,
  DATABASE_URL: databaseUrl,
  REDIS_URL: redisUrl,
  WORKER_MEMORY_MB: '512',
}))

function findCalls(tenant: Tenant, bot: string) {
  const { admin } = tenant
  const made = new Set<string>()
  const patient = () => {
    const value = randomUUID()
    return { value, resource: aPatient({ identifier: [{ system: MRN_SYSTEM, value }] }) }
  }
  const kinds: readonly (() => Promise<Answer<Untyped>>)[] = [
    async () => {
      const { value, resource } = patient()
      const answer = await admin.post<Untyped>('Patient', resource)
      if (answer.status === 201) made.add(value)
      return answer
    },
    () => admin.get('Patient?_count=20&_sort=-_lastUpdated'),
    () => execute(tenant.admin, bot, { n: 1 }),
    async () => {
      const all = Array.from({ length: 5 }, patient)
      const entry = all.map(({ resource }) => ({
        resource,
        request: { method: 'POST', url: 'Patient' },
      }))
      const answer = await admin.post<Untyped>('', {
        resourceType: 'Bundle',
        type: 'transaction',
        entry,
      })
      if (answer.status === 200) for (const { value } of all) made.add(value)
      return answer
    },
    () =>
      admin.post('$graphql', JSON.stringify({ query: '{ PatientList(_count: 5) { id } }' }), {
        'Content-Type': 'application/json',
      }),
    () => admin.post('Binary', randomUUID().repeat(1000), { 'Content-Type': 'text/plain' }),
    () => execute(tenant.admin, bot, { n: 2 }, { Prefer: 'respond-async' }),
  ]
  return { kinds, made }
}

/** Sends requests of all kinds from several callers; returns unexpected responses. */
async function keepCalling(
  kinds: readonly (() => Promise<Answer<Untyped>>)[],
  isOver: () => boolean,
) {
  const failed: string[] = []
  let count = 0
  const caller = async (first: number) => {
    for (let n = first; !isOver(); n++) {
      const kind = n % kinds.length
      const said = await kinds[kind]?.().then(
        ({ status, text }) => (status < 300 ? '' : `${status} ${text}`),
        (error: Error) => String(error.cause ?? error),
      )
      count++
      if (said) failed.push(`kind ${kind}: ${said.slice(0, 300)}`)
      await delay(PAUSE_MS)
    }
  }
  await Promise.all(Array.from({ length: CALLERS }, (_, n) => caller(n)))
  return { failed, count }
}

t.test('keeps the slug small', async (t) => {
  t.comment(`${(slugBytes / MB).toFixed(1)} MB compressed`)
  t.ok(slugBytes < MOST_SLUG_MB * MB)
})

// Before a start adds compiled code.
t.test(`has at most ${MOST_INSTALLED_MB} MB of packages after the clean-up`, async (t) => {
  const bytes = execFileSync('du', ['-sb', join(slug, 'node_modules')], { encoding: 'utf8' })
  const megabytes = Number.parseInt(bytes, 10) / 1e6
  t.ok(megabytes > 10 && megabytes <= MOST_INSTALLED_MB, `${megabytes} MB`)
})

t.test('releases, rolls under load and rolls back a service', async (t) => {
  const released = await platform.once(slug, ['scripts/migrate.ts'])
  t.match(released, /Migrated/)
  const [, client = ''] = /Its client is (\S+),/.exec(released) ?? []
  await platform.roll(slug)
  const boots = async () =>
    t.comment(
      await Promise.all(
        platform.dynos.map(async ({ type, bootMs }) => `${type} ${await bootMs} ms`),
      ),
    )
  await boots()
  const tenant = await makeTenant(
    platform.url,
    await signIn(platform.url, client, SECRET),
    'Clinic',
  )
  const bot = await aBot(
    tenant,
    handler("return Number(require('util').format('%s', event.input.n))"),
  )
  const hooked = await aBot(tenant, handler('return 1'))
  await tenant.admin.create({
    resourceType: 'Subscription',
    status: 'active',
    reason: 'load',
    criteria: 'Patient',
    channel: { type: 'rest-hook', endpoint: `Bot/${hooked}` },
  })
  const { kinds, made } = findCalls(tenant, bot)

  let isOver = false
  const most = { web: 0, worker: 0 }
  const load = keepCalling(kinds, () => isOver)
  const measure = async () => {
    while (!isOver) {
      for (const { type, child } of platform.dynos) {
        most[type] = Math.max(most[type], familyMb(child.pid ?? 0))
      }
      await delay(MEASURE_MS)
    }
  }
  const measured = measure()
  const exports: string[] = []
  for (let roll = 1; roll <= ROLLS; roll++) {
    exports.push(statusUrl(await tenant.admin.get('$export?_type=Patient')))
    const isNewer = roll > 1 && roll < ROLLS
    if (roll === 2) t.match(await platform.once(newer, ['scripts/migrate.ts']), /Migrated/)
    if (roll === ROLLS) t.match(await platform.once(slug, ['scripts/migrate.ts']), /Migrated/)
    await platform.roll(isNewer ? newer : slug)
    await delay(3000)
  }
  isOver = true
  const { failed, count } = await load
  await measured
  await boots()
  t.comment(
    `${count} calls, ${ROLLS} rolls, web ${most.web.toFixed()} MB, worker ${most.worker.toFixed()} MB`,
  )
  t.same(failed, [])
  t.same(platform.resets, [])
  t.ok(most.web < MOST_WEB_MB, `limits web to ${most.web} MB`)
  t.ok(most.worker < MOST_WORKER_MB, `limits a worker to ${most.worker} MB`)

  for (const url of exports) t.ok((await fetchManifest(tenant.admin, url)).output)
  const last = await exportAll(tenant.admin, '$export?_type=Patient')
  const found = new Set(
    last.resources.get('Patient')?.map(({ identifier }: Untyped) => identifier[0].value),
  )
  t.same(
    [...made].filter((value) => !found.has(value)),
    [],
    'loses no acknowledged write',
  )
})

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
