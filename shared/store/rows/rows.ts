/** Rows of `version` as values, and what of them a Principal may see. */
import { hasMasks, hiddenFields, isMasked, masked, strip } from '../../access/fields/fields.ts'
import type { Principal } from '../../access/principal.ts'
import { typeName } from '../../fhir/definitions.ts'
import { parseJson } from '../../fhir/json.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { extendedText, idOf } from './content.ts'
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

/** `id` is needed for deletions, whose rows have no content to read it from. */
/**
 * Joins rows `r` of `resource` with their versions, as `v`. The order and the limit leave PostgreSQL the primary key
 * alone: as a plain join it takes an index of all versions of a type as long as `version` was never analyzed.
 */
export const WITH_VERSIONS = `cross join lateral (select * from version c where c.project = r.project
    and c.type = r.type and c.id = r.id and c.ver <= r.ver order by c.ver desc limit 1) v`

export function toVersion(row: VersionRow, id?: string): Version {
  return {
    type: typeName(row.type),
    id: id ?? idOf(row.content ?? ''),
    ver: row.ver,
    lastUpdated: row.lu,
    content: row.content ?? undefined,
    metaAt: row.meta_at,
    metaExtension: row.meta_ext,
  }
}

/** The stored resource with its platform meta; throws for a deletion. */
export function parseVersion(version: Version): Resource {
  // Our own text, checked when it was written.
  return parseJson(extendedText(version)) as Resource
}

/**
 * The text a Principal is shown: the stored one as it is, except for types that hold secrets.
 * `extended` adds the platform meta (`X-Medplum: extended`).
 */
export function present(version: Version, principal: Principal, extended: boolean): string {
  const text = extended ? extendedText(version) : (version.content ?? '')
  const hidden = hiddenFields(principal, version.type)
  const { viewer, author } = seenAs(version, principal)
  const isMasked = hasMasks(version.type, viewer, author)
  if (hidden.length === 0 && !isMasked) return text
  const shown = strip(parseJson(text) as Resource, hidden)
  return JSON.stringify(isMasked ? masked(shown, viewer, author) : shown)
}

/** The reader of a version with secrets, and its author: in another Project nobody is an admin or an author. */
function seenAs({ type, metaExtension }: Version, principal: Principal) {
  if (!isMasked(type)) return { viewer: principal, author: undefined }
  const { project, author } = JSON.parse(`{${metaExtension}}`) as Meta
  const isHere = principal.isSuperAdmin || project === principal.project.id
  return isHere
    ? { viewer: principal, author: author?.reference }
    : { viewer: { ...principal, isProjectAdmin: false }, author: undefined }
}
