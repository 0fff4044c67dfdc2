/** Download of external attachments. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openBotica, statementsAsked, type Tenant, until } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aCertificate } from '../../fixtures/services/certificate.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const SECONDS = 60_000
const folder = mkdtempSync(join(tmpdir(), 'botica-downloads-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const certificate = aCertificate()
const trusted = join(folder, 'trusted.pem')
writeFileSync(trusted, certificate.cert)

const asked: string[] = []
/** Promises that delay the responses, by path. */
const held = new Map<string, Promise<void>>()
/** Requests at the same time, and the most so far, by the start of the path. */
const running = new Map<string, number>()
const most = new Map<string, number>()
const server = createServer(certificate, async (req, res) => {
  const path = req.url ?? ''
  asked.push(path)
  const [start = ''] = path.split('-')
  const count = (change: number) => {
    const now = (running.get(start) ?? 0) + change
    running.set(start, now)
    most.set(start, Math.max(now, most.get(start) ?? 0))
  }
  count(1)
  res.once('close', () => count(-1))
  await held.get(path)
  const status = path.startsWith('/broken') ? 500 : 200
  res.writeHead(status, { 'content-type': 'text/plain' }).end(`content of ${path}`)
})
const base = `https://127.0.0.1:${await listen(t, server)}`

const botica = await openBotica(t, {
  worker: 'process',
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,upkeep',
    AUTO_DOWNLOAD: 'true',
    NODE_EXTRA_CA_CERTS: trusted,
    STORAGE_URL: `file:${join(folder, 'storage')}`,
    WAITS: JSON.stringify({ ...JSON.parse(process.env.WAITS ?? '{}'), downloadsMs: 3000 }),
  },
})
const { admin, services } = botica

const aDocument = (...paths: string[]): Untyped => ({
  resourceType: 'DocumentReference',
  status: 'current',
  content: paths.map((path) => ({
    attachment: { contentType: 'text/plain', title: path.slice(1), url: base + path },
  })),
})
const timesAsked = (path: string) => asked.filter((one) => one === path).length
const settled = () =>
  until(async () => {
    const rows = await services.database.query({
      text: `select 1 from job where kind = 'download'`,
      values: [],
    })
    return rows.length === 0
  }, SECONDS)

t.test('stores new external attachments as Binaries', async (t) => {
  const sent = aDocument('/one.txt', '/two.txt')
  const { id } = await admin.create({
    ...sent,
    extension: [{ url: 'urn:photo', valueAttachment: { url: `${base}/three.txt` } }],
  })
  await settled()
  const { body } = await admin.get<Untyped>(`DocumentReference/${id}`, { 'X-Medplum': 'extended' })
  t.equal(body.meta.author.reference, 'system')
  const urls = body.content.map(({ attachment }: Untyped) => attachment.url)
  t.same(await Promise.all(urls.map(async (url: string) => (await fetch(url)).text())), [
    'content of /one.txt',
    'content of /two.txt',
  ])
  t.match(body.extension[0].valueAttachment.url, /^http:.*\/storage\//)
  const [, binaryId] = /storage\/([^/]+)\//.exec(urls[0]) ?? []
  const binary = await admin.get<Untyped>(`Binary/${binaryId}`, { Accept: 'application/fhir+json' })
  t.match(binary.body, {
    contentType: 'text/plain',
    securityContext: { reference: `DocumentReference/${id}` },
  })

  const { content } = body
  await admin.put(`DocumentReference/${id}`, {
    ...sent,
    id,
    description: 'changed',
    content: [...content, ...aDocument('/four.txt').content],
  })
  await settled()
  t.same(['/one.txt', '/two.txt', '/four.txt'].map(timesAsked), [1, 1, 1])
})

t.test('fetches attachments of a transaction with three attempts', async (t) => {
  const { body } = await admin.post<Untyped>('', {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      { request: { method: 'POST', url: 'DocumentReference' }, resource: aDocument('/entry.txt') },
      { request: { method: 'POST', url: 'DocumentReference' }, resource: aDocument('/broken') },
    ],
  })
  await settled()
  const [good, bad] = await Promise.all(
    body.entry.map(({ resource }: Untyped) =>
      admin.get<Untyped>(`DocumentReference/${resource.id}`),
    ),
  )
  t.match(good.body.content[0].attachment.url, /\/storage\//)
  t.equal(bad.body.content[0].attachment.url, `${base}/broken`)
  t.same(['/entry.txt', '/broken'].map(timesAsked), [1, 3])
})

t.test('queues a download in the statement that writes the resource', async (t) => {
  const create = (path: string) =>
    admin.post('DocumentReference', { ...aDocument(path), type: { text: 'x' } })
  const plain = () => admin.post('DocumentReference', { ...aDocument(), content: inline })
  const inline = [{ attachment: { contentType: 'text/plain', data: 'YQ==' } }]
  await Promise.all([create('/warm.txt'), plain()])
  const [of, without] = [
    await statementsAsked(services, admin, () => create('/noted.txt')),
    await statementsAsked(services, admin, plain),
  ]
  t.equal(of, without)
  const entry = (resource: object) => ({
    request: { method: 'POST', url: 'DocumentReference' },
    resource,
  })
  const refused = await admin.post<Untyped>('', {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [entry(aDocument('/refused.txt')), entry({ ...aDocument(), status: 'odd' })],
  })
  t.equal(refused.status, 400)
  await settled()
  t.same(['/noted.txt', '/refused.txt'].map(timesAsked), [1, 0])
})

t.test('creates no Binary for a resource deleted during the download', async (t) => {
  const arrival = Promise.withResolvers<void>()
  held.set('/late.txt', arrival.promise)
  const total = async () => (await admin.get<Untyped>('Binary?_total=accurate')).body.total
  const before = await total()
  const { id } = await admin.create(aDocument('/late.txt'))
  await until(async () => timesAsked('/late.txt') === 1, SECONDS)
  await admin.del(`DocumentReference/${id}`)
  arrival.resolve()
  await settled()
  t.equal((await admin.get(`DocumentReference/${id}`)).status, 410)
  t.equal(await total(), before)
})

t.test('ends the downloads of a resource after a limit, and goes on later', async (t) => {
  const gate = Promise.withResolvers<void>()
  held.set('/hangs.txt', gate.promise)
  const { id } = await admin.create(aDocument('/before.txt', '/hangs.txt', '/after.txt'))
  await until(async () => timesAsked('/hangs.txt') === 2, SECONDS)
  t.equal(timesAsked('/after.txt'), 0)
  gate.resolve()
  await settled()
  t.equal(timesAsked('/before.txt'), 1)
  const { body } = await admin.get<Untyped>(`DocumentReference/${id}`)
  for (const { attachment } of body.content) t.match(attachment.url, /\/storage\//)
})

t.test('downloads for one resource of a Project at a time', async (t) => {
  const slow = ['/slow-1', '/slow-2', '/slow-3', '/slow-4']
  const gate = Promise.withResolvers<void>()
  for (const path of slow) held.set(path, gate.promise)
  await Promise.all(slow.map((path) => admin.create(aDocument(path))))
  await until(async () => slow.some((path) => timesAsked(path) > 0), SECONDS)
  const { admin: other } = await botica.createTenant()
  await other.create(aDocument('/other.txt'))
  await until(async () => timesAsked('/other.txt') === 1, SECONDS)
  gate.resolve()
  await settled()
  t.equal(most.get('/slow'), 1)
})

t.test('limits downloads by the settings of the Project', async (t) => {
  async function settings(tenant: Tenant, ...setting: object[]): Promise<void> {
    const { body } = await botica.superAdmin.get<Untyped>(`Project/${tenant.project.id}`)
    await botica.superAdmin.put(`Project/${tenant.project.id}`, { ...body, setting })
  }
  const [none, some] = [await botica.createTenant(), await botica.createTenant()]
  await settings(none, { name: 'autoDownloadEnabled', valueBoolean: false })
  await settings(
    some,
    { name: 'autoDownloadAllowedUrlPrefixes', valueString: `${base}/a, ${base}/b` },
    { name: 'autoDownloadIgnoredUrlPrefixes', valueString: `${base}/a/ignored` },
  )
  await none.admin.create(aDocument('/a/never'))
  await some.admin.create(aDocument('/a/yes', '/b/yes', '/c/no', '/a/ignored'))
  await settled()
  t.same(['/a/never', '/a/yes', '/b/yes', '/c/no', '/a/ignored'].map(timesAsked), [0, 1, 1, 0, 0])
})
