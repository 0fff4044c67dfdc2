/** Resources as they were at a time: those that a member may see, and what it may see of them. */
import type { Principal } from '../../../access/principal.ts'
import { typeNumber } from '../../../fhir/definitions.ts'
import { without } from '../../../store/read/redact.ts'
import { isLegalId, type Store, scopeOf } from '../../../store/rows/context.ts'
import { toVersion, type VersionRow, versionColumns } from '../../../store/rows/rows.ts'
import { hiddenBy, rulingsOfContents } from '../../../store/rulings/rulings.ts'
import { mayExport } from './scope.ts'

/** In no order; one statement for a hundred, and one more where only PostgreSQL can judge. */
export async function readAsOf(
  store: Store,
  principal: Principal,
  type: string,
  ids: readonly string[],
  at: Date,
): Promise<readonly VersionRow[]> {
  const wanted = ids.filter(isLegalId).map((id) => store.keys.rowId(type, id))
  return readRowsAsOf(store, principal, type, wanted, at)
}

/** The same by row ids. */
export async function readRowsAsOf(
  store: Store,
  principal: Principal,
  type: string,
  wanted: readonly string[],
  at: Date,
): Promise<readonly VersionRow[]> {
  if (!mayExport(principal, type)) return []
  const { project } = scopeOf(principal, type)
  const seen: VersionRow[] = []
  for (let from = 0; from < wanted.length; from += AT_ONCE) {
    const rows = await store.connection.query<VersionRow>({
      name: 'export-as-of',
      text: `select v.* from unnest($3::uuid[]) x(id) cross join lateral (
          select ${versionColumns('v')} from version v
          where v.project = $1 and v.type = $2 and v.id = x.id and v.lu <= $4
          order by v.ver desc limit 1) v
        where v.content is not null`,
      values: [project, typeNumber(type), wanted.slice(from, from + AT_ONCE), at],
    })
    const rulings = await rulingsOfContents(store, principal, ['search', 'read'], rows)
    for (const [i, row] of rows.entries()) {
      const { search, read } = rulings[i] ?? {}
      if (search === undefined || read === undefined) continue
      const shown = without(toVersion(row), [...hiddenBy(search), ...hiddenBy(read)])
      seen.push({ ...row, content: shown.content ?? null })
    }
  }
  return seen
}

const AT_ONCE = 100
