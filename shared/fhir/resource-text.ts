/** The words of a resource, for `_text` and `_content`. https://hl7.org/fhir/R4/search.html#content */
import { isObject, type Resource } from './resource.ts'

/** Parameters of Projects whose words are searched (`Project.setting` `fullTextSearch`). */
export const WORDS: readonly string[] = ['_content', '_text']

export const isOfWords = (code: string): boolean => WORDS.includes(code)

export interface ResourceText {
  /** Of the narrative. */
  readonly narrative: string
  /** Of all elements, the narrative included. */
  readonly content: string
}

/** Longer texts are found by their beginning: PostgreSQL keeps 1 MB of words and places. */
const MAX_TEXT = 100_000

/** They name things and say nothing: links, and what no one reads. */
const SILENT: ReadonlySet<string> = new Set([
  ...['resourceType', 'id', 'meta', 'data', 'contentType'],
  ...['system', 'url', 'reference', 'profile', 'instantiatesCanonical'],
])

/** Words as they are compared: of letters and digits, without case and accents. */
export function textOfResource(resource: Resource): ResourceText {
  const narrative = isObject(resource.text) ? resource.text.div : undefined
  const found: string[] = []
  collect(resource, found)
  return {
    narrative: words(typeof narrative === 'string' ? withoutTags(narrative) : ''),
    content: words(found.join('\n')),
  }
}

/**
 * Such words as a query of PostgreSQL's `websearch` syntax: quotes make a phrase, a hyphen before a word
 * excludes it, `or` makes alternatives.
 */
export function wordsQuery(text: string): string {
  return plain(text)
    .replace(/(?<=[\p{L}\p{N}])-/gu, ' ')
    .replace(/[^\p{L}\p{N}"-]+/gu, ' ')
}

// PostgreSQL's parser would take addresses, paths and hyphenated words for one word each.
const words = (text: string) => plain(text).replace(/[^\p{L}\p{N}]+/gu, ' ')

function plain(text: string): string {
  const start = text
    .slice(0, MAX_TEXT)
    .normalize('NFKD')
    .replace(/\p{M}+/gu, '')
  return start.toLowerCase().slice(0, MAX_TEXT)
}

function collect(value: unknown, found: string[]): void {
  if (typeof value === 'string') found.push(value)
  else if (Array.isArray(value)) for (const item of value) collect(item, found)
  else if (isObject(value)) {
    for (const [name, member] of Object.entries(value)) {
      if (SILENT.has(name)) continue
      if (name === 'div' && typeof member === 'string') found.push(withoutTags(member))
      else collect(member, found)
    }
  }
}

const ENTITIES: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"' }

function withoutTags(xhtml: string): string {
  return xhtml
    .replace(/<!--.*?-->|<[^>]*>/gs, ' ')
    .replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (_, decimal, hex, name) => {
      if (name !== undefined) return ENTITIES[name] ?? ' '
      const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal)
      return code > 0x10ffff ? ' ' : String.fromCodePoint(code)
    })
}
