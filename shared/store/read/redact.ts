/** Redacts versions for a Principal: policy paths and platform masks. */

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

/** Every version leaves the store through here: evaluations must reveal no more than a read. */
export function redactFor<V extends Version>(
  principal: Principal,
  version: V,
  hidden: readonly string[],
): V {
  return redactPaths(maskedFor(principal, version), hidden)
}

/** Keeps the order of the members. */
function redactPaths<V extends Version>(version: V, hidden: readonly string[]): V {
  const { type, content } = version
  if (hidden.length === 0 || content === undefined) return version
  const shown = removeJsonPaths(type, content, hidden)
  const isMetaCut = hidden.some((path) => path.startsWith('meta.'))
  const metaAt = isMetaCut ? metaEnd(shown) : version.metaAt
  const metaExtension = hidesPatient(type, hidden)
    ? shownMeta(version, shown)
    : version.metaExtension
  return { ...version, content: shown, metaAt, metaExtension }
}

/** Stored texts begin with these three members; `meta` always stays. */
function metaEnd(content: string): number {
  const { resourceType, id, meta } = parseJson(content) as Resource
  return JSON.stringify({ resourceType, id, meta }).length - 2
}

/** True when the subject of the resource is hidden. */
function hidesPatient(type: string, hidden: readonly string[]): boolean {
  const known = patientless.get(hidden)?.get(type)
  if (known !== undefined) return known
  const isHidden = hidesAny({ hidden }, type, compartmentCodes(type, 'Patient/'), undefined)
  const byType = patientless.get(hidden) ?? new Map<string, boolean>()
  patientless.set(hidden, byType.set(type, isHidden))
  return isHidden
}

const patientless = new WeakMap<readonly string[], Map<string, boolean>>()

/** Platform meta names only patients in the text or in accounts. */
function shownMeta({ metaExtension }: Version, shown: string): string {
  const meta = JSON.parse(`{${metaExtension}}`) as Meta
  const accounts = (meta.accounts ?? []).map(({ reference }) => reference)
  const named = new Set([...patientCompartments(parseJson(shown) as Resource), ...accounts])
  const compartment = meta.compartment?.filter(
    ({ reference }) => !reference?.startsWith('Patient/') || named.has(reference),
  )
  return JSON.stringify({ ...meta, compartment }).slice(1, -1)
}

/** One statement per type when only PostgreSQL knows the hidden paths. */
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

function groupByType(rows: readonly VersionRow[]): Iterable<readonly VersionRow[]> {
  const [first] = rows
  const isOne = rows.every(({ project, type }) => project === first?.project && type === first.type)
  if (isOne) return [rows]
  return Map.groupBy(rows, ({ project, type }) => `${project} ${type}`).values()
}

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
  // Undecided: it was changed since the read, so every candidate path is hidden.
  return decisions.map((found) => (found[interaction] ? hiddenBy(found[interaction]) : all))
}

/** True when all hide the same, so the governing grant does not matter. */
function isAlike(grants: readonly Grant[]): boolean {
  const [first] = grants.map(({ hidden }) => hidden.join())
  return grants.every(({ hidden }) => hidden.join() === first)
}
