/** Rows of `version` as values, and their redaction for a Principal. */
import {
  hasMasks,
  hiddenFields,
  MASKED_TYPES,
  masked,
  removeJsonPaths,
} from '../../access/fields/fields.ts'
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { badRequest } from '../../core/errors.ts'
import { typeName } from '../../fhir/definitions.ts'
import { parseJson } from '../../fhir/json.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import type { Version } from './version.ts'

export interface VersionRow {
  readonly project: number
  readonly type: number
  readonly id: string
  readonly ver: number
  readonly lu: Date
  readonly content: string | null
  readonly meta_at: number
  readonly meta_ext: string
}

export const versionColumns = (alias: string): string =>
  ['project', 'type', 'id', 'ver', 'lu', 'content', 'meta_at', 'meta_ext']
    .map((column) => `${alias}.${column}`)
    .join(', ')

/** The order and the limit force the primary key: a plain join picks a type-wide index until `version` is analyzed. */
export const withVersions = (
  project: string,
) => `cross join lateral (select * from version c where c.project = ${project}
    and c.type = r.type and c.id = r.id and c.ver <= r.ver order by c.ver desc limit 1) v`

/**
 * The content of `v`, to cast to JSON: PostgreSQL refuses half a surrogate pair anywhere in a document; whole pairs are
 * stored as characters. Looking for one is faster than replacing it.
 */
export const WELL_FORMED_CONTENT = String.raw`(case
  when v.content like '%\\ud%' or v.content like '%\\uD%'
  then regexp_replace(v.content, '\\ud[89a-f][0-9a-f]{2}', '\\ufffd', 'gi') else v.content end)`

/** `id` is for deletions, whose rows have no content. */
export function toVersion(row: VersionRow, id?: string): Version {
  return {
    type: typeName(row.type),
    id: id ?? contentId(row.content ?? ''),
    ver: row.ver,
    lastUpdated: row.lu,
    content: row.content ?? undefined,
    metaAt: row.meta_at,
    metaExtension: row.meta_ext,
  }
}

/** Throws for a deletion. */
export function parseVersion(version: Version): Resource {
  return parseJson(extendedText(version)) as Resource
}

/** `extended` adds the platform meta (`X-Medplum: extended`). */
export function present(version: Version, principal: Principal, extended: boolean): string {
  const shown = maskedFor(principal, version)
  return extended ? extendedText(shown) : (shown.content ?? '')
}

export function maskedFor<V extends Version>(principal: Principal, version: V): V {
  const { type, content } = version
  if (content === undefined || !MASKED_TYPES.has(type)) return version
  const { viewer, author } = metaViewer(version, principal)
  const hidden = hiddenFields(viewer, type)
  const text = hidden.length === 0 ? content : removeJsonPaths(type, content, hidden)
  if (!hasMasks(type, viewer, author)) return { ...version, content: text }
  return {
    ...version,
    content: JSON.stringify(masked(parseJson(text) as Resource, viewer, author)),
  }
}

/** In another Project the reader is neither administrator nor author. */
function metaViewer({ type, metaExtension }: Version, principal: Principal) {
  const { project, author } = JSON.parse(`{${metaExtension}}`) as Meta
  const isHere =
    principal.isSuperAdmin || REGISTRY_TYPES.has(type) || project === principal.project.id
  return isHere
    ? { viewer: principal, author: author?.reference }
    : { viewer: { ...principal, isProjectAdmin: false }, author: undefined }
}

/*
 * The stored text of a version. PostgreSQL sets `meta.lastUpdated` while writing, so the text has two parts:
 *
 *   {"resourceType":"T","id":"1","meta":{"versionId":"3","lastUpdated":" time ","profile":[…]},…}
 *   |------------------------- head ----------------------------------|      |----- tail ------|
 *
 * Platform meta is stored separately, to insert before the closing brace of `meta` (`metaAt`) in extended responses.
 */

interface Content {
  readonly head: string
  readonly tail: string
  /** In UTF-16 units. */
  readonly metaAt: number
}

/** `2026-01-31T12:00:00.000Z` */
const TIME_LENGTH = 24

/** Errors: 400 for a NUL in any string: neither PostgreSQL nor a C client can hold it. */
export function composeContent(resource: Resource, id: string, ver: number): Content {
  const { resourceType: type, id: _id, meta, ...rest } = resource
  const head = composeHead(type, id, ver)
  const metaText = members(ownMeta(meta))
  const tail = `"${metaText}}${members(rest)}}`
  if (tail.includes('\\u0000') && /(?<!\\)(?:\\\\)*\\u0000/.test(tail)) {
    throw badRequest('Null bytes are not allowed')
  }
  return { head, tail, metaAt: head.length + TIME_LENGTH + 1 + metaText.length }
}

function composeHead(type: string, id: string, ver: number): string {
  return `{"resourceType":${JSON.stringify(type)},"id":${JSON.stringify(id)},"meta":{"versionId":"${ver}","lastUpdated":"`
}

export function timeText(time: Date): string {
  return time.toISOString()
}

/** The part after the time, comparable with a `tail`. */
export function contentTail(content: string, type: string, id: string, ver: number): string {
  return content.slice(composeHead(type, id, ver).length + TIME_LENGTH)
}

/** Stored texts start with type and id, so no parse is needed. */
export function contentId(content: string): string {
  const start = content.indexOf('"id":"') + 6
  return content.slice(start, content.indexOf('"', start))
}

export function extendedText(version: {
  readonly content: string | undefined
  readonly metaAt: number
  readonly metaExtension: string
}): string {
  const content = version.content ?? ''
  if (version.metaExtension === '') return content
  return `${content.slice(0, version.metaAt)},${version.metaExtension}${content.slice(version.metaAt)}`
}

/** `"a":1` of `{"a":1}` with a leading comma; empty for no members. */
function members(value: object): string {
  const text = JSON.stringify(value)
  return text === '{}' ? '' : `,${text.slice(1, -1)}`
}

function ownMeta(meta: Meta | undefined): object {
  const {
    versionId: _versionId,
    lastUpdated: _lastUpdated,
    project: _project,
    author: _author,
    onBehalfOf: _onBehalfOf,
    account: _account,
    accounts: _accounts,
    compartment: _compartment,
    ...rest
  } = meta ?? {}
  return rest
}
