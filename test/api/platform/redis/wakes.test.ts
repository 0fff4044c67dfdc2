import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import t from 'tap'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { kickOff } from '../../../fixtures/exports/exports.ts'
import { listen } from '../../../fixtures/http/listening.ts'
import { aPatient } from '../../../fixtures/resources.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const NEVER_MS = 3_600_000
const DONE_MS = 60_000
const { WAITS = '{}' } = process.env

// A worker that polls once an hour starts work only when woken.
const { admin } = await openBotica(t, {
  worker: 'process',
  env: {
    DATABASE_URL: await createDatabase(t),
    WAITS: JSON.stringify({ ...JSON.parse(WAITS), sweepMs: NEVER_MS }),
  },
})
await admin.create(aPatient())

t.test('starts asynchronous requests without waiting for a poll', async (t) => {
  for (let sent = 0; sent < 3; sent++) {
    const entry = [{ request: { method: 'POST', url: 'Patient' }, resource: aPatient() }]
    const bundle = { resourceType: 'Bundle', type: 'batch', entry }
    const accepted = await admin.post('', bundle, { Prefer: 'respond-async' })
    const url = accepted.headers.get('content-location') ?? ''
    await until(async () => (await admin.get(url)).body.status === 'completed', DONE_MS)
  }
  t.pass()
})

t.test('starts exports without waiting for a poll', async (t) => {
  for (let sent = 0; sent < 2; sent++) {
    const url = await kickOff(admin, '$export?_type=Patient,Observation,Organization')
    await until(async () => (await admin.get(url)).status === 200, DONE_MS)
  }
  t.pass()
})

t.test('starts imports without waiting for a poll', async (t) => {
  const server = createServer((_, res) => {
    res.end(JSON.stringify({ ...aPatient(), id: randomUUID() }))
  })
  const port = await listen(t, server)
  for (let sent = 0; sent < 2; sent++) {
    const part = [
      { name: 'type', valueCode: 'Patient' },
      { name: 'url', valueUrl: `http://127.0.0.1:${port}/${sent}` },
    ]
    const parameters = { resourceType: 'Parameters', parameter: [{ name: 'input', part }] }
    const accepted = await admin.post('$import', parameters)
    const url = accepted.headers.get('content-location') ?? ''
    await until(async () => (await admin.get(url)).status === 200, DONE_MS)
  }
  t.pass()
})
