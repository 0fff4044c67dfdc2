/** Imports the database, whose end no request can observe. */
import { pino } from 'pino'
import t from 'tap'
import { openDatabase } from '../../../shared/postgres/database.ts'

t.test('reports no outage when closing interrupts opening connections', async (t) => {
  const lines: string[] = []
  const log = pino({ level: 'info' }, { write: (line: string) => void lines.push(line) })
  const settings = { databaseUrl: process.env.DATABASE_URL ?? '', databasePool: 10 }
  const database = openDatabase(settings, log)
  const asked = database.query({ text: 'select 1', values: [] }).catch(() => 'refused')
  await database.close()
  await asked
  t.same(lines, [])
})
