/** References that must exist: `Project.checkReferencesOnWrite`. */
import { REGISTRY_TYPES } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import type { Connection } from '../database.ts'
import { invalid } from '../errors.ts'
import { isResourceType, typeNumber } from '../fhir/definitions.ts'
import { issue } from '../fhir/outcome.ts'
import { isObject, parseReference, type Resource } from '../fhir/resource.ts'
import { projectKey, type Store, scopeOf } from './context.ts'
import { type Bind, missingTargets, type Target } from './side-rows.ts'

export interface CheckedReference extends Target {
  readonly path: string
}

/** Every literal reference outside `meta`, as rows to look for. Throws 400 for an unknown type. */
export function referencesToCheck(
  store: Store,
  principal: Principal,
  project: number,
  resource: Resource,
  selfId: string,
): readonly CheckedReference[] {
  if (!principal.project.checkReferencesOnWrite) return []
  const found: CheckedReference[] = []
  const { meta: _meta, ...rest } = resource
  visit(rest, resource.resourceType, (text, path) => {
    const reference = parseReference(text)
    if (reference === undefined) return
    const { type, id } = reference
    if (!isResourceType(type)) throw invalidReferences([path])
    if (type === resource.resourceType && id === selfId) return
    const isRegistry = REGISTRY_TYPES.has(type)
    found.push({
      path,
      project: isRegistry ? scopeOf(principal, type).project : project,
      type: typeNumber(type),
      id: store.keys.rowId(type, id),
      key:
        isRegistry && !principal.isSuperAdmin
          ? projectKey(store.keys, type, principal.project.id)
          : undefined,
    })
  })
  return found
}

export function invalidReferences(paths: readonly string[]) {
  return invalid(
    paths.map((path) => issue('error', 'structure', 'Invalid reference (Not found)', path)),
  )
}

/** One statement for all; throws 400 naming the paths. */
export async function checkReferences(
  connection: Connection,
  references: readonly CheckedReference[],
): Promise<void> {
  if (references.length === 0) return
  const values: unknown[] = []
  const bind: Bind = (value, type) => {
    values.push(value)
    return `$${values.length}::${type}`
  }
  const bad = missingTargets(
    references.map((item) => ({ n: 1, item })),
    bind,
  )
  const rows = await connection.query<{ target: number }>({
    name: 'check-references',
    text: `with ${bad} select target from bad order by target`,
    values,
  })
  if (rows.length === 0) return
  throw invalidReferences(rows.map((row) => references[row.target]?.path ?? ''))
}

function visit(value: unknown, path: string, found: (text: string, path: string) => void): void {
  if (Array.isArray(value)) {
    value.forEach((item, i) => {
      visit(item, `${path}[${i}]`, found)
    })
    return
  }
  if (!isObject(value)) return
  if (typeof value.reference === 'string') found(value.reference, path)
  for (const [name, item] of Object.entries(value)) visit(item, `${path}.${name}`, found)
}
