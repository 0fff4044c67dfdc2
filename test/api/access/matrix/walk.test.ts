/**
 * Pages under a policy with a chain: one walk if the statistics predict enough rows, complete in any case. Imports
 * the parsers of criteria and searches, to count statements on a repository.
 */
import t from 'tap'
import { parseCriteria } from '../../../../shared/access/criteria.ts'
import { plainGrant } from '../../../../shared/access/grant.ts'
import { parseSearch } from '../../../../shared/search/language/search.ts'
import { until } from '../../../fixtures/botica.ts'
import { anObservation, aPatient } from '../../../fixtures/resources.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'
import { countStatements, openTestStore } from '../../../fixtures/store/store.ts'

const OBSERVATIONS = 620
const WALKED = 500
const READY_MS = 60_000

process.env.DATABASE_URL = await createDatabase(t)
const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()
function limitedTo(text: string) {
  const criteria = parseCriteria('Observation', text, { projectId: undefined, values: new Map() })
  const grant = { ...plainGrant('Observation', ['search'], 'test'), criteria }
  return { ...member, rules: { grants: [grant] } }
}
const limited = limitedTo('Observation?subject:Patient.gender=female')

const patients = await Promise.all(
  Array.from({ length: 20 }, (_, i) =>
    repository.create(member, aPatient({ gender: i % 2 ? 'male' : 'female' })),
  ),
)
const women = patients.filter((_, i) => i % 2 === 0)
const men = patients.filter((_, i) => i % 2 === 1)

/** Creates observations about each of these in turn, referring to it and the next but one, oldest first. */
async function observe(about: readonly { readonly id: string }[], count: number): Promise<void> {
  for (let from = 0; from < count; from += 20) {
    await Promise.all(
      Array.from({ length: 20 }, (_, i) => {
        const at = (place: number) => `Patient/${about[(from + place) % about.length]?.id}`
        const performer = [{ reference: at(i) }, { reference: at(i + 2) }]
        return repository.create(member, anObservation(at(i), { performer }))
      }),
    )
  }
}

async function newest(): Promise<readonly string[]> {
  const { versions } = await repository.search(limited, parseSearch('Observation', '_count=20'))
  return versions.map(({ content = '' }) => JSON.parse(content).subject.reference.slice(8))
}

const ofWomen = (found: readonly string[]) =>
  found.length === 20 && found.every((id) => women.some((woman) => woman.id === id))

t.test('finds evenly spread rows with one statement', async (t) => {
  await observe(patients, OBSERVATIONS)
  await database.query({ text: 'vacuum analyze resource', values: [] })
  t.ok(ofWomen(await newest()))
  // The first search also reads the statistics.
  await until(async () => (await countStatements(database, newest)) === 1, READY_MS)
})

t.test('lists a row once when several of its targets allow it', async (t) => {
  const byWomen = limitedTo('Observation?performer:Patient.gender=female')
  const found: string[] = []
  const page = async (order: string) => {
    const request = parseSearch('Observation', `_count=20&_sort=${order}`)
    const { versions } = await repository.search(byWomen, request)
    found.splice(0, Infinity, ...versions.map(({ id }) => id))
  }
  for (const order of ['-_lastUpdated', '_lastUpdated', '_id', '-date']) {
    t.equal(await countStatements(database, () => page(order)), 1, order)
    t.equal(new Set(found).size, 20, order)
    const all = await repository.search(
      member,
      parseSearch('Observation', `_count=1000&_sort=${order}`),
    )
    const expected = all.versions.filter(({ content = '' }) =>
      women.some(({ id }) => JSON.parse(content).subject.reference.endsWith(id)),
    )
    t.same(
      found,
      expected.slice(0, 20).map(({ id }) => id),
      order,
    )
  }
})

t.test('returns a complete page when the newest rows are all hidden', async (t) => {
  await observe(men, WALKED)
  await until(async () => (await countStatements(database, newest)) === 1, READY_MS)
  t.ok(ofWomen(await newest()))
})
