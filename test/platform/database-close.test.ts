/** A database that is closed while it opens connections tells nobody of an outage. */
import { pino } from 'pino'
import t from 'tap'
import { openDatabase } from '../../shared/postgres/database.ts'

t.test('what is given up by closing is no outage', async (t) => {
  const lines: string[] = []
  const log = pino({ level: 'info' }, { write: (line: string) => void lines.push(line) })
  const settings = { databaseUrl: process.env.DATABASE_URL ?? '', databasePool: 10 }
  const database = openDatabase(settings, log)
  const asked = database.query({ text: 'select 1', values: [] }).catch(() => 'refused')
  await database.close()
  await asked
  t.same(lines, [])
})
