/** Imports the database, to connect it to a silent server. */
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import t from 'tap'
import { HttpError } from '../../../shared/core/errors.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import type { Connection } from '../../../shared/postgres/statement.ts'
import { until } from '../../fixtures/botica.ts'
import { databaseUrl } from '../../fixtures/store/store.ts'

/** Proxy to PostgreSQL that can stop responding without closing connections. */
async function openProxy() {
  const store = new URL(databaseUrl())
  const sockets = new Set<Socket>()
  let isSilent = false
  const server = createServer((near) => {
    const far = connect(Number(store.port), store.hostname)
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from)
      from.on('data', (chunk) => isSilent || to.write(chunk))
      from.on('close', () => to.destroy())
      from.on('error', () => to.destroy())
    }
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const url = new URL(store)
  url.host = `127.0.0.1:${port}`
  t.teardown(() => {
    server.close()
    for (const socket of sockets) socket.destroy()
  })
  return {
    url,
    setSilent: (silent: boolean) => {
      isSilent = silent
    },
  }
}

t.test('returns 503 while PostgreSQL is silent, and recovers afterwards', async (t) => {
  const { url, setSilent } = await openProxy()
  const settings = { databaseUrl: url.href, databasePool: 5 }
  const database = openDatabase(settings, createLogger('silent', 'script'), 2000)
  t.teardown(() => database.close())
  const lane = database.lane()
  const ask = (connection: Connection) =>
    connection.query<{ n: number }>({ text: 'select 1 as n', values: [] })
  const failure = (asked: Promise<unknown>) => asked.catch((error: unknown) => error)

  t.same(await Promise.all([ask(database), ask(lane)]), [[{ n: 1 }], [{ n: 1 }]])
  setSilent(true)
  for (const error of await Promise.all([
    failure(ask(database)),
    failure(ask(lane)),
    failure(ask(lane)),
    failure(database.transaction(ask)),
  ])) {
    t.ok(error instanceof HttpError && error.status === 503, String(error))
  }
  setSilent(false)
  // A connection opened during the silence may fail one more query.
  const isAnswered = (asked: Promise<unknown>) => asked.then(() => true).catch(() => false)
  await until(() => isAnswered(ask(database)), 60_000)
  await until(() => isAnswered(ask(lane)), 60_000)
})
