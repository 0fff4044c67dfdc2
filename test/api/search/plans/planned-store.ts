/** A store in a separate database, so that statistics and plans depend only on the rows of the test. */
import type { Test } from 'tap'
import { visibleRows } from '../../../../shared/access/decisions/grant-predicates.ts'
import { typeNumber } from '../../../../shared/fhir/definitions.ts'
import { parseSearch } from '../../../../shared/search/language/search.ts'
import { compilePredicate } from '../../../../shared/search/predicates/compile.ts'
import { resolveOrder } from '../../../../shared/search/predicates/order.ts'
import type { Query } from '../../../../shared/search/predicates/query.ts'
import { Keys } from '../../../../shared/store/index/keys.ts'
import { openStatistics } from '../../../../shared/store/index/statistics.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'
import { openTestStore } from '../../../fixtures/store/store.ts'

export async function openPlannedStore(t: Test) {
  process.env.DATABASE_URL = await createDatabase(t)
  const { database, repository, aMember } = await openTestStore(t)
  const member = await aMember()
  const project = member.project.number
  const [salt] = await database.query<{ salt: Buffer }>({
    text: 'select salt from search_key_salt',
    values: [],
  })
  const keys = new Keys(salt?.salt ?? Buffer.alloc(0))

  /** Plans the first page for the member; `units` are those in the data. */
  function planFirstPage(search: string, units: readonly string[] = []): Query {
    const [type = '', parameters = ''] = search.split('?')
    const request = parseSearch(type, parameters)
    const scope = visibleRows({ keys }, member, type, { interaction: 'search', project, units })
    if (scope === undefined) throw new Error(`${type} is not in sight`)
    return {
      project,
      typeNumbers: [typeNumber(type)],
      predicates: request.conditions.map((condition) => compilePredicate(scope, condition)),
      order: resolveOrder(request, keys),
      after: undefined,
      limit: request.count + 1,
      offset: request.offset,
    }
  }

  const statistics = openStatistics(database)
  return { database, repository, member, project, keys, statistics, queryOf: planFirstPage }
}
