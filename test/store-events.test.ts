import t from 'tap'
import { openTestStore } from './fixtures/store.ts'

const { database, repository, aMember } = await openTestStore(t, {
  wantsEvent: (_project, type) => type === 'Patient',
})

t.test('only changes that somebody waits for leave a row in the outbox', async (t) => {
  const member = await aMember()
  const { id } = await repository.create(member, { resourceType: 'Patient' })
  await repository.update(member, { resourceType: 'Patient', id, active: true })
  await repository.delete(member, 'Patient', id)
  await repository.create(member, { resourceType: 'Practitioner' })
  const rows = await database.query({
    text: 'select id::text, ver, op from outbox where project = $1 order by seq',
    values: [member.project.number],
  })
  t.same(rows, [
    { id, ver: 1, op: 'c' },
    { id, ver: 2, op: 'u' },
    { id, ver: 3, op: 'd' },
  ])
})
