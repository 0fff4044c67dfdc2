/**
 * Searches with cached contents query row keys only, and still return the stored state. Imports the repository, to
 * count its statements as a second process.
 */
import t from 'tap'
import { writeFeatures } from '../../../shared/api/write-features.ts'
import { parseSearch } from '../../../shared/search/language/search.ts'
import { openRepository } from '../../../shared/store/open-repository.ts'
import { countStatements, openTestStore } from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()
const ROWS = 30
/** Enough searches for the process to trust the cache hit rate. */
const SEARCHES = 120
const PAGE = parseSearch('Patient', `_count=${ROWS}`)

interface Shown {
  readonly contents: readonly string[]
  readonly statements: number
}

async function show(): Promise<Shown> {
  let contents: readonly string[] = []
  const statements = await countStatements(database, async () => {
    const { versions } = await repository.search(member, PAGE)
    contents = versions.map(({ content }) => content ?? '')
  })
  return { contents, statements }
}

const ids: string[] = []
for (let i = 0; i < ROWS; i++) {
  const { id } = await repository.create(member, { resourceType: 'Patient', gender: 'other' })
  ids.push(id)
}
const { contents: first } = await show()
const [one = '', another = ''] = ids

t.test('returns cached contents equal to stored contents', async (t) => {
  for (let i = 0; i < SEARCHES; i++) await show()
  t.same(await show(), { contents: first, statements: 1 })
})

t.test('reads a version that another process wrote', async (t) => {
  const other = await openRepository(database, writeFeatures())
  await other.update(member, { resourceType: 'Patient', id: one, gender: 'female' })
  const { contents, statements } = await show()
  // Proves that the earlier pages came without contents.
  t.equal(statements, 2)
  t.equal(contents.length, ROWS)
  t.match(contents[0], /"gender":"female"/)
  t.equal((await show()).statements, 1)
})

t.test('distinguishes versions of one number by their time', async (t) => {
  const values = [member.project.number, another]
  for (const text of [
    `update resource set lu = lu + interval '1 h' where project = $1 and id = $2`,
    `update version set lu = lu + interval '1 h', content = replace(content, 'other', 'male')
      where project = $1 and id = $2`,
  ]) {
    await database.query({ text, values })
  }
  const { contents } = await show()
  t.match(contents[0], /"gender":"male"/)
})

t.test('omits a row if its version was deleted in the meantime', async (t) => {
  const values = [member.project.number]
  await database.query({
    text: `update resource set lu = lu + interval '2 h' where project = $1`,
    values,
  })
  await database.query({ text: 'delete from version where project = $1', values })
  t.same((await show()).contents, [])
})
