/** Versions as a Principal sees them: without what its policy hides and what the platform masks. */

import { decideRows, hiddenBy } from '../../access/decisions/decide.ts'
import { hidesAny } from '../../access/decisions/grant-predicates.ts'
import { removeJsonPaths } from '../../access/fields/fields.ts'
import type { Grant, Interaction } from '../../access/grant.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { typeName } from '../../fhir/definitions.ts'
import { parseJson } from '../../fhir/json.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { compartmentCodes } from '../../search/language/search-request.ts'
import { patientCompartments } from '../index/indexes.ts'
import type { StoreContext } from '../rows/context.ts'
import { maskedFor, toVersion, type VersionRow } from '../rows/rows.ts'
import type { Version } from '../rows/version.ts'

/**
 * The version as a Principal sees it: without the paths that its policy hides, and without what the platform masks.
 * Every version that leaves the store comes through here, so that searches, expressions, profiles and patches
 * that evaluate it can tell no more than a read shows.
 */
export function redactFor<V extends Version>(
  principal: Principal,
  version: V,
  hidden: readonly string[],
): V {
  return redactPaths(maskedFor(principal, version), hidden)
}

/** The rest of the text stays in its order. */
function redactPaths<V extends Version>(version: V, hidden: readonly string[]): V {
  const { type, content } = version
  if (hidden.length === 0 || content === undefined) return version
  const shown = removeJsonPaths(type, content, hidden)
  // Only `meta` itself may have been cut before its closing brace.
  const isMetaCut = hidden.some((path) => path.startsWith('meta.'))
  const metaAt = isMetaCut ? metaEnd(shown) : version.metaAt
  const metaExtension = hidesPatient(type, hidden)
    ? shownMeta(version, shown)
    : version.metaExtension
  return { ...version, content: shown, metaAt, metaExtension }
}

/** Stored texts begin with these three, and `meta` has what is never hidden. */
function metaEnd(content: string): number {
  const { resourceType, id, meta } = parseJson(content) as Resource
  return JSON.stringify({ resourceType, id, meta }).length - 2
}

/** True when it is hidden who a resource is about. */
function hidesPatient(type: string, hidden: readonly string[]): boolean {
  const known = patientless.get(hidden)?.get(type)
  if (known !== undefined) return known
  const isHidden = hidesAny({ hidden }, type, compartmentCodes(type, 'Patient/'), undefined)
  const byType = patientless.get(hidden) ?? new Map<string, boolean>()
  patientless.set(hidden, byType.set(type, isHidden))
  return isHidden
}

const patientless = new WeakMap<readonly string[], Map<string, boolean>>()

/** Platform meta that names no patient but those that the text names, and accounts. */
function shownMeta({ metaExtension }: Version, shown: string): string {
  // Our own texts, checked when they were written.
  const meta = JSON.parse(`{${metaExtension}}`) as Meta
  const accounts = (meta.accounts ?? []).map(({ reference }) => reference)
  const named = new Set([...patientCompartments(parseJson(shown) as Resource), ...accounts])
  const compartment = meta.compartment?.filter(
    ({ reference }) => !reference?.startsWith('Patient/') || named.has(reference),
  )
  return JSON.stringify({ ...meta, compartment }).slice(1, -1)
}

/** Redacts rows that the Principal may see. One statement a type where only PostgreSQL knows what is hidden. */
export async function redactRows(
  store: StoreContext,
  principal: Principal,
  interactionOf: (type: string) => Interaction,
  rows: readonly VersionRow[],
): Promise<readonly Version[]> {
  if (principal.rules === undefined)
    return rows.map((row) => redactFor(principal, toVersion(row), []))
  const hidden = new Map<VersionRow, readonly string[]>()
  for (const group of groupByType(rows)) {
    const [first] = group
    if (first === undefined) continue
    const interaction = interactionOf(typeName(first.type))
    const found = await hiddenIn(store, principal, interaction, group)
    group.forEach((row, i) => {
      hidden.set(row, found[i] ?? [])
    })
  }
  return rows.map((row) => redactFor(principal, toVersion(row), hidden.get(row) ?? []))
}

/** By Project and type; most pages are of one. */
function groupByType(rows: readonly VersionRow[]): Iterable<readonly VersionRow[]> {
  const [first] = rows
  const isOne = rows.every(({ project, type }) => project === first?.project && type === first.type)
  if (isOne) return [rows]
  return Map.groupBy(rows, ({ project, type }) => `${project} ${type}`).values()
}

/** The hidden paths of live rows of one type in one project. */
async function hiddenIn(
  store: StoreContext,
  principal: Principal,
  interaction: Interaction,
  rows: readonly VersionRow[],
): Promise<readonly (readonly string[])[]> {
  const grants = grantsFor(principal, typeName(rows[0]?.type ?? 0), interaction) ?? []
  const [first] = grants
  if (first === undefined) return []
  if (isAlike(grants)) return rows.map(() => first.hidden)
  const decisions = await decideRows(store, principal, [interaction], rows)
  const all = grants.flatMap(({ hidden }) => hidden)
  // Without a decision it was changed since it was read: whatever any of them hides.
  return decisions.map((found) => (found[interaction] ? hiddenBy(found[interaction]) : all))
}

/** They hide the same, so it does not matter which of them governs. */
function isAlike(grants: readonly Grant[]): boolean {
  const [first] = grants.map(({ hidden }) => hidden.join())
  return grants.every(({ hidden }) => hidden.join() === first)
}
