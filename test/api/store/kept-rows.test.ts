/** Imports the reindex of one resource, which compares index rows. */
import t from 'tap'
import { reindexResource } from '../../../shared/jobs/upkeep/maintenance.ts'
import { until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { waitingFor } from '../../fixtures/store/held-rows.ts'
import { openTestStore } from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const member = await aMember({ isProjectAdmin: true })
const WAIT_MS = 60_000

const anObservation = (more: object = {}): Resource => ({
  resourceType: 'Observation',
  status: 'final',
  code: { coding: [{ system: 'http://loinc.org', code: '1234-5' }] },
  effectiveDateTime: '2026-01-02',
  valueQuantity: { value: 5, unit: 'mg' },
  ...more,
})

interface IndexRow {
  readonly ver: number
  readonly keys: string
  readonly nref: number
  readonly d_lo: Date | null
  readonly d_hi: Date | null
}

async function readRow(id: string): Promise<IndexRow> {
  const [row] = await database.query<IndexRow>({
    text: 'select ver, keys::text, nref, d_lo, d_hi from resource where id = $1',
    values: [id],
  })
  if (row === undefined) throw new Error('There is no row')
  return row
}

/** Sorted, because elements may come in any order. */
function keysIn({ keys }: IndexRow): readonly string[] {
  return keys.slice(1, -1).split(',').sort()
}

/** Deletes the index rows of a resource; a new derivation restores them. */
async function strip(id: string): Promise<void> {
  await database.query({ text: 'update resource set keys = keys[1:1] where id = $1', values: [id] })
}

t.test('keeps index rows on a change of unindexed elements', async (t) => {
  const { id } = await repository.create(member, anObservation())
  const made = await readRow(id)
  await repository.update(member, anObservation({ id, language: 'en' }))
  t.same(await readRow(id), { ...made, ver: 2 })
  await repository.update(member, anObservation({ id, status: 'amended' }))
  const changed = await readRow(id)
  t.not(changed.keys, made.keys)
  t.same({ ...changed, keys: made.keys }, { ...made, ver: 3 })
  await repository.update(member, anObservation({ id, effectiveDateTime: undefined }))
  t.match(await readRow(id), { ver: 4, d_lo: null, d_hi: null })
})

t.test('shares a statement between all kinds of changes', async (t) => {
  const made = await Promise.all(
    Array.from({ length: 12 }, () => repository.create(member, anObservation())),
  )
  const before = await Promise.all(made.map(({ id }) => readRow(id)))
  await Promise.all(
    made.map(({ id }, i) =>
      repository.update(
        member,
        anObservation({ id, ...(i % 2 === 0 ? { language: 'en' } : { status: 'amended' }) }),
      ),
    ),
  )
  const after = await Promise.all(made.map(({ id }) => readRow(id)))
  after.forEach((row, i) => {
    const { keys = '', ...rest } = before[i] ?? {}
    t.match(row, { ...rest, ver: 2 })
    t.equal(row.keys === keys, i % 2 === 0)
  })
})

t.test('indexes the author, tags and accounts', async (t) => {
  const { id } = await repository.create(member, anObservation())
  const made = await readRow(id)
  const other = { ...member, profile: 'Practitioner/1', profileDisplay: 'Somebody else' }
  await repository.update(other, anObservation({ id, language: 'en' }))
  const authored = await readRow(id)
  t.not(authored.keys, made.keys)
  t.same({ ...authored, keys: made.keys }, { ...made, ver: 2 })
  const keys = [made.keys, authored.keys]
  for (const meta of [
    { tag: [{ code: 'x' }] },
    { tag: [{ code: 'x' }], accounts: [{ reference: 'Organization/1' }] },
  ]) {
    await repository.update(member, anObservation({ id, meta }))
    const row = await readRow(id)
    t.notOk(keys.includes(row.keys))
    keys.push(row.keys)
  }
})

t.test('reindexes a resource that changes during the reindex', async (t) => {
  const { id } = await repository.create(member, anObservation())
  const made = await readRow(id)
  await strip(id)
  const reindexing = await database.transaction(async (connection) => {
    const values = [id]
    const [own] = await connection.query<{ pid: number }>({
      text: `with r as (update resource set ver = 2 where id = $1)
        insert into version (project, type, id, ver, lu, content, meta_at, meta_ext)
        select project, type, id, 2, lu, content, meta_at, meta_ext from version where id = $1
        returning pg_backend_pid() as pid`,
      values,
    })
    const work = repository.withStore((store) => reindexResource(store, member, 'Observation', id))
    await until(async () => (await waitingFor(database, own?.pid)).length > 0, WAIT_MS)
    return { work }
  })
  await reindexing.work
  const row = await readRow(id)
  t.equal(row.ver, 2)
  t.same(keysIn(row), keysIn(made))
})
