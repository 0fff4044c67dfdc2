/** The newest row of a resource, by its primary key. */
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { badStructure, forbidden } from '../errors.ts'
import { isResourceType, typeNumber } from '../fhir/definitions.ts'
import { isLegalId, type Store, scopeOf } from './context.ts'
import { type VersionRow, versionColumns } from './rows.ts'

const V = versionColumns('v')

/** The newest version in sight, a deletion included; undefined for unknown or invisible ids. */
export async function readRow(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
): Promise<VersionRow | undefined> {
  if (!isLegalId(id)) return undefined
  const { project, metaPrefix, everywhere } = scopeOf(principal, type)
  const key = { project, type: typeNumber(type), id: store.keys.rowId(type, id), metaPrefix }
  if (!everywhere) return store.fetch(key)
  const [row] = await store.connection.query<VersionRow>({
    name: 'read-everywhere',
    text: READ_EVERYWHERE,
    values: [key.project, key.type, key.id],
  })
  return row
}

// PostgreSQL runs the second half only when the first has no row: other projects cost a probe each.
const READ_EVERYWHERE = `
  (select ${V} from version v
    where v.project = $1 and v.type = $2 and v.id = $3 order by v.ver desc limit 1)
  union all
  (select ${V} from tenant t cross join lateral (
      select * from version where project = t.project and type = $2 and id = $3
      order by ver desc limit 1
    ) v where t.project <> $1 limit 1)
  limit 1`

/** Of `v.project`; `$1` is the Principal's own. */
export const projectTest = (everywhere: boolean) =>
  everywhere ? 'v.project = any(array(select project from tenant))' : 'v.project = $1'

/** Throws 403, or 400 for an unknown type. */
export function allow(
  principal: Principal,
  type: string,
  interaction: Parameters<typeof may>[2],
): void {
  if (!isResourceType(type)) throw badStructure('Unknown resource type')
  if (!may(principal, type, interaction)) throw forbidden()
}
