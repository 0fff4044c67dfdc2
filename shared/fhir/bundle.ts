/** Bundles as text: stored resource text is copied in, never parsed. https://hl7.org/fhir/R4/bundle.html */

import { parseJson } from './json.ts'

export interface Link {
  readonly relation: 'self' | 'first' | 'next' | 'previous'
  readonly url: string
}

type BundleType =
  | 'searchset'
  | 'history'
  | 'batch-response'
  | 'transaction-response'
  | 'transaction'
  | 'collection'
  | 'document'

export interface BundleHead {
  readonly type: BundleType
  /** `identifier` and `timestamp`. */
  readonly members?: Readonly<Record<string, unknown>> | undefined
  readonly total?: number | undefined
  readonly links: readonly Link[]
}

export interface SearchEntry {
  readonly fullUrl: string
  readonly resource: string
  readonly mode: 'match' | 'include' | 'outcome'
  /** From 0 to 1. */
  readonly score?: number | undefined
}

interface HistoryEntry {
  readonly fullUrl: string
  readonly method: 'POST' | 'PUT' | 'DELETE'
  readonly url: string
  readonly location: string
  readonly etag: string
  readonly lastModified: string
  /** JSON text; undefined for a deletion. */
  readonly resource: string | undefined
}

export interface ResponseEntry {
  readonly status: number
  readonly location?: string | undefined
  readonly etag?: string | undefined
  readonly lastModified?: string | undefined
  /** JSON text of an OperationOutcome. */
  readonly outcome?: string | undefined
  readonly resource?: string | undefined
}

export function searchBundle(head: BundleHead, entries: readonly SearchEntry[]): string {
  return bundleText(head, entries.map(searchEntry))
}

/** Yields the text of `bundleText` in pieces of about 64 kB, smaller if entries are slow; entries are read lazily. */
export function* bundlePieces(
  head: BundleHead,
  entries: Iterable<string>,
  isIndented: boolean,
): Iterable<string> {
  let piece = ''
  let began = performance.now()
  for (const part of (isIndented ? indentedParts : bundleParts)(head, entries)) {
    piece += part
    if (piece.length < PIECE && performance.now() - began < PIECE_MS) continue
    yield piece
    piece = ''
    began = performance.now()
  }
  if (piece !== '') yield piece
}

const PIECE = 65_536
const PIECE_MS = 4

export function searchEntry({ fullUrl, resource, mode, score }: SearchEntry): string {
  // An outcome about the search has no address on the server.
  if (mode === 'outcome') return `{"search":{"mode":"outcome"},"resource":${resource}}`
  const search = score === undefined ? `{"mode":"${mode}"}` : `{"mode":"${mode}","score":${score}}`
  return `{"fullUrl":${JSON.stringify(fullUrl)},"search":${search},"resource":${resource}}`
}

export function plainBundle(
  type: 'collection' | 'searchset' | 'document',
  entries: readonly Omit<SearchEntry, 'mode'>[],
  members?: BundleHead['members'],
): string {
  return bundleText(
    { type, members, links: [] },
    entries.map(
      ({ fullUrl, resource }) => `{"fullUrl":${JSON.stringify(fullUrl)},"resource":${resource}}`,
    ),
  )
}

/** `entries` are JSON texts. Concatenated, not joined: V8 flattens the string once, when it is read. */
export function bundleText(head: BundleHead, entries: Iterable<string>): string {
  let text = ''
  for (const part of bundleParts(head, entries)) text += part
  return text
}

function* bundleParts({ type, members: own, total, links }: BundleHead, entries: Iterable<string>) {
  const members = [`"resourceType":"Bundle"`, `"type":"${type}"`]
  if (own !== undefined) members.push(JSON.stringify(own).slice(1, -1))
  if (total !== undefined) members.push(`"total":${total}`)
  if (links.length > 0) members.push(`"link":${JSON.stringify(links)}`)
  yield `{${members.join(',')}`
  let before = ',"entry":['
  for (const entry of entries) {
    yield before + entry
    before = ','
  }
  yield before === ',' ? ']}' : '}'
}

function* indentedParts({ type, total, links }: BundleHead, entries: Iterable<string>) {
  const link = links.length === 0 ? undefined : links
  yield indent({ resourceType: 'Bundle', type, total, link }).slice(0, -'\n}'.length)
  let before = ',\n  "entry": [\n    '
  for (const entry of entries) {
    yield before + indent(parseJson(entry)).replaceAll('\n', '\n    ')
    before = ',\n    '
  }
  yield before === ',\n    ' ? '\n  ]\n}' : '\n}'
}

function indent(value: unknown): string {
  return JSON.stringify(value, null, 2)
}

export function historyEntry(entry: HistoryEntry): string {
  const { fullUrl, method, url, location, etag, lastModified, resource } = entry
  const isDeletion = resource === undefined
  const response = {
    status: isDeletion ? '410' : method === 'POST' ? '201' : '200',
    ...(isDeletion ? { outcome: deletionOutcome(lastModified) } : {}),
    location,
    etag,
    lastModified,
  }
  const head = `"fullUrl":${JSON.stringify(fullUrl)},"request":${JSON.stringify({ method, url })}`
  const tail = isDeletion ? '' : `,"resource":${resource}`
  return `{${head},"response":${JSON.stringify(response)}${tail}}`
}

function deletionOutcome(instant: string): object {
  const text = `Deleted on ${instant}`
  const issue = [{ severity: 'error', code: 'deleted', details: { text } }]
  return { resourceType: 'OperationOutcome', id: 'gone', issue }
}

export function responseEntry(entry: ResponseEntry): string {
  const { status, location, etag, lastModified, outcome, resource } = entry
  const plain = JSON.stringify({ status: String(status), location, etag, lastModified })
  const response = outcome === undefined ? plain : `${plain.slice(0, -1)},"outcome":${outcome}}`
  return `{"response":${response}${resource === undefined ? '' : `,"resource":${resource}`}}`
}
