import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { createBlocks } from '../../shared/export/block.ts'
import { GZIP_HEADER, gzipTrailer } from '../../shared/export/file.ts'
import { newestLines } from '../../shared/export/rows/read.ts'
import { sliceToBuffer, toSlice } from '../../shared/outbound/storage/storage.ts'
import { openBotica, until } from '../fixtures/botica.ts'
import { type Exported, exportAll } from '../fixtures/exports/exports.ts'
import { anObservation, anOrganization, aPatient } from '../fixtures/resources.ts'
import { holdRow } from '../fixtures/store/held-rows.ts'
import { createDatabase } from '../fixtures/store/own-database.ts'

const STORED_BYTES = 65_535
const DONE_MS = 60_000
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { database } = botica.services

t.test('exports the state at the export time of rows changed or deleted later', async (t) => {
  const [one, two] = [await admin.create(aPatient()), await admin.create(aPatient())]
  const of = (patient: { readonly id: string }) => anObservation(`Patient/${patient.id}`)
  const [moved, lost, gone, back] = await Promise.all([1, 2, 3, 4].map(() => admin.create(of(one))))
  const foreign = await admin.create(of(two))
  const member = [{ entity: { reference: `Patient/${one.id}` } }]
  const group = await admin.create({ resourceType: 'Group', type: 'person', actual: true, member })
  for (const id of [gone?.id, back?.id]) await admin.del(`Observation/${id}`)
  await admin.put(`Observation/${back?.id}`, { ...of(one), id: back?.id })
  const other = await admin.create(anOrganization())
  await until(async () => {
    const [row] = await database.query<{ isPast: boolean }>({
      text: `select clock_timestamp() > max(lu) + interval '5 ms' as "isPast" from version`,
      values: [],
    })
    return row?.isPast === true
  }, DONE_MS)

  const [row] = await database.query<{ id: string }>({
    text: 'select id from version where content like $1',
    values: [`%"id":"${other.id}"%`],
  })
  const held = await holdRow(database, row?.id)
  t.teardown(held.release)
  await admin.put(`Observation/${moved?.id}`, { ...of(two), id: moved?.id })
  await admin.del(`Observation/${lost?.id}`)
  await admin.put(`Patient/${one.id}`, { ...aPatient({ active: false }), id: one.id })
  const late = await admin.create(of(one))

  const found = ({ resources }: Exported) =>
    (resources.get('Observation') ?? []).map(({ id, subject }) => [id, Object(subject).reference])
  const sorted = (pairs: unknown[][]) =>
    pairs.sort(([a], [b]) => String(a).localeCompare(String(b)))
  const own = [moved, lost, back].map((kept) => [kept?.id, `Patient/${one.id}`])
  const all = [...own, [foreign.id, `Patient/${two.id}`]]
  for (const [path, expected] of [
    ['$export?_type=Patient,Observation', all],
    ['Patient/$export', all],
    [`Group/${group.id}/$export`, own],
  ] as const) {
    const exported = await exportAll(admin, path)
    t.same(sorted(found(exported)), sorted([...expected]), path)
    const patient = exported.resources.get('Patient')?.find(({ id }) => id === one.id)
    t.not(patient?.active, false, path)
  }
  await held.release()
  const exported = await exportAll(admin, `Group/${group.id}/$export`)
  t.same(
    found(exported)
      .map(([id]) => id)
      .sort(),
    [back?.id, late.id].sort(),
    'a later export has the later state',
  )
})

const BAD = 'bad'
for (const [versions, expected] of [
  [[], []],
  [
    ['a1', 'a2', 'b1'],
    ['a2', 'b1'],
  ],
  [['a1', 'a', 'b1'], ['b1']],
  [['a1', 'a', 'a3'], ['a3']],
  [['a', 'a2'], ['a2']],
  [['a1', 'a2', 'a'], []],
  [
    [`a${BAD}`, 'a2', 'b1'],
    ['a2', 'b1'],
  ],
  [
    ['a1', `a${BAD}`, 'b1'],
    [BAD, 'b1'],
  ],
  [['a1', `a${BAD}`], [BAD]],
  [[`a${BAD}`, 'a', 'b1'], ['b1']],
] as const) {
  t.test(`of ${versions.join(' ') || 'nothing'} exports ${expected.join(' ')}`, async (t) => {
    const lines: string[] = []
    const { take, end } = newestLines(
      (content) => {
        if (sliceToBuffer(content).toString().endsWith(BAD)) throw new SyntaxError('It is bad')
        return content
      },
      {
        add: (_, line) => void lines.push(sliceToBuffer(line).toString()),
        undo: () => void lines.pop(),
        bad: async (id) => void lines.push(id.toString('latin1', 15) === 'a' ? BAD : 'another'),
      },
    )
    for (const version of versions) {
      const id = toSlice(Buffer.from(version.slice(0, 1).padStart(16, '-')))
      const content = version.length === 1 ? null : toSlice(Buffer.from(version))
      await take([id, content, toSlice(Buffer.alloc(0))])
    }
    await end()
    t.same(lines, expected)
  })
}

for (const level of [0, 1]) {
  t.test(`removes every trace of a withdrawn line from a block of level ${level}`, async (t) => {
    const kept = Buffer.alloc(STORED_BYTES - 10, 'k')
    for (const length of [0, 8, 9, 10, STORED_BYTES, 3 * STORED_BYTES]) {
      const blocks = createBlocks(level)
      const block = blocks.take(toSlice(kept))
      block.add(toSlice(kept))
      block.add(toSlice(Buffer.alloc(length, 'x')))
      block.undo()
      t.match(block, { rows: 1, bytes: kept.length + 1 })
      block.add(toSlice(Buffer.from('{}')))
      const trailer = gzipTrailer(block.crc(0), block.bytes)
      const whole = gunzipSync(Buffer.concat([GZIP_HEADER, await block.pack(), trailer]))
      t.ok(whole.equals(Buffer.concat([kept, Buffer.from('\n{}\n')])), `${length}`)
    }
  })
}
