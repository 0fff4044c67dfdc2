/**
 * Each committed change of a type that a cache may depend on is reported. Imports the repository, to see the reports
 * that other processes receive.
 */
import t from 'tap'
import { writeFeatures } from '../../../shared/api/write-features.ts'
import { type CacheChange, REPORTED_TYPES } from '../../../shared/core/cache.ts'
import { openRepository } from '../../../shared/store/open-repository.ts'
import { openTestStore, system } from '../../fixtures/store/store.ts'

const { database } = await openTestStore(t)
const reported: CacheChange[] = []
const report = async (change: CacheChange) => void reported.push(change)
const repository = await openRepository(database, writeFeatures({ report }))

for (const resourceType of REPORTED_TYPES) {
  t.test(`reports changes of ${resourceType}, and only when they are committed`, async (t) => {
    reported.length = 0
    const { id } = await repository.create(system, { resourceType })
    const isNewKnown = resourceType !== 'Login'
    t.equal(reported.length, isNewKnown ? 1 : 0, 'a new Login cannot be cached')
    await repository.update(system, { resourceType, id, language: 'de' })
    await repository.delete(system, resourceType, id)
    t.match(reported.slice(-2), [
      { type: resourceType, id },
      { type: resourceType, id },
    ])
  })
}

t.test('reports no change of other types', async (t) => {
  reported.length = 0
  await repository.create(system, { resourceType: 'Patient' })
  t.same(reported, [])
})
