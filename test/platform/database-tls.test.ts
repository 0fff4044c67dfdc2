/** A hosted PostgreSQL demands TLS, with a certificate of its own: what is written and read in blocks goes through it, too. */
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { chownSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
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
const env = { DATABASE_URL: postgres.url, DATABASE_TLS_INSECURE: 'true' }
await prepare(readConfig({ ...process.env, ...env }))
const botica = await openBotica(t, { worker: true, env: { ...env, EXPORT_COMPRESSION_LEVEL: '0' } })
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
  const rules = join(data, 'pg_hba.conf')
  writeFileSync(rules, readFileSync(rules, 'utf8').replaceAll(/^host /gm, 'hostssl '))
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

/** Runs the release step and returns its exit code and what it writes to standard error. */
async function release(settings: Readonly<Record<string, string>>) {
  const child = spawn(process.execPath, ['scripts/migrate.ts'], {
    env: { ...process.env, ...settings },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const [said, [code]] = await Promise.all([text(child.stderr), once(child, 'close')])
  return { said, code }
}

t.test('a release that fails on TLS says which setting mends it', async (t) => {
  const cases: readonly (readonly [string, Readonly<Record<string, string>>, RegExp])[] = [
    ['without TLS', {}, /takes encrypted connections only; set DATABASE_TLS_INSECURE=true/],
    [
      'with a certificate that is checked',
      { DATABASE_URL: `${postgres.url}?sslmode=verify-full` },
      /certificate cannot be checked \(DEPTH_ZERO_SELF_SIGNED_CERT\); DATABASE_TLS_INSECURE=true/,
    ],
  ]
  for (const [name, settings, sentence] of cases) {
    const { said, code } = await release({ DATABASE_URL: postgres.url, ...settings })
    t.equal(code, 1, name)
    t.match(said, sentence, name)
    t.notMatch(said, /\n\s+at |postgres:\/\//, name)
  }
  t.match(await release(env), { code: 0, said: '' })
})
