/** Imports the repository, to write as a second process. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { writeFeatures } from '../../../shared/api/write-features.ts'
import { expungeResource } from '../../../shared/jobs/upkeep/maintenance.ts'
import { openRepository } from '../../../shared/store/open-repository.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import {
  countStatements,
  failureStatus,
  openTestStore,
  system,
} from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
/** Opens a repository as another process does. */
const other = await openRepository(database, writeFeatures())
const member = await aMember({}, { updateAsCreate: true })

const aPatient = (more: object = {}): Resource => ({
  resourceType: 'Patient',
  name: [{ family: 'Simpson' }],
  ...more,
})

async function stored(id: string) {
  const { ver, content } = await repository.read(member, 'Patient', id)
  return { ver, resource: JSON.parse(content ?? '{}') as Resource }
}

t.test('updates a cached resource with one statement', async (t) => {
  const { id } = await repository.create(member, aPatient())
  const put = (active: boolean) => repository.update(member, aPatient({ id, active }))
  const patch = () =>
    repository.patch(member, { type: 'Patient', id }, (now) => ({ ...now, gender: 'female' }))
  t.equal(await countStatements(database, () => put(true)), 1)
  t.equal(await countStatements(database, patch), 1)
  t.match(await stored(id), { ver: 3, resource: { active: true, gender: 'female' } })

  const read = await other.create(member, aPatient())
  t.equal(await countStatements(database, () => repository.read(member, 'Patient', read.id)), 1)
  const next = aPatient({ id: read.id, active: true })
  t.equal(await countStatements(database, () => repository.update(member, next)), 1)

  const unknown = await other.create(member, aPatient())
  const late = aPatient({ id: unknown.id, active: true })
  t.equal(await countStatements(database, () => repository.update(member, late)), 2, 'read, write')
})

t.test('keeps changes of another process', async (t) => {
  const { id } = await repository.create(member, aPatient())
  await other.update(member, aPatient({ id, gender: 'female' }))
  await repository.patch(member, { type: 'Patient', id }, (now) => ({ ...now, active: true }))
  t.match(await stored(id), { ver: 3, resource: { gender: 'female', active: true } })

  await other.update(member, aPatient({ id, name: [{ family: 'Bouvier' }] }))
  const put = await repository.update(member, aPatient({ id, active: true, gender: 'female' }))
  t.match(put, { outcome: 'updated', ver: 5 }, 'what it knew is not what is stored')
  const rows = await database.query<{ v: string }>({
    text: 'select v from idx_string where id = $1',
    values: [id],
  })
  t.same(
    rows.map(({ v }) => v),
    ['simpson', 'simpson'],
    'the rows of the stored version',
  )
})

t.test('compares If-Match and If-None-Match with the stored version', async (t) => {
  const { id } = await repository.create(member, aPatient())
  await other.update(member, aPatient({ id, gender: 'female' }))
  const change = (ver: number) =>
    failureStatus(repository.update(member, aPatient({ id, active: true }), { ifMatch: [ver] }))
  t.equal(await change(1), 412)
  t.equal(await change(2), undefined)
  t.equal((await stored(id)).ver, 3)
  const again = repository.update(member, aPatient({ id }), { onlyIfAbsent: true })
  t.equal(await failureStatus(again), 412)
})

t.test('returns 410 for a resource deleted by another process', async (t) => {
  const { id } = await repository.create(member, aPatient())
  await other.delete(member, 'Patient', id)
  t.equal(await failureStatus(repository.patch(member, { type: 'Patient', id }, (now) => now)), 410)
  const back = await repository.update(member, aPatient({ id }))
  t.match(back, { outcome: 'updated', ver: 3 })
})

t.test('distinguishes equal versions and ids by time', async (t) => {
  const id = randomUUID()
  await repository.update(member, aPatient({ id, name: [{ family: 'Old' }] }))
  // Times are in milliseconds.
  await database.query({ text: 'select pg_sleep(0.002)', values: [] })
  await other.withStore((store) =>
    expungeResource(store, { ...member, isProjectAdmin: true }, 'Patient', id),
  )
  await other.update(member, aPatient({ id, gender: 'female' }))
  await repository.patch(member, { type: 'Patient', id }, (now) => ({ ...now, active: true }))
  const { ver, resource } = await stored(id)
  t.equal(ver, 2)
  t.match(resource, { gender: 'female', active: true, name: [{ family: 'Simpson' }] })
})

t.test('caches writes of a transaction on commit', async (t) => {
  const { id } = await repository.create(member, aPatient())
  const undone = repository.transaction(async (inner) => {
    await inner.update(member, aPatient({ id, gender: 'female' }))
    throw new Error('undone')
  })
  await t.rejects(undone, { message: 'undone' })
  await repository.patch(member, { type: 'Patient', id }, (now) => ({ ...now, active: true }))
  const { ver, resource } = await stored(id)
  t.equal(ver, 2)
  t.notOk('gender' in resource)

  await repository.transaction((inner) => inner.update(member, aPatient({ id, gender: 'female' })))
  await repository.patch(member, { type: 'Patient', id }, (now) => ({ ...now, active: false }))
  t.match(await stored(id), { ver: 4, resource: { gender: 'female', active: false } })
})

t.test('rejects changes to resources of another Project', async (t) => {
  const { id } = await repository.create(member, aPatient())
  const stranger = await aMember()
  t.equal(await failureStatus(repository.update(stranger, aPatient({ id, active: true }))), 404)
  t.equal((await stored(id)).ver, 1)
  await repository.update(system, aPatient({ id, active: true }))
  await repository.patch(member, { type: 'Patient', id }, (now) => ({ ...now, gender: 'female' }))
  t.match(await stored(id), { ver: 3, resource: { active: true, gender: 'female' } })
})
