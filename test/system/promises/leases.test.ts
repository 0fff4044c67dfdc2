/**
 * A worker that hangs beyond its lease cannot settle the work; the current holder does. Imports the database, to
 * watch leases.
 */
import t from 'tap'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { until } from '../../fixtures/botica.ts'
import { aSubscription, startReceiver } from '../../fixtures/http/receiver.ts'
import { openCluster, type Running } from '../../fixtures/services/cluster.ts'
import { startSmtp } from '../../fixtures/services/smtp.ts'
import { hold, waitingFor } from '../../fixtures/store/held-rows.ts'

t.setTimeout(400_000)
const PATIENCE_MS = 120_000
const SHORT_LEASE = { leaseMs: 1500 }
/** A busy machine can delay the renewal of a short lease until it has expired. */
const LONG_LEASE = { leaseMs: 60_000 }

const cluster = await openCluster(t)
const smtp = await startSmtp(t)
const receiver = await startReceiver(t)
const database = openDatabase(
  { databaseUrl: cluster.postgres.url, databasePool: 3 },
  createLogger('silent', 'script'),
)
t.teardown(() => database.close())

async function count(text: string): Promise<number> {
  return (await database.query({ text, values: [] })).length
}

async function startWorker(
  queue: 'upkeep' | 'mail' | 'change',
  waits: object = SHORT_LEASE,
): Promise<Running> {
  const WAITS = JSON.stringify({ ...JSON.parse(process.env.WAITS ?? '{}'), ...waits })
  const worker = cluster.run('worker', { WAITS, WORKER_QUEUES: queue, SMTP_URL: smtp.url })
  await says(worker, '"taking jobs"')
  return worker
}

async function takes(): Promise<number> {
  const text = 'select takes from job'
  const [job] = await database.query<{ takes: number }>({ text, values: [] })
  return job?.takes ?? 0
}

async function says({ said }: Running, text: string): Promise<void> {
  await until(async () => said().includes(text), PATIENCE_MS).catch((cause: unknown) => {
    throw new Error(`Printed ${said()} without "${text}"`, { cause })
  })
}

async function end(...workers: readonly Running[]): Promise<void> {
  for (const { child } of workers) child.kill('SIGTERM')
  await Promise.all(workers.map(({ ended }) => ended))
}

t.test('ends a maintenance job only by the holder of its newest lease', async (t) => {
  const { superAdmin } = cluster
  const started = await superAdmin.post('Basic/$reindex', undefined)
  t.equal(started.status, 202)
  const status = started.headers.get('content-location')?.replace(`${cluster.baseUrl}fhir/R4/`, '')
  const table = 'lock table resource in share row exclusive mode'
  const held = await hold(database, { text: table, values: [] })
  const frozen = await startWorker('upkeep')
  // Frozen any earlier, it would end the job with the timeout of a connection that it was opening.
  await until(async () => (await waitingFor(database, held.pid)).length > 0, PATIENCE_MS)
  frozen.child.kill('SIGSTOP')
  const takesOfFrozen = await takes()
  const other = await startWorker('upkeep', LONG_LEASE)
  await until(async () => (await takes()) > takesOfFrozen, PATIENCE_MS)
  frozen.child.kill('SIGCONT')
  await held.release()
  await says(frozen, '"outcome":"lost"')
  await says(other, '"outcome":"done"')
  t.equal(await count('select 1 from job'), 0)
  t.match(await superAdmin.get(status ?? ''), { status: 200, body: { status: 'completed' } })
  t.notOk(frozen.said().includes('"outcome":"done"'))
  await end(frozen, other)
})

t.test('settles a mail only by the holder of its newest lease', async (t) => {
  const { admin } = await cluster.createTenant('Mail')
  const first = Promise.withResolvers<number>()
  let attempts = 0
  smtp.refuse = () => {
    attempts += 1
    return attempts === 1 ? first.promise : 550
  }
  const sent = await admin.post('/email/v1/send', { to: 'a@example.org', subject: 'x', text: 'y' })
  t.equal(sent.status, 200, sent.text)
  const frozen = await startWorker('mail')
  await until(async () => attempts === 1, PATIENCE_MS)
  frozen.child.kill('SIGSTOP')
  const other = await startWorker('mail', LONG_LEASE)
  const failed = `select 1 from mail where state = 'failed' and error like '%550%'`
  await until(async () => (await count(failed)) === 1, PATIENCE_MS)
  frozen.child.kill('SIGCONT')
  // The server asks the first worker to retry later.
  first.resolve(451)
  await says(frozen, 'A mail was lost to another worker')
  t.equal(await count(failed), 1, 'keeps the result of the other worker')
  await end(frozen, other)
})

t.test('settles a delivery only by the holder of its newest lease', async (t) => {
  const { admin } = await cluster.createTenant('Delivery')
  const first = Promise.withResolvers<number>()
  receiver.answer('/hook', () => (receiver.on('/hook').length === 1 ? first.promise : 200))
  await admin.create(aSubscription('Basic', `${receiver.url}/hook`))
  const frozen = await startWorker('change')
  await admin.create({ resourceType: 'Basic', code: { text: 'x' } })
  await receiver.got('/hook', 1)
  frozen.child.kill('SIGSTOP')
  const other = await startWorker('change', LONG_LEASE)
  const delivered = 'select 1 from subscription_state where delivered = 1'
  await until(async () => (await count(delivered)) === 1, PATIENCE_MS)
  frozen.child.kill('SIGCONT')
  first.resolve(400)
  await end(frozen)
  t.equal(await count('select 1 from delivery'), 0)
  t.equal(await count(`${delivered} and failed = 0 and failures = 0`), 1)
  await end(other)
})

t.test('renews the lease of a mail while a slow worker sends it', async (t) => {
  const { admin } = await cluster.createTenant('Slow')
  const first = Promise.withResolvers<undefined>()
  let attempts = 0
  smtp.refuse = () => {
    attempts += 1
    return attempts === 1 ? first.promise : 550
  }
  const email = { to: 'b@example.org', subject: 'slow', text: 'y' }
  t.equal((await admin.post('/email/v1/send', email)).status, 200)
  const workers = [await startWorker('mail'), await startWorker('mail')]
  await until(async () => attempts === 1, PATIENCE_MS)
  const row = `select 1 from mail where message->>'subject' = 'slow'`
  const renewed = `${row} and due > added + interval '6 s'`
  await until(async () => (await count(renewed)) === 1, PATIENCE_MS)
  first.resolve(undefined)
  await until(async () => (await count(row)) === 0, PATIENCE_MS)
  t.equal(attempts, 1)
  await end(...workers)
})
