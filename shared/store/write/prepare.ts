/** A resource as a Principal sends it → the version and the rows that are written for it. */
import { type Principal, profileReference } from '../../access/principal.ts'
import { badRequest } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { isSameJson, isSameValue } from '../../fhir/json.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { getIndexPlan, keepsRows, keepsSideRows } from '../index/index-plan.ts'
import { deriveIndexes, type IndexRows, patientCompartments } from '../index/indexes.ts'
import type { StoreContext, UniqueValue, VersionDraft, WriteRule } from '../rows/context.ts'
import { eventOrigin } from '../rows/event-rows.ts'
import { indexRows, metaAccounts } from '../rows/index-rows.ts'
import type { CheckedReference, WritePlace } from '../rows/ports.ts'
import { composeContent, contentTail, timeText, type VersionRow } from '../rows/rows.ts'
import { newText, type UniqueKey } from '../rows/side-rows.ts'
import type { Version, WriteOptions } from '../rows/version.ts'
import type { PartRow, Write } from '../rows/write-rows.ts'
import { referencesToCheck } from './references.ts'

export interface Prepared {
  readonly write: Write
  /** With its id and platform meta, as write constraints see it. */
  readonly resource: Resource
  /** The index rows of the resource, whether its row stays or not. */
  readonly rows: () => IndexRows
  /** In the order of `write.targets`. */
  readonly references: readonly CheckedReference[]
}

const OPERATIONS = { insert: 'c', update: 'u' } as const

interface Preparation {
  readonly store: StoreContext
  readonly principal: Principal
  readonly resource: Resource
  readonly place: WritePlace
  /** The live version, with its platform meta. */
  readonly stored: Resource | undefined
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
      // Without the outer braces: these members are spliced into the `meta` of an extended reply.
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

/** The version as it is read once it was written at a time. */
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

/** True for equal platform meta, whoever wrote it: who sends the same again changes nothing. */
function isSameMeta(a: string, b: string): boolean {
  return a === b || withoutWriter(a) === withoutWriter(b)
}

function withoutWriter(extension: string): string {
  const { author: _author, onBehalfOf: _onBehalfOf, ...rest } = JSON.parse(`{${extension}}`) as Meta
  return JSON.stringify(rest)
}

/** `author` column of what a Principal writes. */
export function authorId(store: StoreContext, reference: string): string {
  const [type = '', id = ''] = reference.split('/')
  return store.keys.rowId(type, id)
}

/** Only who moves data in may say when it was last changed. Errors: 400. */
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

/** Undefined when the stored version has the same: its rows stay. */
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

/** Rows that take the place of those of the live version. */
function newRows(draft: VersionDraft, rows: IndexRows): Pick<Write, 'rows' | 'sideRows'> {
  const { seenCodes } = draft.store
  return {
    rows: { ...rows, codes: rows.codes.filter(({ p, k }) => !seenCodes.has(p ^ k)) },
    sideRows: draft.stored === undefined || !hasSideRows(draft, draft.stored, rows),
  }
}

/** True when the string and range rows of the live version are those of the next one. */
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

/**
 * Equal texts, or equal values whose keys came in another order (then the lengths agree). `stored` is
 * what `live` holds.
 */
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

/** Compares the elements other than `meta`; cheaper than to parse both texts. */
function hasSameElements(a: Resource, b: Resource): boolean {
  const { meta: _before, ...before } = a
  const { meta: _after, ...after } = b
  return isSameValue(before, after)
}
