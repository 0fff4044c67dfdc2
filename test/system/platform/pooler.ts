/** The installed PgBouncer in front of a separate database. */
import { execFileSync } from 'node:child_process'
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { serviceAccount, serviceFolder, temporaryFolder } from '../../../scripts/account.ts'
import { withClient } from '../../../scripts/postgres.ts'
import { freePort, startService } from '../../../scripts/service.ts'

/** Returns the version as a number, such as 1.21; undefined if not installed. */
export function poolerVersion(): number | undefined {
  try {
    const said = execFileSync('pgbouncer', ['--version'], { encoding: 'utf8' })
    return Number(/PgBouncer (\d+\.\d+)/.exec(said)?.[1])
  } catch {
    return undefined
  }
}

/** Starts a pooler that stops with the test; returns its URL. By default it rejects session settings. */
export async function startPooler(
  t: Test,
  databaseUrl: string,
  mode: 'session' | 'transaction',
  settings: Readonly<Record<string, string | number>> = {},
): Promise<string> {
  const folder = serviceFolder(temporaryFolder('botica-pooler-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const { hostname, port, username, password, pathname } = new URL(databaseUrl)
  const name = pathname.slice(1)
  const own = await freePort()
  const file = join(folder, 'pgbouncer.ini')
  const users = join(folder, 'users')
  writeFileSync(users, `"${username}" "${decodeURIComponent(password)}"\n`)
  const pooler = { pool_mode: mode, auth_type: 'plain', auth_file: users, listen_port: own }
  const lines = Object.entries({
    ...pooler,
    listen_addr: '127.0.0.1',
    unix_socket_dir: '',
    default_pool_size: 40,
    ...settings,
  }).map(([key, value]) => `${key} = ${value}`)
  const place = `host=${hostname} port=${port} dbname=${name}`
  writeFileSync(file, `[databases]\n${name} = ${place}\n[pgbouncer]\n${lines.join('\n')}\n`)
  const url = `postgres://${username}:${password}@127.0.0.1:${own}/${name}`
  const service = await startService({
    name: 'PgBouncer',
    url,
    command: 'pgbouncer',
    args: [file],
    env: process.env,
    folder,
    account: serviceAccount(),
    check: () => withClient({ connectionString: url }, async () => undefined),
  })
  t.teardown(() => service.stop())
  return url
}
