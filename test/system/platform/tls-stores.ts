/** Stores as a platform hosts them: TLS only, each with a private certificate. */
import { spawn } from 'node:child_process'
import { chownSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import type { Test } from 'tap'
import { temporaryFolder } from '../../../scripts/account.ts'
import { type PostgresOptions, startPostgres } from '../../../scripts/postgres.ts'
import { findServer } from '../../../scripts/redis.ts'
import { freePort } from '../../../scripts/service.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { until } from '../../fixtures/botica.ts'
import { aCertificate } from '../../fixtures/services/certificate.ts'

const PATIENCE_MS = 60_000

/** Starts a PostgreSQL that accepts only `hostssl` connections; returns its URL. It stops with the test. */
export async function startTlsPostgres(
  t: Test,
  options: Pick<PostgresOptions, 'durable'>,
): Promise<string> {
  const folder = temporaryFolder('botica-tls-')
  const place = join(folder, 'postgres')
  const postgres = await startPostgres({ folder: place, sharedBuffersMb: 64, ...options })
  t.teardown(async () => {
    await postgres.stop()
    rmSync(folder, { recursive: true, force: true })
  })
  const data = join(place, 'data')
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
  // Existing sessions apply the setting later than the postmaster.
  await until(async () => (await ask<{ ssl: string }>('show ssl'))[0]?.ssl === 'on', PATIENCE_MS)
  await plain.close()
  // A Unix socket would need no TLS.
  const address = new URL(postgres.url)
  address.search = ''
  return address.href
}

/** Starts a Redis with a password that listens on TLS only; returns its URL. It stops with the test. */
export async function startTlsRedis(t: Test): Promise<string> {
  const folder = temporaryFolder('botica-tls-redis-')
  const port = await freePort()
  const { key, cert } = aCertificate()
  const [keyFile, certFile] = [join(folder, 'key'), join(folder, 'cert')]
  writeFileSync(keyFile, key)
  writeFileSync(certFile, cert)
  const lines = [
    'port 0',
    `tls-port ${port}`,
    `tls-key-file ${keyFile}`,
    `tls-cert-file ${certFile}`,
    `tls-ca-cert-file ${certFile}`,
    'tls-auth-clients no',
    'bind 127.0.0.1',
    `dir ${folder}`,
    'requirepass known-to-few',
    'save ""',
    '',
  ]
  const server = spawn(findServer() ?? 'redis-server', ['-'], {
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  server.stdin.end(lines.join('\n'))
  const url = `rediss://:known-to-few@127.0.0.1:${port}`
  const tls = { rejectUnauthorized: false }
  const ready = new Redis(url, { tls, maxRetriesPerRequest: null, retryStrategy: () => 50 })
  ready.on('error', () => undefined)
  await ready.ping()
  ready.disconnect()
  t.teardown(() => {
    server.kill('SIGKILL')
    rmSync(folder, { recursive: true, force: true })
  })
  return url
}
