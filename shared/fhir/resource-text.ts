/** The words of a resource, for `_text` and `_content`. https://hl7.org/fhir/R4/search.html#content */
import { isObject, type Resource } from './resource.ts'

/** Parameters of Projects whose words are searched (`Project.setting` `fullTextSearch`). */
export const WORDS: readonly string[] = ['_content', '_text']

export const isOfWords = (code: string): boolean => WORDS.includes(code)

export interface ResourceText {
  /** The words of the narrative. */
  readonly narrative: string
  /** The words of all elements, the narrative included. */
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
  return {
    narrative: words(typeof narrative === 'string' ? withoutTags(narrative) : ''),
    content: words(contentOf(resource)),
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

/** No more of it than is kept. */
function contentOf(resource: Resource): string {
  let content = ''
  for (const text of textsIn(resource)) {
    content += `${text}\n`
    if (content.length > MAX_TEXT) break
  }
  return content
}

function* textsIn(value: unknown): Iterable<string> {
  if (typeof value === 'string') yield value
  else if (Array.isArray(value)) for (const item of value) yield* textsIn(item)
  else if (isObject(value)) {
    for (const [name, member] of Object.entries(value)) {
      if (SILENT.has(name)) continue
      if (name === 'div' && typeof member === 'string') yield withoutTags(member)
      else yield* textsIn(member)
    }
  }
}

const ENTITIES: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"' }

function withoutTags(xhtml: string): string {
  return (
    xhtml
      // Up to the next bracket of any kind: a text of opening ones alone is read once, not once for each.
      .replace(/<[^<>]*>/g, ' ')
      .replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{1,32}));/gi, (_, decimal, hex, name) => {
        if (name !== undefined) return ENTITIES[name] ?? ' '
        const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal)
        return code > 0x10ffff ? ' ' : String.fromCodePoint(code)
      })
  )
}
