/** Imports the rolled back database, since no request can make a single statement fail. */
import t from 'tap'
import { rolledBack, rolledBackRepository } from '../../../shared/store/rolled-back.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { failureStatus, openTestStore } from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()
const text = (text: string) => ({ text, values: [] })
const bad = text('select 1 / 0')

t.test('undoes statements and transactions, which see each other', async (t) => {
  const id = await rolledBack(
    database,
    () => {},
    async (inside) => {
      const undone = rolledBackRepository(repository, inside, new Set(['ValueSet']))
      const { id } = await undone.create(member, aPatient())
      await undone.transaction((transaction) =>
        transaction.patch(member, { type: 'Patient', id }, (found) => ({
          ...found,
          gender: 'other',
        })),
      )
      t.match(await undone.read(member, 'Patient', id), { ver: 2 })
      t.equal(await failureStatus(repository.read(member, 'Patient', id)), 404)
      return id
    },
  )
  t.equal(await failureStatus(repository.read(member, 'Patient', id)), 404)
})

t.test('continues after a failed statement, and undoes a failed transaction alone', async (t) => {
  await rolledBack(
    database,
    () => {},
    async (inside) => {
      await inside.query(text('create temp table kept (n int) on commit drop'))
      await t.rejects(inside.query(bad), /22012/)
      await inside.query(text('insert into kept values (1)'))
      const failing = inside.transaction(async (connection) => {
        await connection.query(text('insert into kept values (2)'))
        await inside.query(text('insert into kept values (3)'))
        await connection.query(bad)
      })
      await t.rejects(failing, /22012/)
      await Promise.all([4, 5].map((n) => inside.query(text(`insert into kept values (${n})`))))
      t.same(await inside.query(text('select n from kept order by n')), [
        { n: 1 },
        { n: 4 },
        { n: 5 },
      ])
    },
  )
  t.equal((await database.query(text('select 1 as n'))).length, 1)
})

t.test('rejects types that processes cache', async (t) => {
  await rolledBack(
    database,
    () => {},
    async (inside) => {
      const undone = rolledBackRepository(repository, inside, new Set(['ValueSet']))
      const made = undone.create(member, { resourceType: 'ValueSet', status: 'draft' })
      t.equal(await failureStatus(made), 422)
    },
  )
})
