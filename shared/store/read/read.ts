/** Read, vread and reads of many, as a Principal: one statement each, on primary keys; and the redaction of all versions. */

import {
  decideRow,
  decideRows,
  decideVersions,
  hiddenBy,
  isPlain,
  readDecided,
} from '../../access/decisions/decide.ts'
import { removeJsonPaths } from '../../access/fields/fields.ts'
import type { Grant, Interaction } from '../../access/grant.ts'
import { hidesAny } from '../../access/hidden.ts'
import { grantsFor, may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { linkedProjects } from '../../access/project-context.ts'
import { memoFor } from '../../core/cache.ts'
import { forbidden, gone, HttpError, notFound } from '../../core/errors.ts'
import { isResourceType, typeName, typeNumber } from '../../fhir/definitions.ts'
import { parseJson } from '../../fhir/json.ts'
import { publishedById } from '../../fhir/published.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { compartmentCodes } from '../../search/language/search-request.ts'
import { patientCompartments } from '../index/indexes.ts'
import {
  isLegalId,
  projectTest,
  requireAllowed,
  rowKey,
  rowScope,
  type StoreContext,
} from '../rows/context.ts'
import { newestStatement } from '../rows/newest.ts'
import { maskedFor, toVersion, type VersionRow, versionColumns } from '../rows/rows.ts'
import type { Version } from '../rows/version.ts'

const V = versionColumns('v')

export async function read(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<Version> {
  requireAllowed(principal, type, 'read')
  const found = await readDecided(store, principal, type, { id, interactions: ['read'] })
  const decision = found?.decisions.read
  if (found === undefined) return publishedVersion(type, id)
  if (decision === undefined) throw notFound()
  if (found.row.content === null) throw gone()
  return redactFor(principal, toVersion(found.row), hiddenBy(decision))
}

/** Errors: 404. */
function publishedVersion(type: string, id: string): Version {
  const resource = publishedById(type, id)
  if (resource === undefined) throw notFound()
  const lastUpdated = new Date(resource.meta?.lastUpdated ?? 0)
  const content = JSON.stringify(resource)
  return { type, id, ver: 1, lastUpdated, content, metaAt: 0, metaExtension: '' }
}

export interface ResourceId {
  readonly type: string
  readonly id: string
}

/** Errors: 403 for versions readable only as the current one. */
export async function readVersion(
  store: StoreContext,
  principal: Principal,
  { type, id, ver }: ResourceId & { readonly ver: string },
): Promise<Version> {
  requireAllowed(principal, type, 'read')
  // Larger numbers exceed PostgreSQL's int and no version has them.
  if (!isLegalId(id) || !/^[1-9]\d{0,8}$/.test(ver)) throw notFound()
  if (!isPlain(principal, type, 'read') || !isPlain(principal, type, 'vread')) {
    return readRuledVersion(store, principal, { type, id }, Number(ver))
  }
  requireAllowed(principal, type, 'vread')
  const { project, metaPrefix, everywhere } = rowScope(principal, type)
  const [row] = await store.connection.query<VersionRow>({
    name: everywhere ? 'vread-everywhere' : 'vread',
    text: `select ${V} from version v where ${projectTest(everywhere)} and v.type = $2
      and v.id = $3 and v.ver = $5 and starts_with(v.meta_ext, $4)
      order by v.project = $1 desc limit 1`,
    values: [project, typeNumber(type), store.keys.rowId(type, id), metaPrefix, Number(ver)],
  })
  if (row === undefined) {
    if (ver === '1') return publishedVersion(type, id)
    throw notFound()
  }
  if (row.content === null) throw gone()
  const decisions = (['read', 'vread'] as const).map((item) =>
    decideRow(store, principal, item, row),
  )
  return redactFor(principal, toVersion(row), decisions.flatMap(hiddenBy))
}

/** Both the newest version and the requested one must be visible. */
async function readRuledVersion(
  store: StoreContext,
  principal: Principal,
  { type, id }: ResourceId,
  ver: number,
): Promise<Version> {
  const newest = await readDecided(store, principal, type, { id, interactions: ['read', 'vread'] })
  if (newest?.decisions.read === undefined) throw notFound()
  const isNewest = newest.row.ver === ver
  const row = isNewest ? newest.row : await readVersionRow(store, newest.row, ver)
  if (row === undefined) throw notFound()
  const [decisions] =
    isNewest && row.content !== null
      ? [newest.decisions]
      : await decideVersions(store, principal, ['read', 'vread'], [row])
  const { read: seen, vread } = decisions ?? {}
  if (seen === undefined) throw notFound()
  if (row.content === null) {
    requireAllowed(principal, type, 'vread')
    throw gone()
  }
  if (vread === undefined) throw forbidden('criteria of every entry for vread')
  return redactFor(principal, toVersion(row), [...hiddenBy(seen), ...hiddenBy(vread)])
}

async function readVersionRow(
  { connection }: StoreContext,
  { project, type, id }: VersionRow,
  ver: number,
): Promise<VersionRow | undefined> {
  const [row] = await connection.query<VersionRow>({
    name: 'version',
    text: `select ${V} from version v where v.project = $1 and v.type = $2 and v.id = $3 and v.ver = $4`,
    values: [project, type, id, ver],
  })
  return row
}

/** In the order asked; undefined for unknown, deleted or invisible ids. */
export async function readMany(
  store: StoreContext,
  principal: Principal,
  references: readonly ResourceId[],
): Promise<readonly (Version | undefined)[]> {
  const asked = references.map(({ type, id }, place) => ({ type, id, place }))
  const sought = asked.filter(
    ({ type, id }) => isLegalId(id) && isResourceType(type) && may(principal, type, 'read'),
  )
  if (sought.length === 0) return references.map(() => undefined)
  const keys = sought.map(({ type, id }) => rowKey(store, principal, type, id))
  const rows = await store.connection.query<VersionRow & { n: number }>({
    ...newestStatement(keys),
    isPipelined: true,
  })
  const seen = await seenRows(store, principal, rows)
  const found = new Map(seen.map(({ row, version }) => [sought[row.n - 1]?.place, version]))
  return references.map((_, place) => found.get(place))
}

/** One more statement per type that needs PostgreSQL. */
async function seenRows<Row extends VersionRow>(
  store: StoreContext,
  principal: Principal,
  rows: readonly Row[],
): Promise<readonly { readonly row: Row; readonly version: Version }[]> {
  const live = rows.filter(({ content }) => content !== null)
  const decisions = await decideRows(store, principal, ['read'], live)
  return live.flatMap((row, i) => {
    const read = decisions[i]?.read
    if (read === undefined) return []
    return [{ row, version: redactFor(principal, toVersion(row), hiddenBy(read)) }]
  })
}

// Reads that continue in linked Projects, as far as those share the type.

/** Errors: those of the own Project when no other has the resource. */
export async function readLinked<T>(
  principal: Principal,
  type: string,
  readAs: (reader: Principal) => Promise<T>,
): Promise<T> {
  if (!isLinked(principal, type)) return readAs(principal)
  try {
    return await readAs(principal)
  } catch (error) {
    if (!isUnknown(error)) throw error
    for (const reader of readersIn(principal, type)) {
      const found = await readAs(reader).catch(orUndefined)
      if (found !== undefined) return found
    }
    throw error
  }
}

export async function readManyLinked(
  principal: Principal,
  references: readonly ResourceId[],
  readAs: (
    reader: Principal,
    asked: readonly ResourceId[],
  ) => Promise<readonly (Version | undefined)[]>,
): Promise<readonly (Version | undefined)[]> {
  const found = [...(await readAs(principal, references))]
  for (const { number } of principal.project.linked ?? []) {
    const missing = references.flatMap((reference, place) => {
      const readers = found[place] === undefined ? readersIn(principal, reference.type) : []
      const reader = readers.find(({ project }) => project.number === number)
      return reader === undefined ? [] : [{ reference, place, reader }]
    })
    const [first] = missing
    if (first === undefined) continue
    const more = await readAs(
      first.reader,
      missing.map(({ reference }) => reference),
    )
    for (const [i, { place }] of missing.entries()) found[place] = more[i]
  }
  return found
}

/** Errors: 403 for a resource of a linked Project. */
export async function requireOwn(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  if (!isLinked(principal, type)) return
  for (const reader of [principal, ...readersIn(principal, type)]) {
    const [found] = await readMany(store, reader, [{ type, id }])
    if (found === undefined) continue
    if (reader === principal) return
    throw forbidden()
  }
}

export function isLinked(principal: Principal, type: string): boolean {
  const { linked = [] } = principal.project
  return linked.length > 0 && linkedProjects(principal, type).length > 0
}

function readersIn(principal: Principal, type: string): readonly Principal[] {
  return linkedProjects(principal, type).map(({ id, number, units }) => ({
    ...principal,
    isProjectAdmin: false,
    // Rows there are not indexed by the Principal's custom parameters.
    project: { ...principal.project, id, number, units, linked: [], parameters: undefined },
  }))
}

function isUnknown(error: unknown): boolean {
  return error instanceof HttpError && error.status === 404
}

function orUndefined(error: unknown): undefined {
  if (isUnknown(error) || (error instanceof HttpError && error.status === 410)) return undefined
  throw error
}

/**
 * Applies masks of the platform, then cuts paths that the policy hides. Every version leaves the store through here:
 * evaluations must reveal no more than a read.
 */
export function redactFor<V extends Version>(
  principal: Principal,
  version: V,
  hidden: readonly string[],
): V {
  const masked = maskedFor(principal, version)
  const { type, content } = masked
  if (hidden.length === 0 || content === undefined) return masked
  const shown = removeJsonPaths(type, content, hidden)
  const isMetaCut = hidden.some((path) => path.startsWith('meta.'))
  const metaAt = isMetaCut ? metaEnd(shown) : masked.metaAt
  const metaExtension = hidesPatient(type, hidden) ? shownMeta(masked, shown) : masked.metaExtension
  return { ...masked, content: shown, metaAt, metaExtension }
}

/** Stored texts begin with these three members; `meta` always stays. */
function metaEnd(content: string): number {
  const { resourceType, id, meta } = parseJson(content) as Resource
  return JSON.stringify({ resourceType, id, meta }).length - 2
}

/** True when the subject of the resource is hidden. */
function hidesPatient(type: string, hidden: readonly string[]): boolean {
  return patientless(hidden, type, () =>
    hidesAny({ hidden }, type, compartmentCodes(type, 'Patient/'), undefined),
  )
}

const patientless = memoFor<readonly string[], boolean>()

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
