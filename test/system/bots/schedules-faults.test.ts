import { once } from 'node:events'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { justNow, miss } from '../../fixtures/bots/schedules.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

// Any worker on the database leases due occurrences.
const DATABASE_URL = await createDatabase(t)
const botica = await openBotica(t, { worker: 'process', env: { DATABASE_URL } })
const { admin, services } = botica
const { database, redis } = services
const BOTS = 16
const PATIENCE_MS = 120_000

const GATED = handler(`
  while (!(await medplum.searchOne('Basic', 'identifier=test|gate'))) {
    await new Promise((resolve) => setTimeout(resolve, 300))
  }
  await medplum.createResource({ resourceType: 'Basic', code: { text: event.input.id } })`)

async function dueBots(): Promise<readonly string[]> {
  const { cronString } = justNow()
  const bots: string[] = []
  for (let i = 0; i < BOTS; i++)
    bots.push(await aBot(botica, GATED, { fields: { cronString, timeout: 300 } }))
  await miss(services, ...bots)
  return bots
}

async function open(bots: readonly string[]): Promise<number> {
  const rows = await database.query({
    text: `select bot from occurrence where bot = any($1)
      union all select id from schedule where id = any($1) and due is null`,
    values: [bots],
  })
  return rows.length
}

async function ran(bots: readonly string[]): Promise<readonly string[]> {
  const found = await admin.get<Untyped>('Basic?_count=1000')
  const texts: string[] = (found.body.entry ?? []).map(
    ({ resource }: Untyped) => resource.code.text,
  )
  return texts.filter((text) => bots.includes(text)).sort()
}

t.test(
  'runs each occurrence once although a worker is killed and Redis loses its data',
  async (t) => {
    const doomed = await botica.startWorker()
    const bots = await dueBots()
    const active = async () => (await services.queues.depths())['bots-async']?.active ?? 0
    await until(async () => (await active()) >= BOTS / 2, PATIENCE_MS)

    doomed.kill('SIGKILL')
    await once(doomed, 'close')
    await redis.flushdb()
    // A surviving run is not repeated, a lost one is.
    await until(async () => (await active()) > 0, PATIENCE_MS)
    t.equal(await open(bots), BOTS)
    await admin.create({
      resourceType: 'Basic',
      identifier: [{ system: 'test', value: 'gate' }],
      code: { text: 'gate' },
    })
    await until(async () => (await open(bots)) === 0, PATIENCE_MS)
    t.same(await ran(bots), bots.toSorted())
  },
)
