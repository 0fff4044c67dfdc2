/**
 * Texts as string searches compare them: without case, accents and punctuation, by words.
 * https://hl7.org/fhir/R4/search.html#string
 */
import { isObject, type Resource } from './resource.ts'

/** The UTF-16 units of a row: an entry of a B-tree has at most 2,704 bytes. */
const MOST = 600
const STEP = 300
/** A text of this length that stands in a long one stands in one of its chunks. */
const WINDOW = 250

/** Ends what goes on in the next chunk; no compared text holds it. */
const GOES_ON = '\u0001'

const NONE: readonly never[] = []

interface SearchedText {
  /** Where it begins, as it is sorted by. */
  readonly start: string
  /** Each word that `start` does not begin with. */
  readonly words: readonly string[]
  /** The rest of a long text, in chunks that overlap. */
  readonly chunks: readonly string[]
}

/** Words of letters and digits parted by single blanks; a text of punctuation alone is itself. */
export function comparedText(text: string): string {
  const folded = fold(text)
  if (ONE_WORD.test(folded)) return folded
  const words = blanks(folded.replace(PUNCTUATION, ''))
  return words === '' ? blanks(folded) : words
}

/** The words that a search for a text looks for. */
export function comparedWords(text: string): readonly string[] {
  return [...new Set(comparedText(text).split(' '))].map(cut)
}

export function searchedText(text: string): SearchedText {
  const whole = comparedText(text)
  const isShort = whole.length <= MOST
  const parts = isParted(text) ? punctuatedParts(text) : NONE
  if (isShort && parts.length === 0 && !whole.includes(' ')) {
    return { start: whole, words: NONE, chunks: NONE }
  }
  const words = new Set([...whole.split(' ').slice(1), ...parts].map(cut))
  return {
    start: isShort ? whole : chunkAt(whole, 0),
    words: [...words].filter((word) => !whole.startsWith(word)),
    chunks: isShort ? NONE : overlappingChunks(whole),
  }
}

/** Texts that stand in one chunk each where all of a compared text stands in a value. */
export function splitWindows(compared: string): readonly string[] {
  if (compared.length <= WINDOW) return [compared]
  const windows: string[] = []
  for (let at = 0; at + WINDOW < compared.length; at += WINDOW) {
    windows.push(whole(compared.slice(at, at + WINDOW)))
  }
  return [...windows, whole(compared.slice(-WINDOW))]
}

/** Case, accents, apostrophes and what is not seen do not count. */
function fold(text: string): string {
  if (ASCII.test(text)) return text.toLowerCase().replaceAll("'", '')
  return text
    .replace(UNSEEN, '')
    .normalize('NFKD')
    .replace(/\p{M}+/gu, '')
    .toUpperCase()
    .toLowerCase()
    .toWellFormed()
}

const ASCII = /^[\x20-\x7e]*$/
const ONE_WORD = /^[a-z0-9]*$/
const PUNCTUATION = /[\p{P}\p{S}]+/gu
/** Apostrophes and characters of format alone. */
const UNSEEN = /['’‘ʼ´\p{Cf}]+/gu
/** PostgreSQL text cannot hold NUL, either. */
const BLANKS = /[\s\p{Cc}]+/gu

function blanks(text: string): string {
  return text.replace(BLANKS, ' ').trim()
}

/** Punctuation within a word: `Smith-Jones` is `smithjones`, and found by both names, too. */
function isParted(text: string): boolean {
  return /[^\s\p{P}\p{S}][\p{P}\p{S}]+[^\s\p{P}\p{S}]/u.test(text)
}

function punctuatedParts(text: string): readonly string[] {
  return fold(text)
    .split(/[\s\p{Cc}]+/u)
    .map((word) => word.split(PUNCTUATION).filter((part) => part !== ''))
    .filter((parts) => parts.length > 1)
    .flat()
}

function cut(word: string): string {
  return word.length > MOST ? whole(word.slice(0, MOST)) : word
}

function overlappingChunks(text: string): readonly string[] {
  const chunks: string[] = []
  for (let at = STEP; at + MOST - STEP < text.length; at += STEP) chunks.push(chunkAt(text, at))
  return chunks
}

function chunkAt(text: string, at: number): string {
  const chunk = whole(text.slice(at, at + MOST))
  return at + MOST < text.length ? chunk + GOES_ON : chunk
}

/** Without the halves of characters that a cut has left at its ends. */
function whole(text: string): string {
  return text.replace(/^[\udc00-\udfff]|[\ud800-\udbff]$/g, '')
}

// The words of a resource, for `_text` and `_content`. https://hl7.org/fhir/R4/search.html#content

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
export function extractResourceText(resource: Resource): ResourceText {
  const narrative = isObject(resource.text) ? resource.text.div : undefined
  return {
    narrative: words(typeof narrative === 'string' ? withoutTags(narrative) : ''),
    content: words(collectText(resource)),
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
function collectText(resource: Resource): string {
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
