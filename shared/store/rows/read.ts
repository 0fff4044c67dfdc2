/** The newest row of a resource, by its primary key. */
import { may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { badStructure, forbidden } from '../../errors.ts'
import { isResourceType, typeNumber } from '../../fhir/definitions.ts'
import { isLegalId, type Store, scopeOf } from './context.ts'
import type { RowKey } from './fetch.ts'
import type { VersionRow } from './rows.ts'

/** The newest version in sight, a deletion included; undefined for unknown or invisible ids. */
export async function readRow(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
): Promise<VersionRow | undefined> {
  if (!isLegalId(id)) return undefined
  const row = await store.fetch(rowKey(store, principal, type, id))
  if (row !== undefined) store.recent?.keep(row)
  return row
}

/** Where the newest version of a resource is looked for. */
export function rowKey(store: Store, principal: Principal, type: string, id: string): RowKey {
  const { project, metaPrefix, everywhere } = scopeOf(principal, type)
  const row = store.keys.rowId(type, id)
  return { project, type: typeNumber(type), id: row, metaPrefix, everywhere }
}

/** The condition on `v.project`; `$1` is the Principal's own. */
export const projectTest = (everywhere: boolean) =>
  everywhere ? 'v.project = any(array(select project from tenant))' : 'v.project = $1'

/** Throws 403, or 400 for an unknown type. */
export function allow(
  principal: Principal,
  type: string,
  interaction: Parameters<typeof may>[2],
): void {
  if (!isResourceType(type)) throw badStructure('Unknown resource type')
  if (!may(principal, type, interaction)) throw forbidden(`no right to ${interaction} ${type}`)
}
