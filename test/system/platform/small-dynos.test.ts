/** Web and worker within 512 MB each, as on the smallest dynos, under a flood. Needs the right to create cgroups. */
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { freePort } from '../../../scripts/service.ts'
import { until } from '../../fixtures/botica.ts'
import { aBot, handler } from '../../fixtures/bots/bots.ts'
import { signIn } from '../../fixtures/client.ts'
import { openCluster, type Running, said } from '../../fixtures/services/cluster.ts'

const LIMIT_MB = 512
const PROJECTS = 20
const CALLERS = 100
const PAGES = 20
const LARGE = 8
const PATIENTS = 300
const FILLER = 'x'.repeat(8000)

/** Version 1 of cgroups has a tree of groups for memory alone. https://docs.kernel.org/admin-guide/cgroup-v1/memory.html */
const ROOT = ['/sys/fs/cgroup/memory', '/sys/fs/cgroup'].find((root) =>
  existsSync(join(root, 'cgroup.procs')),
)
const LIMIT_FILES = ['memory.limit_in_bytes', 'memory.max']
const ownGroup = /^(?:\d+:memory|0:):(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8'))?.[1]

/** Returns the folder of a new group; undefined where this user may not create one. */
function createGroup(name: string): string | undefined {
  const folder = join(ROOT ?? '', `botica-${process.pid}-${name}`)
  try {
    mkdirSync(folder)
    const file = LIMIT_FILES.map((one) => join(folder, one)).find((one) => existsSync(one))
    writeFileSync(file ?? '', String(LIMIT_MB * 1024 * 1024))
    t.teardown(async () => {
      await until(async () => readFileSync(join(folder, 'cgroup.procs'), 'utf8') === '', 60_000)
      rmdirSync(folder)
    })
    return folder
  } catch {
    return undefined
  }
}

/** A new process begins in the group of its parent. */
function startIn(group: string, start: () => Running): Running {
  writeFileSync(join(group, 'cgroup.procs'), String(process.pid))
  try {
    return start()
  } finally {
    writeFileSync(join(ROOT ?? '', ownGroup ?? '', 'cgroup.procs'), String(process.pid))
  }
}

const groups = { web: createGroup('web'), worker: createGroup('worker') }
const skip = groups.web && groups.worker ? false : 'no cgroup can be created here'

t.test('neither web nor worker is killed within 512 MB', { skip, timeout: 300_000 }, async (t) => {
  const cluster = await openCluster(t)
  const port = String(await freePort())
  const web = startIn(groups.web ?? '', () => cluster.run('server', { PORT: port }))
  await said(web, '"listening"')
  const worker = startIn(groups.worker ?? '', () => cluster.run('worker'))
  await said(worker, '"taking jobs"')
  const baseUrl = `http://127.0.0.1:${port}/`

  const tenants = await Promise.all(
    Array.from({ length: PROJECTS }, (_, n) => cluster.createTenant(`Small ${n}`)),
  )
  const bodies = [
    'return event.input',
    'await new Promise((end) => setTimeout(end, 200)); return event.input',
  ]
  const bots = await Promise.all(
    tenants.map(async (tenant, n) => {
      const id = await aBot(tenant, handler(bodies[n % bodies.length] ?? ''))
      const client = await signIn(
        baseUrl,
        tenant.adminCredentials.id,
        tenant.adminCredentials.secret,
      )
      return async () => (await client.post(`Bot/${id}/$execute`, { n })).status
    }),
  )
  const [tenant] = tenants
  if (tenant === undefined) throw new Error('There is no tenant')
  const client = await signIn(baseUrl, tenant.adminCredentials.id, tenant.adminCredentials.secret)
  const entry = Array.from({ length: PATIENTS }, (_, n) => ({
    request: { method: 'POST', url: 'Patient' },
    resource: { resourceType: 'Patient', name: [{ family: `Name ${n}`, text: FILLER }] },
  }))
  const bundle = { resourceType: 'Bundle', type: 'batch', entry }
  const loaded = await client.post('', bundle)
  t.equal(loaded.status, 200)

  const counts: Record<number, number> = {}
  const count = async (answer: Promise<number>) => {
    const status = await answer
    counts[status] = (counts[status] ?? 0) + 1
  }
  await Promise.all([
    ...Array.from({ length: CALLERS }, async (_, n) => {
      await delay(n * 5)
      for (let round = 0; round < 3; round++)
        await count((bots[n % bots.length] as () => Promise<number>)())
    }),
    ...Array.from({ length: PAGES }, () =>
      count(client.get(`Patient?_count=${PATIENTS}`).then(({ status }) => status)),
    ),
    ...Array.from({ length: LARGE }, () =>
      count(client.post('', bundle).then(({ status }) => status)),
    ),
  ])
  t.same(
    Object.keys(counts).filter((status) => !['200', '202', '429', '503'].includes(status)),
    [],
    'each request is answered, at once or later, or rejected for a while',
  )
  t.ok((counts[200] ?? 0) > CALLERS, `most are answered at once: ${JSON.stringify(counts)}`)
  t.same([web.child.exitCode, web.child.signalCode], [null, null], 'web lives')
  t.same([worker.child.exitCode, worker.child.signalCode], [null, null], 'worker lives')
  t.equal(await bots[0]?.(), 200, 'bots run afterwards')
})
