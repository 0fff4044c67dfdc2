/** A resource as a Principal sends it → the version and the rows that are written for it. */

import { type Principal, profileReference } from '../../access/principal.ts'
import { scopedAuthor } from '../../access/scopes.ts'
import { SUBSCRIPTION } from '../../access/subscription.ts'
import { badRequest } from '../../errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { eventOrigin } from '../events/rows.ts'
import { watchOf } from '../events/subscriptions.ts'
import { SEARCH_PARAMETER } from '../index/custom-parameters.ts'
import { planOf } from '../index/index-plan.ts'
import { accountsOf, indexRows } from '../index/index-rows.ts'
import { deriveIndexes, type IndexRows, patientCompartments } from '../index/indexes.ts'
import { keepsRows, keepsSideRows } from '../index/side-elements.ts'
import { composeContent, timeText } from '../rows/content.ts'
import type { Store } from '../rows/context.ts'
import { downloadOf } from '../rows/downloads.ts'
import type { CheckedReference, Place } from '../rows/ports.ts'
import type { VersionRow } from '../rows/rows.ts'
import { BOT, scheduleChange } from '../rows/schedules.ts'
import type { UniqueKey } from '../rows/side-rows.ts'
import type { WriteOptions } from '../rows/version.ts'
import type { Write } from '../rows/write-rows.ts'
import { newText, wantsFullText } from './full-text.ts'
import { referencesToCheck } from './references.ts'
import { uniqueValues } from './registry.ts'

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

/** `stored` is the live version, with its platform meta. Errors: 400. */
export function prepare(
  store: Store,
  principal: Principal,
  resource: Resource,
  place: Place,
  stored: Resource | undefined,
  options: WriteOptions,
): Prepared {
  const { resourceType: type } = resource
  const { id, project, own } = place
  const content = composeContent(resource, id, place.ver)
  const named = resource.id === id ? resource : { ...resource, id }
  const meta = platformMeta(principal, named, place, stored?.meta)
  const indexed = { ...named, meta: { ...resource.meta, ...meta } }
  const stays = stored !== undefined && keepsRows(planOf(type, own).elements, stored, indexed)
  let derived: IndexRows | undefined
  const rows = () => {
    derived ??= indexRows(store, project, indexed, own)
    return derived
  }
  const references = referencesToCheck(store, principal, project, resource, id)
  const unique = options.unique ?? newUniqueValues(indexed, stored)
  const author = meta.author?.reference
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
      ...(stays
        ? { rows: undefined, sideRows: false }
        : newRows(store, place, stored, indexed, rows())),
      unique: unique?.map((value) => uniqueKey(store, project, type, value)),
      heirOf: place.heirOf ?? [],
      targets: store.deferred === undefined ? references : [],
      text: newText(own, indexed, stored),
      tenant: type === 'Project' ? tenantOf(store, indexed, place, stored) : undefined,
      schedule: type === BOT ? scheduleChange(stored, resource) : undefined,
      reindexes: type === SEARCH_PARAMETER,
      event: eventOrigin(store.keys, principal, type, place.projectId, OPERATIONS[place.kind]),
      watch: type === SUBSCRIPTION ? watchOf(indexed) : undefined,
      download: downloadOf(store, principal, type, { ...place, id }, content.tail),
    },
  }
}

/** The version as it is read once it was written at a time. */
export function rowOf({ write }: Prepared, lu: Date): VersionRow {
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

/** Undefined when the row of the Project stays as it is. */
function tenantOf(
  store: Store,
  project: Resource,
  { id, ver }: Place,
  stored: Resource | undefined,
): Write['tenant'] {
  const isOn = wantsFullText(project)
  const isChanged = isOn !== wantsFullText(stored)
  if (ver > 1 && !isChanged) return undefined
  return { id: store.keys.rowId('Project', id), fullText: isOn ? ver : null, isChanged }
}

/** True for equal platform meta, whoever wrote it: who sends the same again changes nothing. */
export function isSameMeta(a: string, b: string): boolean {
  return a === b || withoutWriter(a) === withoutWriter(b)
}

function withoutWriter(extension: string): string {
  const { author: _author, onBehalfOf: _onBehalfOf, ...rest } = JSON.parse(`{${extension}}`) as Meta
  return JSON.stringify(rest)
}

/** `author` column of what a Principal writes. */
export function authorId(store: Store, reference: string): string {
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
  principal: Principal,
  resource: Resource,
  { projectId, accounts: given }: Place,
  stored: Meta | undefined,
): Meta {
  const sent = resource.meta
  const actsLater = resource.resourceType === SUBSCRIPTION
  const own = actsLater ? scopedAuthor(principal) : profileReference(principal)
  const author = (principal.isSuperAdmin ? sent?.author : undefined) ?? own
  const accounts =
    accountsOf(principal.isProjectAdmin ? sent : undefined) ?? accountsOf(stored) ?? given
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
function newUniqueValues(resource: Resource, stored: Resource | undefined) {
  const values = uniqueValues(resource)
  const before = stored ? uniqueValues(stored) : values && []
  return JSON.stringify(values) === JSON.stringify(before) ? undefined : values
}

/** Rows that take the place of those of the live version. */
function newRows(
  store: Store,
  { project, own }: Place,
  stored: Resource | undefined,
  next: Resource,
  rows: IndexRows,
): Pick<Write, 'rows' | 'sideRows'> {
  return {
    rows: { ...rows, codes: rows.codes.filter(({ k }) => !store.seenCodes.has(k)) },
    sideRows: stored === undefined || !hasSideRows(store, project, own, stored, next, rows),
  }
}

/** True when the string and range rows of the live version are those of the next one. */
function hasSideRows(
  { keys }: Store,
  project: number,
  own: OwnParameters | undefined,
  stored: Resource,
  next: Resource,
  rows: IndexRows,
): boolean {
  const { sides } = planOf(next.resourceType, own)
  if (keepsSideRows(sides, stored, next)) return true
  return sameSideRows(rows, deriveIndexes(keys, project, stored, own))
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
  store: Store,
  project: number,
  type: string,
  value: { readonly scope: string; readonly value: string },
): UniqueKey {
  const p = store.keys.param(project, type, `_unique:${value.scope}`)
  return { p, k: store.keys.token(p, undefined, value.value) }
}
