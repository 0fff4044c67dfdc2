/** A hosted PostgreSQL demands TLS, with a certificate of its own: what is written and read in blocks goes through it, too. */
import { randomUUID } from 'node:crypto'
import { chownSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { temporaryFolder } from '../../scripts/account.ts'
import { prepare } from '../../scripts/migrate.ts'
import { startPostgres } from '../../scripts/postgres.ts'
import { readConfig } from '../../shared/config/config.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { createLogger } from '../../shared/log.ts'
import { openDatabase } from '../../shared/platform/postgres/database.ts'
import { upload } from '../fixtures/binaries.ts'
import { openBotica, until } from '../fixtures/botica.ts'
import { ended, exportAll } from '../fixtures/exports/exports.ts'
import { anOrganization } from '../fixtures/resources.ts'
import { aCertificate } from '../fixtures/services/certificate.ts'

/** Beyond what one block of an export and one batch of an import hold. */
const ROWS = 5000
const PATIENCE_MS = 60_000

const folder = temporaryFolder('botica-tls-')
const postgres = await startPostgres({
  folder: join(folder, 'postgres'),
  sharedBuffersMb: 64,
  durable: false,
})
t.teardown(async () => {
  await postgres.stop()
  rmSync(folder, { recursive: true, force: true })
})
await turnTlsOn()
const url = `${postgres.url}?sslmode=no-verify`
await prepare(readConfig({ ...process.env, DATABASE_URL: url }))
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: url, EXPORT_COMPRESSION_LEVEL: '0' },
})
const { admin } = botica
const { database } = botica.services

async function turnTlsOn(): Promise<void> {
  const data = join(folder, 'postgres', 'data')
  const { key, cert } = aCertificate()
  const { uid, gid } = statSync(data)
  for (const [name, text] of [
    ['server.key', key],
    ['server.crt', cert],
  ] as const) {
    writeFileSync(join(data, name), text, { mode: 0o600 })
    chownSync(join(data, name), uid, gid)
  }
  const log = createLogger('silent', 'script')
  const plain = openDatabase({ databaseUrl: postgres.url, databasePool: 1 }, log)
  const ask = <Row extends object>(text: string) => plain.query<Row>({ text, values: [] })
  await ask('alter system set ssl = on')
  await ask('select pg_reload_conf()')
  // Sessions hear of it behind the process that takes new ones.
  await until(async () => (await ask<{ ssl: string }>('show ssl'))[0]?.ssl === 'on', PATIENCE_MS)
  await plain.close()
}

/** Open connections to the database, and whether they are encrypted. */
async function connections() {
  return database.query<{ name: string; ssl: boolean }>({
    text: `select a.application_name as name, s.ssl from pg_stat_activity a
      join pg_stat_ssl s using (pid) where a.backend_type = 'client backend'`,
    values: [],
  })
}

t.test('what is imported is exported as it was, and every connection is encrypted', async (t) => {
  const sent = Array.from({ length: ROWS }, (_, n) =>
    anOrganization({ id: randomUUID(), name: `${n} ${'é'.repeat(500)}` }),
  )
  const ndjson = sent.map((resource) => JSON.stringify(resource)).join('\n')
  const { id } = await upload(admin, ndjson, 'application/fhir+ndjson')
  const part = [
    { name: 'type', valueCode: 'Organization' },
    { name: 'url', valueUrl: `Binary/${id}` },
  ]
  const begun = await admin.post('$import', {
    resourceType: 'Parameters',
    parameter: [{ name: 'input', part }],
  })
  const { body } = await ended(admin, begun.headers.get('content-location') ?? '')
  t.match(body, { output: [{ count: ROWS, created: ROWS }], error: { length: 0 } })

  const { resources } = await exportAll(admin, '$export?_type=Organization')
  const names = (all: readonly Resource[]) => all.map(({ name }) => name).sort()
  t.same(names(resources.get('Organization') ?? []), names(sent))
  const open = await connections()
  t.ok(open.some(({ name }) => name === 'botica export'))
  t.same(
    open.filter(({ ssl }) => !ssl),
    [],
  )
})
