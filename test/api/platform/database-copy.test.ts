/** Imports the copy sessions, which requests do not choose. */
import t from 'tap'
import { openCopySessions } from '../../../shared/postgres/copy.ts'
import { openBotica, until } from '../../fixtures/botica.ts'

const DONE_MS = 120_000
const { database } = (await openBotica(t)).services
const copies = openCopySessions(database)
t.teardown(() => copies.close())

for (const outcome of ['done', 'refused'] as const) {
  t.test(`ends a copy after the work of the last row, which is ${outcome}`, async (t) => {
    const session = await copies.open(new AbortController().signal)
    t.teardown(() => session.close())
    const [own] = await session.query<{ pid: number }>({
      text: 'select pg_backend_pid() as pid',
      values: [],
    })
    const wait = Promise.withResolvers<void>()
    let isOver = false
    const copying = session.copy('select 1', () => wait.promise)
    const over = () => {
      isOver = true
    }
    copying.then(over, over)
    await until(async () => {
      const [row] = await database.query<{ isIdle: boolean }>({
        text: `select state = 'idle' and query like '%copy%' as "isIdle" from pg_stat_activity
          where pid = $1`,
        values: [own?.pid],
      })
      return row?.isIdle === true
    }, DONE_MS)
    t.notOk(isOver, 'passes all rows')
    if (outcome === 'done') wait.resolve()
    else wait.reject(new Error('No more'))
    await (outcome === 'done' ? copying : t.rejects(copying, { message: 'No more' }))
  })
}

t.test('passes slow and fast rows in order', async (t) => {
  const session = await copies.open(new AbortController().signal)
  t.teardown(() => session.close())
  const rows = 4000
  for (const now of ['', 'pg_sleep(case when i % 400 = 0 then 0.002 else 0 end)::text ||']) {
    const found: number[] = []
    await session.copy(
      `select i, ${now} repeat('x', 1000) from generate_series(1, ${rows}) i`,
      ([i]) => void found.push(i?.bytes.readInt32BE(i.start) ?? 0),
    )
    t.same(
      found,
      Array.from({ length: rows }, (_, i) => i + 1),
    )
    const [next] = await session.query({ text: 'select 1 as one', values: [] })
    t.same(next, { one: 1 }, 'keeps the connection usable')
  }
})
