/**
 * PostgreSQL reads the same lists from their binary form. Imports the binary form, which only PostgreSQL reads.
 */

import { randomUUID } from 'node:crypto'
import t from 'tap'
import { timestamp } from '../../../shared/fhir/values.ts'
import { WireList, type WireType } from '../../../shared/store/rows/wire-list.ts'
import { openTestStore } from '../../fixtures/store/store.ts'

const { database } = await openTestStore(t)

/** The items as PostgreSQL writes them. */
async function readBack(list: WireList): Promise<readonly (string | null)[]> {
  // In any time zone of the session.
  const item = list.type === 'timestamptz' ? `x.item at time zone 'utc'` : 'x.item'
  const rows = await database.query<{ item: string | null }>({
    text: `select (${item})::text as item
      from unnest($1::${list.type}[]) with ordinality as x(item, n) order by n`,
    values: [list.value],
  })
  return rows.map(({ item }) => item)
}

const uuid = randomUUID()
const cases: readonly (readonly [
  WireType,
  fill: (list: WireList) => void,
  expected: readonly (string | null)[],
])[] = [
  ['int', (list) => [0, -1, 2 ** 31 - 1].map((n) => list.int(n)), ['0', '-1', '2147483647']],
  ['smallint', (list) => [0, -1, 32_767].map((n) => list.smallint(n)), ['0', '-1', '32767']],
  [
    'bigint',
    (list) => [0n, 2n ** 63n - 1n, -(2n ** 63n)].map((n) => list.bigint(n)),
    ['0', '9223372036854775807', '-9223372036854775808'],
  ],
  [
    'float8',
    (list) => [0.1, -2.5e-9, Infinity, -Infinity].map((n) => list.float8(n)),
    ['0.1', '-2.5e-09', 'Infinity', '-Infinity'],
  ],
  [
    'text',
    (list) => ['', 'plain', '"{\\,}"', 'Müller 😀 \u0001'].map((text) => list.text(text)),
    ['', 'plain', '"{\\,}"', 'Müller 😀 \u0001'],
  ],
  ['uuid', (list) => [uuid, uuid.toUpperCase()].map((text) => list.uuid(text)), [uuid, uuid]],
  [
    'timestamptz',
    (list) => {
      for (const ms of [0, Date.UTC(2026, 1, 3, 4, 5, 6, 7), -Infinity, Infinity]) {
        list.timestamptz(timestamp(ms))
      }
      list.timestamptz(timestamp(new Date('0001-01-01T00:00:00Z').getTime()))
      list.timestamptz(timestamp(new Date('9999-12-31T23:59:59.999Z').getTime()))
      list.null()
    },
    [
      '1970-01-01 00:00:00',
      '2026-02-03 04:05:06.007',
      '-infinity',
      'infinity',
      '0001-01-01 00:00:00',
      '9999-12-31 23:59:59.999',
      null,
    ],
  ],
]

for (const [type, fill, expected] of cases) {
  t.test(`items of type ${type}`, async (t) => {
    const list = new WireList(type)
    fill(list)
    t.same(await readBack(list), expected)
    t.equal(list.length, expected.length)
  })
}

t.test('an empty list', async (t) => {
  t.same(await readBack(new WireList('text')), [])
})

t.test('a list grows as items are added, and can be read in between', async (t) => {
  const list = new WireList('text')
  const texts = Array.from({ length: 3000 }, (_, i) => `${i} ${'ü'.repeat(i % 100)}`)
  const [first = '', ...others] = texts
  list.text(first)
  t.same(await readBack(list), [first])
  for (const text of others) list.text(text)
  t.same(await readBack(list), texts)
})
