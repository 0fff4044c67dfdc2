/**
 * The stored text of a version. PostgreSQL sets `meta.lastUpdated` inside the writing statement, so
 * the text is made in two pieces with the time between them:
 *
 *   {"resourceType":"T","id":"1","meta":{"versionId":"3","lastUpdated":" time ","profile":[…]},…}
 *   |------------------------- head ----------------------------------|      |----- tail ------|
 *
 * Platform meta (project, author, accounts, compartment) stays out of it, as JSON members of their
 * own that are spliced in before the closing brace of `meta` (`metaAt`) for extended replies.
 */
import { badRequest } from '../../errors.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'

export interface Content {
  readonly head: string
  readonly tail: string
  /** Offset of the closing brace of `meta`, in UTF-16 units as `String.slice` counts. */
  readonly metaAt: number
}

/** `2026-01-31T12:00:00.000Z` */
const TIME_LENGTH = 24

/** Throws 400 for a NUL in any string: neither PostgreSQL nor a C client can hold it. */
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
export function tailOf(content: string, type: string, id: string, ver: number): string {
  return content.slice(composeHead(type, id, ver).length + TIME_LENGTH)
}

/** Every stored text starts with its type and id, so the id is read without a parse. */
export function idOf(content: string): string {
  const start = content.indexOf('"id":"') + 6
  return content.slice(start, content.indexOf('"', start))
}

/** Content with the platform meta in it, as `X-Medplum: extended` shows it. */
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

/** Meta without what the server sets itself. */
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
