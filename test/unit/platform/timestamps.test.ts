/** Timestamps are parsed as pg parses them, in every format. */
import { types } from 'pg'
import t from 'tap'
import { columnTypes } from '../../../shared/postgres/pool.ts'

const TIMESTAMPTZ = 1184

for (const text of [
  '2026-11-25 16:10:32.123456+00',
  '2026-11-25 16:10:32+00',
  '2026-11-25 16:10:32.1+00',
  '2024-02-29 00:00:00.05+00',
  '1999-12-31 23:59:59.999999+00',
  '2026-11-25 16:10:32.12+01',
  '2026-11-25 16:10:32+05:30',
  '0099-01-01 00:00:00+00',
  '10000-01-01 00:00:00+00',
  '0044-03-15 00:00:00+00 BC',
  'infinity',
  '-infinity',
]) {
  t.test(text, async (t) => {
    const read = columnTypes.getTypeParser(TIMESTAMPTZ, 'text')
    t.equal(Number(read(text)), Number(types.getTypeParser(TIMESTAMPTZ, 'text')(text)))
  })
}
