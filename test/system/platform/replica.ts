/** A PostgreSQL and its streaming replica in separate clusters. */
import { execFileSync } from 'node:child_process'
import { appendFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { temporaryFolder } from '../../../scripts/account.ts'
import { prepare } from '../../../scripts/migrate.ts'
import { startPostgres } from '../../../scripts/postgres.ts'
import { findNotedProcess, freePort, type Service } from '../../../scripts/service.ts'
import { readConfig } from '../../../shared/core/config/config.ts'

interface Pair {
  readonly primaryUrl: string
  readonly replicaUrl: string
  stopReplica(): Promise<void>
  killReplica(): Promise<void>
  startReplica(): Promise<void>
}

/** Starts both with migrated tables; they stop with the test. */
export async function startPair(t: Test): Promise<Pair> {
  const folder = temporaryFolder('botica-replica-')
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const [first, second] = [join(folder, 'primary'), join(folder, 'replica')]
  const [port, replicaPort] = [await freePort(), await freePort()]
  const start = (place: string, at: number) =>
    startPostgres({ folder: place, sharedBuffersMb: 64, durable: true, port: at })
  const empty = await start(first, port)
  await prepare(readConfig({ ...process.env, DATABASE_URL: empty.url }))
  await empty.stop()
  execFileSync('cp', ['-a', first, second])
  const primary = await start(first, port)
  t.teardown(() => primary.stop())
  const { username, password } = new URL(primary.url)
  const place = `host=127.0.0.1 port=${port} user=${username} password=${password}`
  appendFileSync(join(second, 'data/postgresql.auto.conf'), `primary_conninfo = '${place}'\n`)
  writeFileSync(join(second, 'data/standby.signal'), '')
  let replica: Service = await start(second, replicaPort)
  t.teardown(() => replica.stop())
  return {
    primaryUrl: primary.url,
    replicaUrl: replica.url,
    stopReplica: () => replica.stop(),
    async killReplica() {
      const pid = findNotedProcess(join(second, 'process.json'))
      if (pid === undefined) throw new Error('The replica does not run')
      const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').match(/\d+/g) ?? []
      for (const one of [pid, ...children.map(Number)]) process.kill(one, 'SIGKILL')
      await replica.ended
    },
    async startReplica() {
      replica = await start(second, replicaPort)
    },
  }
}
