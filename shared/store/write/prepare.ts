/** Prepares a resource for its write, the version and its rows; submits it. */

import { type Principal, profileReference } from '../../access/principal.ts'
import { badRequest, conflict } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { isSameJson, isSameValue } from '../../fhir/json.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { SqlError } from '../../postgres/sql-error.ts'
import { getIndexPlan, keepsRows, keepsSideRows } from '../index/index-plan.ts'
import { deriveIndexes, type IndexRows, patientCompartments } from '../index/indexes.ts'
import {
  indexRows,
  metaAccounts,
  type StoreContext,
  type UniqueValue,
  type VersionDraft,
  type WriteRule,
} from '../rows/context.ts'
import { eventOrigin } from '../rows/event-rows.ts'
import { composeContent, contentTail, timeText, type VersionRow } from '../rows/rows.ts'
import { ACCOUNT_PATIENT, newText, type UniqueKey } from '../rows/side-rows.ts'
import type { Version, WriteOptions, WriteResult } from '../rows/version.ts'
import type { CheckedReference, PartRow, Write } from '../rows/write-rows.ts'
import { invalidReferences, referencesToCheck } from './references.ts'

export interface Prepared {
  readonly write: Write
  readonly resource: Resource
  /** Index rows of the resource, even if its row stays. */
  readonly rows: () => IndexRows
  /** In the order of `write.targets`. */
  readonly references: readonly CheckedReference[]
}

const OPERATIONS = { insert: 'c', update: 'u' } as const

interface Preparation extends Omit<VersionDraft, 'tail'> {
  readonly options: WriteOptions
}

/** Errors: 400. */
export function prepare(preparation: Preparation): Prepared {
  const { store, principal, resource, place, stored, options } = preparation
  const { resourceType: type } = resource
  const { id, project, own } = place
  const rule = store.rules.get(type)
  const content = composeContent(resource, id, place.ver)
  const named = resource.id === id ? resource : { ...resource, id }
  const meta = platformMeta(preparation, named, rule)
  const indexed = { ...named, meta: { ...resource.meta, ...meta } }
  const stays = stored !== undefined && keepsRows(getIndexPlan(type, own).elements, stored, indexed)
  let derived: IndexRows | undefined
  const rows = () => {
    derived ??= indexRows(store, project, indexed, { parameters: own })
    return derived
  }
  const references = principal.project.checkReferencesOnWrite
    ? referencesToCheck({ store, principal, project, resource, selfId: id })
    : []
  const unique = options.unique ?? newUniqueValues(rule, indexed, stored)
  const author = meta.author?.reference
  const draft = { store, principal, place, resource: indexed, stored, tail: content.tail }
  return {
    resource: indexed,
    rows,
    references,
    write: {
      kind: place.kind,
      project,
      type: typeNumber(type),
      id: store.keys.rowId(type, id),
      ver: place.ver,
      after: place.after,
      time: place.ver === 1 ? timeGiven(principal, resource) : undefined,
      author: author && authorId(store, author),
      ...content,
      // Without the outer braces: these members go into the `meta` of an extended response.
      metaExtension: JSON.stringify(meta).slice(1, -1),
      ...(stays ? { rows: undefined, sideRows: false } : newRows(draft, rows())),
      unique: unique?.map((value) => uniqueKey(store, project, type, value)),
      patientIds: place.patientIds ?? [],
      targets: store.deferred === undefined ? references : [],
      text: newText(own, indexed, stored),
      parts: partRows(draft),
      event: eventOrigin(store.keys, principal, {
        type,
        projectId: place.projectId,
        operation: OPERATIONS[place.kind],
      }),
      lease: principal.lease,
    },
  }
}

const NO_ROWS: readonly PartRow[] = []

function partRows(draft: VersionDraft): readonly PartRow[] {
  let rows: PartRow[] | undefined
  for (const [order, part] of draft.store.parts.entries()) {
    if (part.types?.has(draft.resource.resourceType) === false) continue
    const row = part.buildRow(draft)
    if (row === undefined) continue
    rows ??= []
    rows.push({ part, order, row })
  }
  return rows ?? NO_ROWS
}

export function writtenRow({ write }: Prepared, lu: Date): VersionRow {
  return {
    project: write.project,
    type: write.type,
    id: write.id,
    ver: write.ver,
    lu,
    content: write.head + timeText(lu) + write.tail,
    meta_at: write.metaAt,
    meta_ext: write.metaExtension,
  }
}

/** Ignores the author: sending the same content again changes nothing. */
function isSameMeta(a: string, b: string): boolean {
  return a === b || withoutWriter(a) === withoutWriter(b)
}

function withoutWriter(extension: string): string {
  const { author: _author, onBehalfOf: _onBehalfOf, ...rest } = JSON.parse(`{${extension}}`) as Meta
  return JSON.stringify(rest)
}

export function authorId(store: StoreContext, reference: string): string {
  const [type = '', id = ''] = reference.split('/')
  return store.keys.rowId(type, id)
}

/** Only importers may set the time of the last change. Errors: 400. */
function timeGiven(principal: Principal, { resourceType, meta }: Resource): Date | undefined {
  if (!principal.isSuperAdmin || meta?.lastUpdated === undefined) return undefined
  const time = new Date(meta.lastUpdated)
  if (!Number.isNaN(time.getTime())) return time
  throw badRequest('Invalid instant format', `${resourceType}.meta.lastUpdated`)
}

// `project` comes first: scopes compare the beginning of the text (context.ts).
function platformMeta(
  { principal, place, stored }: Preparation,
  resource: Resource,
  rule: WriteRule | undefined,
): Meta {
  const { projectId, accounts: given } = place
  const sent = resource.meta
  const own = rule?.resolveAuthor?.(principal) ?? profileReference(principal)
  const author = (principal.isSuperAdmin ? sent?.author : undefined) ?? own
  const accounts =
    metaAccounts(principal.isProjectAdmin ? sent : undefined) ?? metaAccounts(stored?.meta) ?? given
  const [account] = accounts ?? []
  const compartment = new Set([
    `Project/${projectId}`,
    ...(accounts ?? []).flatMap((item) => item.reference ?? []),
    ...patientCompartments(resource),
  ])
  return {
    project: projectId,
    author,
    ...(principal.onBehalfOf ? { onBehalfOf: principal.onBehalfOf } : {}),
    ...(account && accounts ? { account, accounts } : {}),
    compartment: [...compartment].map((reference) => ({ reference })),
  }
}

/** Undefined when unchanged: the rows stay. */
function newUniqueValues(
  rule: WriteRule | undefined,
  resource: Resource,
  stored: Resource | undefined,
): readonly UniqueValue[] | undefined {
  const values = rule?.uniqueValues?.(resource)
  if (values === undefined) return undefined
  const before = stored ? rule?.uniqueValues?.(stored) : []
  return JSON.stringify(values) === JSON.stringify(before) ? undefined : values
}

function newRows(draft: VersionDraft, rows: IndexRows): Pick<Write, 'rows' | 'sideRows'> {
  const { seenCodes } = draft.store
  return {
    rows: { ...rows, codes: rows.codes.filter(({ p, k }) => !seenCodes.has(p ^ k)) },
    sideRows: draft.stored === undefined || !hasSideRows(draft, draft.stored, rows),
  }
}

/** True when the string and range rows of the live version stay. */
function hasSideRows(
  { store, place, resource }: VersionDraft,
  stored: Resource,
  rows: IndexRows,
): boolean {
  const { project, own } = place
  const { sides } = getIndexPlan(resource.resourceType, own)
  if (keepsSideRows(sides, stored, resource)) return true
  return sameSideRows(rows, deriveIndexes(store.keys, project, stored, { own }))
}

function sameSideRows(a: IndexRows, b: IndexRows): boolean {
  return (
    a.strings.length === b.strings.length &&
    a.ranges.length === b.ranges.length &&
    a.strings.every((row, i) => row.p === b.strings[i]?.p && row.v === b.strings[i]?.v) &&
    a.ranges.every((row, i) => {
      const other = b.ranges[i]
      return row.p === other?.p && row.lo === other.lo && row.hi === other.hi && row.u === other.u
    })
  )
}

function uniqueKey(
  store: StoreContext,
  project: number,
  type: string,
  value: UniqueValue,
): UniqueKey {
  const p = store.keys.param(project, type, `_unique:${value.scope}`)
  return { p, k: store.keys.token(p, undefined, value.value) }
}

/** Different orders of keys have equal lengths. `stored`: content of `live`. */
export function isUnchanged(live: Version, stored: Resource, prepared: Prepared): boolean {
  const { write } = prepared
  if (write.unique !== undefined) return false
  const before = contentTail(live.content ?? '', live.type, live.id, live.ver)
  if (before.length !== write.tail.length) return false
  if (!isSameMeta(live.metaExtension, write.metaExtension)) return false
  if (before === write.tail) return true
  if (!hasSameElements(stored, prepared.resource)) return false
  const asJson = (tail: string): string => `{"meta":{"_":"${tail}`
  return isSameJson(asJson(before), asJson(write.tail))
}

/** Cheaper than parsing both texts. */
function hasSameElements(a: Resource, b: Resource): boolean {
  const { meta: _before, ...before } = a
  const { meta: _after, ...after } = b
  return isSameValue(before, after)
}

/** `lost`: an update lost a race. `held`: a patient holds accounts, which the version would inherit. */
export type Submitted =
  | { readonly kind: 'written'; readonly at: Date }
  | { readonly kind: 'lost' | 'held' }

/** Errors: 400 for references, 409. */
export async function submit(store: StoreContext, prepared: Prepared): Promise<Submitted> {
  const { write, references } = prepared
  const { resourceType: type } = prepared.resource
  // The next statement checks them, before the writes are answered.
  store.deferred?.push(...references)
  const rows = await store.submit(write).catch((error: unknown) => {
    const isSecond = error instanceof SqlError && error.constraint === 'unique_key_pkey'
    throw isSecond ? conflict(`${type} with this value already exists`) : error
  })
  if (rows.some(({ target }) => target === ACCOUNT_PATIENT)) return { kind: 'held' }
  const missing = rows.flatMap(({ target }) => target ?? [])
  if (missing.length > 0) {
    throw invalidReferences(missing.map((place) => references[place]?.path ?? type))
  }
  if (rows.some(({ hasEvents }) => hasEvents)) store.announce()
  if (rows.length === 0) return { kind: 'lost' }
  for (const { p, k } of write.rows?.codes ?? []) store.seenCodes.set(p ^ k, true)
  const { project, parts } = write
  for (const { part, row } of parts) await store.written(part, { project, row })
  const at = rows[0]?.lu ?? undefined
  return at === undefined ? { kind: 'lost' } : { kind: 'written', at }
}

/** Caches the written version, so that its next change skips the read. */
export function toWriteResult(
  { recent }: StoreContext,
  { write, resource }: Prepared,
  id: string,
  { lastUpdated, outcome }: Pick<WriteResult, 'lastUpdated' | 'outcome'>,
): WriteResult {
  const { project, ver, metaAt, metaExtension } = write
  const content = write.head + timeText(lastUpdated) + write.tail
  recent?.keep({
    project,
    type: write.type,
    id: write.id,
    ver,
    lu: lastUpdated,
    content,
    meta_at: metaAt,
    meta_ext: metaExtension,
  })
  return {
    type: resource.resourceType,
    id,
    ver,
    lastUpdated,
    content,
    metaAt,
    metaExtension,
    outcome,
  }
}

/** True when the row or one of its ids exists. */
export function isTaken(error: unknown): boolean {
  return (
    error instanceof SqlError &&
    /^(version|resource|idx_string|idx_range)_pkey$/.test(error.constraint ?? '')
  )
}
