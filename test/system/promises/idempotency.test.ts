/** An Idempotency-Key survives crashes: committed requests are replayed, others are executed. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { freePort } from '../../../scripts/service.ts'
import { until } from '../../fixtures/botica.ts'
import { type Client, createClient } from '../../fixtures/client.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'
import { openCluster, said } from '../../fixtures/services/cluster.ts'

t.setTimeout(400_000)
const COUNT = 60
const cluster = await openCluster(t)
const { admin } = await cluster.createTenant('Promises')

const create = (value: string) => aPatient({ identifier: [{ system: MRN_SYSTEM, value }] })
const bundle = (type: string, values: readonly string[]) => ({
  resourceType: 'Bundle',
  type,
  entry: values.map((value) => ({
    request: { method: 'POST', url: 'Patient' },
    resource: create(value),
  })),
})

/** Three kinds of writes in turn, each with a separate key and mark. */
const writes = Array.from({ length: COUNT }, (_, n) => {
  const value = randomUUID()
  const key = { 'Idempotency-Key': randomUUID() }
  const unless = { 'If-None-Exist': `identifier=${MRN_SYSTEM}|${value}` }
  const ways = [
    (client: Client) => client.post('Patient', create(value), key),
    (client: Client) => client.post('Patient', create(value), { ...key, ...unless }),
    (client: Client) => client.post('', bundle('transaction', [value]), key),
  ]
  return { value, send: ways[n % 3] ?? ways[0], status: n % 3 === 2 ? 200 : 201 }
})

async function countMatches(value: string): Promise<number> {
  const found = await admin.get(`Patient?identifier=${MRN_SYSTEM}|${value}&_summary=count`)
  return Number(found.body.total)
}

t.test('answers repeats without duplicates when web crashes between responses', async (t) => {
  const port = await freePort()
  const doomed = cluster.run('server', { PORT: String(port) })
  await said(doomed, '"listening"')
  const client = createClient(`http://127.0.0.1:${port}/`, admin.token)
  const batchKey = { 'Idempotency-Key': randomUUID() }
  const marks = Array.from({ length: 2000 }, () => randomUUID())
  const first = writes.map(({ send }) => send?.(client).catch(() => undefined))
  await Promise.any(first)
  const batch = client.post('', bundle('batch', marks), batchKey).catch(() => undefined)
  await until(async () => (await countMatches(marks[0] ?? '')) === 1, 60_000)
  doomed.child.kill('SIGKILL')
  t.ok((await batch) === undefined, 'the batch was interrupted')
  const before = await Promise.all(first)
  const again = await Promise.all(writes.map(({ send }) => send?.(admin)))
  const counts = await Promise.all(writes.map(({ value }) => countMatches(value)))
  const odd = writes.flatMap(({ status }, i) => {
    const [one, two] = [before[i], again[i]]
    // A busy machine may return 503, which promises nothing.
    const isSame = one === undefined || one.status === 503 || one.text === two?.text
    const isRight = two?.status === status && isSame && counts[i] === 1
    return isRight ? [] : [[one?.status, one?.text, two?.status, two?.text, counts[i]]]
  })
  t.same(odd, [])
  t.equal(
    (await admin.post('', bundle('batch', marks), batchKey)).status,
    409,
    'executes no second time',
  )
  t.equal(await countMatches(marks[0] ?? ''), 1)
})
