/**
 * Deletions between `_since` and the time of an export, as bundles of DELETE requests. What was deleted is
 * judged by its last content. https://hl7.org/fhir/uv/bulkdata/STU2/export.html#deleted-array
 */
import type { Principal } from '../../../access/principal.ts'
import { typeNumber } from '../../../fhir/definitions.ts'
import { idOf } from '../../../store/rows/content.ts'
import { type Store, scopeOf } from '../../../store/rows/context.ts'
import { type VersionRow, versionColumns } from '../../../store/rows/rows.ts'
import { binder } from '../../../store/rows/side-rows.ts'
import { rulingsOfContents } from '../../../store/rulings/rulings.ts'
import type { PlannedJob } from './jobs.ts'
import { IN_COMPARTMENT, listedSql, ownSql, rangeSql, reachOf, stateTime } from './select.ts'

/** Entries of a line. */
const DELETIONS_A_LINE = 100

interface Deletions {
  readonly ids: readonly string[]
  /** Row id of the last one that was looked at. */
  readonly last: string | undefined
  readonly hasMore: boolean
}

/** The next of one type behind a row id. One statement, and one more where only PostgreSQL can judge. */
export async function deletionsOf(
  store: Store,
  principal: Principal,
  { id: job, at, input }: PlannedJob,
  type: string,
  after: string | undefined,
): Promise<Deletions> {
  const { project, metaPrefix } = scopeOf(principal, type)
  const reach = reachOf(input)
  const { values, bind } = binder()
  const time = bind(stateTime(at, input.until), 'timestamptz')
  const tests = [
    `n.project = ${bind(project, 'int')}`,
    `n.type = ${bind(typeNumber(type), 'smallint')}`,
    `n.lu > ${bind(input.since, 'timestamptz')} and n.lu <= ${time}`,
    'n.content is null and v.content is not null',
    `not exists (select 1 from version o where o.project = n.project and o.type = n.type
      and o.id = n.id and o.ver = n.ver + 1 and o.lu <= ${time})`,
    ...rangeSql('n.id', { low: after, high: undefined }, bind),
    ...(reach === 'patients' ? [IN_COMPARTMENT] : []),
    ...(reach === 'listed' ? [listedSql(job, type, bind)] : []),
    ...ownSql(metaPrefix, bind),
  ]
  const rows = await store.connection.query<VersionRow>({
    // As in select.ts: what was is looked at for what was deleted alone.
    text: `select ${versionColumns('v')} from version n cross join lateral (select v.* from version v
        where v.project = n.project and v.type = n.type and v.id = n.id and v.ver = n.ver - 1
        offset 0) v
      where ${tests.join(' and ')} order by n.id limit ${bind(DELETIONS_A_LINE, 'int')}`,
    values,
  })
  const rulings = await rulingsOfContents(store, principal, ['search'], rows)
  const seen = rows.filter((_, i) => rulings[i]?.search !== undefined)
  return {
    ids: seen.map(({ content }) => idOf(content ?? '')),
    last: rows.at(-1)?.id,
    hasMore: rows.length === DELETIONS_A_LINE,
  }
}

export function deletionBundle(type: string, ids: readonly string[]): string {
  return JSON.stringify({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: ids.map((id) => ({ request: { method: 'DELETE', url: `${type}/${id}` } })),
  })
}
