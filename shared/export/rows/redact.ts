/** Redacts lines for the member. Only hidden elements, `_elements` and Binary URLs change the stored text. */
import {
  hasSecretExtensions,
  hiddenFields,
  secretPaths,
  withoutSecretExtensions,
} from '../../access/fields/fields.ts'
import { grantsFor } from '../../access/policy.ts'
import { typeElements } from '../../fhir/definitions.ts'
import { parseJson } from '../../fhir/json.ts'
import type { Resource } from '../../fhir/resource.ts'
import { parseView, type View } from '../../fhir/view.ts'
import { type Slice, sliceToBuffer, toSlice } from '../../outbound/storage/storage.ts'
import { redactFor } from '../../store/read/read.ts'
import type { Version } from '../../store/rows/version.ts'
import type { ElementChoice } from './jobs.ts'
import type { Selection } from './select.ts'

export interface Redaction {
  readonly type: string
  /** Only hidden elements need the platform meta; omitting it saves transfer. */
  readonly needsMeta: boolean
  /** Converts a row of `copySql` to a line without line feed. Throws for invalid resources. */
  show(content: Slice, metaExtension: Slice, ruling: number | undefined): Slice
}

export function compileRedaction(
  selection: Selection,
  elements: readonly ElementChoice[],
  baseUrl: string,
): Redaction {
  const { type } = selection.scope
  const absolute = absoluteBinaries(baseUrl)
  const change = compileMasking(selection)
  const view = elementsView(type, elements)
  if (change === undefined && view === undefined) {
    return { type, needsMeta: false, show: (content) => absolute(wholeObject(content)) }
  }
  return {
    type,
    needsMeta: change !== undefined,
    show(content, metaExtension, ruling) {
      const text = sliceToBuffer(content).toString()
      const changed = change?.(text, sliceToBuffer(metaExtension).toString(), ruling) ?? text
      return absolute(toSlice(Buffer.from(view?.(changed) ?? changed)))
    },
  }
}

/** Checks the ends of the text instead of parsing it. */
function wholeObject(content: Slice): Slice {
  const { bytes, start, end } = content
  if (end > start && bytes[start] === OPENING && bytes[end - 1] === CLOSING) return content
  throw new SyntaxError('The content is not a JSON object')
}

const [OPENING, CLOSING] = Buffer.from('{}')

function elementsView(type: string, elements: readonly ElementChoice[]): View | undefined {
  const names = elements.filter((one) => one.type === undefined || one.type === type)
  if (names.length === 0) return undefined
  // Names of elements of other types have no effect, and a view may name only some.
  const roots = new Set(typeElements(type).map(({ path }) => path.replace('[x]', '')))
  const own = names.map(({ name }) => name).filter((name) => roots.has(name))
  const list = ['id', ...own].join(',')
  return parseView(type, new URLSearchParams({ _elements: list }))
}

type Change = (content: string, metaExtension: string, ruling: number | undefined) => string

function compileMasking({ principal, scope, ruled }: Selection): Change | undefined {
  const { type } = scope
  const grants = grantsFor(principal, type, 'search') ?? []
  const secrets = secretPaths(type)
  const all = [...grants.flatMap(({ hidden }) => hidden), ...secrets]
  const hasSecrets = hasSecretExtensions(type)
  if (all.length === 0 && !hasSecrets && hiddenFields(principal, type).length === 0) {
    return undefined
  }
  const alike = [...(grants[0]?.hidden ?? []), ...secrets]
  const byGrant = ruled?.map(({ hidden }) => [...hidden, ...secrets])
  return (content, metaExtension, ruling) => {
    const version: Version = {
      type,
      id: '',
      ver: 0,
      lastUpdated: new Date(0),
      content,
      metaAt: 0,
      metaExtension,
    }
    // A row that no grant governs any more shows only the elements that all grants show.
    const hidden = byGrant === undefined ? alike : (byGrant[ruling ?? -1] ?? all)
    const text = redactFor(principal, version, hidden).content ?? ''
    if (!hasSecrets) return text
    // Our own text, validated when written.
    return JSON.stringify(withoutSecretExtensions(parseJson(text) as Resource))
  }
}

/** Without the leading quotation mark: its first byte is so frequent that the search would be slow. */
const MARK = Buffer.from('Binary/')
const MEMBER = /("(?:url|path)":\s*)"(Binary\/[A-Za-z0-9\-.]{1,64})"/g

/** Attachments hold relative URLs, which are useless outside this server. */
function absoluteBinaries(baseUrl: string): (content: Slice) => Slice {
  const base = JSON.stringify(`${baseUrl}fhir/R4/`).slice(0, -1)
  return (content) => {
    const bytes = sliceToBuffer(content)
    if (!bytes.includes(MARK)) return content
    return toSlice(Buffer.from(bytes.toString().replace(MEMBER, `$1${base}$2"`)))
  }
}
