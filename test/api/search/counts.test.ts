/**
 * Cached totals equal those of PostgreSQL, whichever process writes. Imports the totals, to count the statements of
 * each.
 */
import t from 'tap'
import type { Connection, Statement } from '../../../shared/postgres/statement.ts'
import { KnownCounts } from '../../../shared/store/rows/counts.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { signIn } from '../../fixtures/client.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const botica = await openBotica(t)
const { admin, adminCredentials, services } = botica
const there = await signIn(await botica.startWeb(), adminCredentials.id, adminCredentials.secret)
const CLIENTS = [admin, there]
const STEPS = 60
const WRITERS = 6
const WRITES = 40
const DEADLINE_MS = 60_000
/** Smaller totals are counted each time. */
const MANY = 200

const SEARCH = 'Patient?active=true&gender=other&_total=accurate&_count=0'
const total = async (client = admin) => (await client.get<Raw>(SEARCH)).body.total as number
const aPatient = (active = true) => ({ resourceType: 'Patient', gender: 'other', active })

const entry = Array.from({ length: MANY }, () => ({
  resource: aPatient(),
  request: { method: 'POST', url: 'Patient' },
}))
await admin.post('/fhir/R4', { resourceType: 'Bundle', type: 'batch', entry })
t.equal(await total(), MANY)

t.test('counts each change at once, in its own process and in another', async (t) => {
  const ids: string[] = []
  const steps = [
    async (client = admin) => void ids.push((await client.create(aPatient())).id),
    async (client = admin) => {
      const entry = { resource: aPatient(), request: { method: 'POST', url: 'Patient' } }
      const bundle = { resourceType: 'Bundle', type: 'transaction', entry: [entry] }
      const { body } = await client.post<Raw>('/fhir/R4', bundle)
      ids.push(body.entry[0].response.location.split('/')[1])
    },
    async (client = admin) => {
      const id = ids.shift()
      await client.put(`Patient/${id}`, { ...aPatient(false), id })
    },
    async (client = admin) => {
      const old = { meta: { lastUpdated: '2001-01-01T00:00:00Z' } }
      ids.push((await client.create({ ...aPatient(), ...old })).id)
    },
    async (client = admin) => void (await client.del(`Patient/${ids.shift()}`)),
  ]
  for (let i = 0; i < STEPS; i++) {
    await steps[i % steps.length]?.(CLIENTS[i % 2])
    for (const client of CLIENTS) {
      t.equal(await total(client), MANY + ids.length, `step ${i}`)
    }
  }
})

t.test('counts exactly the earlier writes while others write', async (t) => {
  const before = await total()
  let begun = 0
  let done = 0
  let isOver = false
  const writing = Array.from({ length: WRITERS }, async (_, n) => {
    for (let i = 0; i < WRITES; i++) {
      begun += 1
      await CLIENTS[n % 2]?.create(aPatient())
      done += 1
    }
  })
  const wrong: string[] = []
  const reading = CLIENTS.map(async (client) => {
    while (!isOver) {
      const least = before + done
      const found = await total(client)
      const most = before + begun
      if (found < least || found > most) wrong.push(`${found}, not ${least} to ${most}`)
    }
  })
  await Promise.all(writing)
  isOver = true
  await Promise.all(reading)
  t.same(wrong, [])
  t.equal(await total(there), before + WRITERS * WRITES)
})

t.test('counts once until the next write', async (t) => {
  const { database } = services
  let counts = 0
  const seen: Connection = {
    query(statement) {
      counts += 1
      return database.query(statement)
    },
  }
  const known = new KnownCounts(database)
  const rows = (n: number): Statement => ({
    text: 'select count(*), false from generate_series(1, $1::int)',
    values: [n],
  })
  t.match(await known.count(seen, rows(MANY)), { count: MANY, isEstimate: false })
  // Other tests write in the same cluster.
  await until(async () => {
    const before = counts
    const { count: found } = await known.count(seen, rows(MANY))
    if (found !== MANY) throw new Error(`Counted ${found}`)
    return counts === before
  }, DEADLINE_MS)
  const before = counts
  await admin.create(aPatient())
  t.equal((await known.count(seen, rows(MANY))).count, MANY)
  t.equal((await known.count(seen, rows(MANY + 1))).count, MANY + 1)
  t.equal(counts, before + 2)
})
