/**
 * Bundles of DELETE requests; a resource's last content decides whether the member may see its deletion.
 * https://hl7.org/fhir/uv/bulkdata/STU2/export.html#deleted-array
 */

import { decideContents } from '../../access/decisions/decide.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { toSlice } from '../../outbound/storage/storage.ts'
import { rowScope } from '../../store/rows/context.ts'
import { contentId, type VersionRow, versionColumns } from '../../store/rows/rows.ts'
import { binder } from '../../store/rows/side-rows.ts'
import { type LineWriter, type TypedPart, uuidToBytes } from './jobs.ts'
import type { Reading } from './read.ts'
import { exportRowScope, IN_COMPARTMENT, listedSql, ownSql, rangeSql, stateTime } from './select.ts'

const DELETIONS_A_LINE = 100

export async function readDeleted(
  reading: Pick<Reading, 'store' | 'principal' | 'job'>,
  { type, after }: TypedPart,
  writer: LineWriter,
): Promise<void> {
  let page: Deletions = { ids: [], last: after, hasMore: true }
  while (page.hasMore) {
    page = await readDeletions(reading, type, page.last)
    if (page.ids.length === 0 || page.last === undefined) continue
    const entry = page.ids.map((id) => ({ request: { method: 'DELETE', url: `${type}/${id}` } }))
    const bundle = JSON.stringify({ resourceType: 'Bundle', type: 'transaction', entry })
    await writer.add(toSlice(uuidToBytes(page.last)), toSlice(Buffer.from(bundle)))
  }
}

interface Deletions {
  readonly ids: readonly string[]
  readonly last: string | undefined
  readonly hasMore: boolean
}

/** Returns the next deletions of one type after a row id. One statement, plus one if only PostgreSQL can decide. */
async function readDeletions(
  { store, principal, job: { id, at, input } }: Pick<Reading, 'store' | 'principal' | 'job'>,
  type: string,
  after: string | undefined,
): Promise<Deletions> {
  const { project, metaPrefix } = rowScope(principal, type)
  const reach = exportRowScope(input)
  const { values, bind } = binder()
  const time = bind(stateTime(at, input.until), 'timestamptz')
  const own = bind(project, 'int')
  const tests = [
    `n.project = ${own}`,
    `n.type = ${bind(typeNumber(type), 'smallint')}`,
    `n.lu > ${bind(input.since, 'timestamptz')} and n.lu <= ${time}`,
    'n.content is null and v.content is not null',
    `not exists (select 1 from version o where o.project = ${own} and o.type = n.type
      and o.id = n.id and o.ver = n.ver + 1 and o.lu <= ${time})`,
    ...rangeSql('n.id', { low: after, high: undefined }, bind),
    ...(reach === 'patients' ? [IN_COMPARTMENT] : []),
    ...(reach === 'listed' ? [listedSql(id, type, bind)] : []),
    ...ownSql(metaPrefix, bind),
  ]
  const rows = await store.connection.query<VersionRow>({
    // Reads earlier versions for deleted rows only, as in select.ts.
    text: `select ${versionColumns('v')} from version n cross join lateral (select v.* from version v
        where v.project = ${own} and v.type = n.type and v.id = n.id and v.ver = n.ver - 1
        offset 0) v
      where ${tests.join(' and ')} order by n.id limit ${bind(DELETIONS_A_LINE, 'int')}`,
    values,
  })
  const rulings = await decideContents(store, principal, ['search'], rows)
  const seen = rows.filter((_, i) => rulings[i]?.search !== undefined)
  return {
    ids: seen.map(({ content }) => contentId(content ?? '')),
    last: rows.at(-1)?.id,
    hasMore: rows.length === DELETIONS_A_LINE,
  }
}
