/**
 * A hosted PostgreSQL that requires TLS with a private certificate, for all access including block transfers.
 * Imports the reader of settings, to seed the database.
 */
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { prepare } from '../../../scripts/migrate.ts'
import { readConfig } from '../../../shared/core/config/config.ts'
import { upload } from '../../fixtures/binaries.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { ended, exportAll } from '../../fixtures/exports/exports.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anOrganization } from '../../fixtures/resources.ts'
import { startTlsPostgres } from './tls-stores.ts'

/** More than one export block and one import batch hold. */
const ROWS = 5000

const databaseUrl = await startTlsPostgres(t, { durable: false })
const env = { DATABASE_URL: databaseUrl, DATABASE_TLS_INSECURE: 'true' }
await prepare(readConfig({ ...process.env, ...env }))
const botica = await openBotica(t, {
  worker: 'process',
  env: { ...env, EXPORT_COMPRESSION_LEVEL: '0' },
})
const { admin } = botica
const { database } = botica.services

async function connections() {
  return database.query<{ name: string; ssl: boolean }>({
    text: `select a.application_name as name, s.ssl from pg_stat_activity a
      join pg_stat_ssl s using (pid) where a.backend_type = 'client backend'`,
    values: [],
  })
}

t.test('exports imported data unchanged, over encrypted connections only', async (t) => {
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

async function release(settings: Readonly<Record<string, string>>) {
  const child = spawn(process.execPath, ['scripts/migrate.ts'], {
    env: { ...process.env, ...settings },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const [said, [code]] = await Promise.all([text(child.stderr), once(child, 'close')])
  return { said, code }
}

t.test('names the setting that fixes a TLS failure of the release', async (t) => {
  const cases: readonly (readonly [string, Readonly<Record<string, string>>, RegExp])[] = [
    ['without TLS', {}, /takes encrypted connections only; set DATABASE_TLS_INSECURE=true/],
    [
      'with a certificate that is checked',
      { DATABASE_URL: `${databaseUrl}?sslmode=verify-full` },
      /certificate cannot be checked \(DEPTH_ZERO_SELF_SIGNED_CERT\); DATABASE_TLS_INSECURE=true/,
    ],
  ]
  for (const [name, settings, sentence] of cases) {
    const { said, code } = await release({ DATABASE_URL: databaseUrl, ...settings })
    t.equal(code, 1, name)
    t.match(said, sentence, name)
    t.notMatch(said, /\n\s+at |postgres:\/\//, name)
  }
  t.match(await release(env), { code: 0, said: '' })
})
