/** Versions as a Principal sees them: what its policy hides is not in them any more. */
import { withoutPaths } from '../access/field-paths.ts'
import { type Grant, grantsFor, type Interaction } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { typeName } from '../fhir/definitions.ts'
import { parseJson } from '../fhir/json.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Store } from './context.ts'
import { hiddenBy, rulingsOfRows } from './judge.ts'
import type { Version } from './repository.ts'
import { toVersion, type VersionRow } from './rows.ts'

/** The version without elements; the rest of its text stays in its order. */
export function without<V extends Version>(version: V, hidden: readonly string[]): V {
  if (hidden.length === 0 || version.content === undefined) return version
  // Our own text, checked when it was written.
  const { resourceType, id, meta, ...rest } = withoutPaths(
    parseJson(version.content) as Resource,
    hidden,
  )
  const head = JSON.stringify({ resourceType, id, meta })
  const content = JSON.stringify({ resourceType, id, meta, ...rest })
  // The closing brace of `meta`, which is followed by that of the resource.
  return { ...version, content, metaAt: head.length - 2 }
}

/** Of rows that the Principal may see. One statement a type where only PostgreSQL can tell what is hidden. */
export async function showAll(
  store: Store,
  principal: Principal,
  interactionOf: (type: string) => Interaction,
  rows: readonly VersionRow[],
): Promise<readonly Version[]> {
  if (principal.rules === undefined) return rows.map((row) => toVersion(row))
  const hidden = new Map<VersionRow, readonly string[]>()
  for (const group of Map.groupBy(rows, ({ project, type }) => `${project} ${type}`).values()) {
    const [first] = group
    if (first === undefined) continue
    const interaction = interactionOf(typeName(first.type))
    const found = await hiddenIn(store, principal, interaction, group)
    group.forEach((row, i) => {
      hidden.set(row, found[i] ?? [])
    })
  }
  return rows.map((row) => without(toVersion(row), hidden.get(row) ?? []))
}

/** Of live rows of one type in one project. */
async function hiddenIn(
  store: Store,
  principal: Principal,
  interaction: Interaction,
  rows: readonly VersionRow[],
): Promise<readonly (readonly string[])[]> {
  const grants = grantsFor(principal, typeName(rows[0]?.type ?? 0), interaction) ?? []
  const [first] = grants
  if (first === undefined) return []
  if (isAlike(grants)) return rows.map(() => first.hidden)
  const rulings = await rulingsOfRows(store, principal, interaction, rows)
  const all = grants.flatMap(({ hidden }) => hidden)
  // Without a ruling it was changed since it was read: whatever any of them hides.
  return rulings.map((ruling) => (ruling === undefined ? all : hiddenBy(ruling)))
}

/** They hide the same, so it does not matter which of them governs. */
function isAlike(grants: readonly Grant[]): boolean {
  const [first] = grants.map(({ hidden }) => hidden.join())
  return grants.every(({ hidden }) => hidden.join() === first)
}
