/** References that must resolve for the caller: `Project.checkReferencesOnWrite`. */

import {
  compileGrant,
  createTypeScope,
  fewRowsSql,
  type TypeScope,
} from '../../access/decisions/grant-predicates.ts'
import type { Grant } from '../../access/grant.ts'
import { grantsFor, may, REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { memoFor } from '../../core/cache.ts'
import { issue, MissingTarget, outcome } from '../../core/errors.ts'
import { isResourceType, typeNumber } from '../../fhir/definitions.ts'
import { parseReference, type Resource, visitReferences } from '../../fhir/resource.ts'
import { binder, type Connection } from '../../postgres/statement.ts'
import { projectKey, rowScope, type StoreContext } from '../rows/context.ts'
import { missingTargets, type Target } from '../rows/side-rows.ts'
import type { CheckedReference } from '../rows/write-rows.ts'

interface Referring {
  readonly store: StoreContext
  readonly principal: Principal
  readonly project: number
  readonly resource: Resource
  readonly selfId: string
}

/** Errors: 400 for an unknown type. */
export function referencesToCheck({
  store,
  principal,
  project,
  resource,
  selfId,
}: Referring): readonly CheckedReference[] {
  const found: CheckedReference[] = []
  const { meta: _meta, ...rest } = resource
  visitReferences(rest, resource.resourceType, (text, path) => {
    const reference = parseReference(text)
    if (reference === undefined) return
    const { type, id } = reference
    if (!isResourceType(type)) throw invalidReferences([path])
    if (type === resource.resourceType && id === selfId) return
    if (!may(principal, type, 'read')) throw invalidReferences([path])
    const isRegistry = REGISTRY_TYPES.has(type)
    const home = isRegistry ? rowScope(principal, type).project : project
    found.push({
      path,
      project: home,
      type: typeNumber(type),
      id: store.keys.rowId(type, id),
      key:
        isRegistry && !principal.isSuperAdmin
          ? projectKey(store.keys, type, principal.project.id)
          : undefined,
      visible: readableRows(createTypeScope(store.keys, principal, type, home), principal),
    })
  })
  return found
}

/** Undefined if all are visible. */
function readableRows(place: TypeScope, principal: Principal): Target['visible'] {
  const grants = grantsFor(principal, place.type, 'read')
  if (grants === undefined || grants.some(({ criteria }) => criteria.length === 0)) return undefined
  const name = `${place.project} ${place.type}`
  return readable(
    grants,
    name,
    () => (bind) =>
      `(${grants.map((grant) => fewRowsSql(compileGrant(place, grant).tests, bind)).join(' or ')})`,
  )
}

const readable = memoFor<readonly Grant[], NonNullable<Target['visible']>>()

export function invalidReferences(paths: readonly string[]) {
  const issues = paths.map((path) =>
    issue('error', 'structure', 'Invalid reference (Not found)', { expression: path }),
  )
  return new MissingTarget(400, outcome(undefined, ...issues))
}

/** Errors: 400 naming the paths. */
export async function checkReferences(
  connection: Connection,
  references: readonly CheckedReference[],
): Promise<void> {
  const missing = await missingReferences(connection, references)
  if (missing.length > 0) throw invalidReferences(missing.map(({ path }) => path))
}

/** One statement for all, none for an empty list. */
export async function missingReferences<T extends CheckedReference>(
  connection: Connection,
  references: readonly T[],
): Promise<readonly T[]> {
  if (references.length === 0) return []
  const { values, bind } = binder()
  const bad = missingTargets(
    references.map((item) => ({ n: 1, item })),
    bind,
  )
  const rows = await connection.query<{ target: number }>({
    ...(references.some(({ visible: sight }) => sight) ? {} : { name: 'check-references' }),
    text: `with ${bad} select target from bad order by target`,
    values,
  })
  return rows.flatMap((row) => references[row.target] ?? [])
}
