/** Imports the repository, to write as a second process. */
import t from 'tap'
import { writeFeatures } from '../../../shared/api/write-features.ts'
import { openRepository } from '../../../shared/store/open-repository.ts'
import { aSubscription } from '../../fixtures/http/receiver.ts'
import { countStatements, openTestStore } from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)

const ENDPOINT = 'https://receiver.example.com/'

const readOutbox = (project: number) =>
  database.query<{ id: string }>({
    text: 'select id::text, ver, op from outbox where project = $1 order by seq',
    values: [project],
  })

t.test('writes outbox rows only for changes with a subscriber', async (t) => {
  const member = await aMember()
  const { number } = member.project
  await repository.create(member, { resourceType: 'Patient' })
  const { id: subscription } = await repository.create(
    member,
    aSubscription('Patient?active=true', ENDPOINT),
  )
  const { id } = await repository.create(member, { resourceType: 'Patient' })
  await repository.update(member, { resourceType: 'Patient', id, active: true })
  await repository.delete(member, 'Patient', id)
  await repository.create(member, { resourceType: 'Practitioner' })
  t.same(await readOutbox(number), [
    { id, ver: 1, op: 'c' },
    { id, ver: 2, op: 'u' },
    { id, ver: 3, op: 'd' },
  ])

  await repository.update(member, {
    ...aSubscription('Patient', ENDPOINT, { status: 'off' }),
    id: subscription,
  })
  await repository.create(member, { resourceType: 'Patient' })
  t.equal((await readOutbox(number)).length, 3, 'a Subscription that is off waits for nothing')
})

t.test('creates events only in the Project of the Subscription', async (t) => {
  const [member, other] = [await aMember(), await aMember()]
  await repository.create(member, aSubscription('Patient', ENDPOINT))
  await repository.create(other, { resourceType: 'Patient' })
  t.same(await readOutbox(other.project.number), [])
})

t.test('creates events on commit and none on rollback', async (t) => {
  const member = await aMember()
  await repository.create(member, aSubscription('Patient', ENDPOINT))
  const failing = repository.transaction(async (inner) => {
    await inner.create(member, { resourceType: 'Patient' })
    throw new Error('undone')
  })
  await t.rejects(failing, /undone/)
  t.same(await readOutbox(member.project.number), [])

  await repository.transaction(async (inner) => {
    for (const active of [true, false]) {
      await inner.create(member, { resourceType: 'Patient', active })
    }
  })
  t.equal((await readOutbox(member.project.number)).length, 2)
})

t.test('creates no event for a deleted Subscription', async (t) => {
  const member = await aMember()
  const { id } = await repository.create(member, aSubscription('Patient', ENDPOINT))
  await repository.delete(member, 'Subscription', id)
  await repository.create(member, { resourceType: 'Patient' })
  t.same(await readOutbox(member.project.number), [])
})

t.test('creates an event per batched create without extra statements', async (t) => {
  const member = await aMember()
  await repository.create(member, aSubscription('Patient', ENDPOINT))
  await Promise.all(
    Array.from({ length: 30 }, (_, i) =>
      repository.create(member, { resourceType: i % 2 ? 'Patient' : 'Basic', code: { text: 'x' } }),
    ),
  )
  t.equal((await readOutbox(member.project.number)).length, 15)
  const one = () => repository.create(member, { resourceType: 'Patient' })
  t.equal(await countStatements(database, one), 1)
})

t.test('matches Subscriptions within the statement of the write', async (t) => {
  const member = await aMember()
  const write = () => repository.create(member, { resourceType: 'Patient' })
  t.equal(await countStatements(database, write), 1)
})

t.test(
  'creates events in each process for changes after the Subscription is acknowledged',
  async (t) => {
    const other = await openRepository(database, writeFeatures())
    for (let round = 0; round < 4; round++) {
      const member = await aMember()
      const write = () => other.create(member, { resourceType: 'Patient' })
      let isAcknowledged = false
      const writing = (async () => {
        while (!isAcknowledged) await write()
      })()
      await write()
      await repository.create(member, aSubscription('Patient', ENDPOINT))
      const late = write()
      isAcknowledged = true
      const { id } = await late
      await writing
      const told = await readOutbox(member.project.number)
      t.ok(
        told.some((row) => row.id === id),
        'the first write after it',
      )
    }
  },
)

t.test('creates events for changes after a transaction with a Subscription', async (t) => {
  const other = await openRepository(database, writeFeatures())
  const member = await aMember()
  await other.create(member, { resourceType: 'Patient' })
  await repository.transaction((inner) => inner.create(member, aSubscription('Patient', ENDPOINT)))
  const { id } = await other.create(member, { resourceType: 'Patient' })
  t.match(await readOutbox(member.project.number), [{ id }])
})
