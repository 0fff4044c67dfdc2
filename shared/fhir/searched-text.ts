/** Normalises text for string searches. https://hl7.org/fhir/R4/search.html#string */

import { isObject, type Resource } from './resource.ts'
import { ASCII } from './values.ts'

/** UTF-16 units per row: a B-tree entry has at most 2,704 bytes. */
const MOST = 600
const STEP = 300
/** Any substring of this length of a long text lies within one of its chunks. */
const WINDOW = 250

/** Marks a chunk that continues in the next one; never part of compared text. */
const GOES_ON = '\u0001'

const NONE: readonly never[] = []

interface SearchedText {
  /** Where it begins, as it is sorted by. */
  readonly start: string
  /** Words other than the first of `start`. */
  readonly words: readonly string[]
  readonly chunks: readonly string[]
}

/** Words of letters and digits separated by single spaces; punctuation-only text is kept. */
export function comparedText(text: string): string {
  const folded = fold(text)
  if (ONE_WORD.test(folded)) return folded
  const words = blanks(folded.replace(PUNCTUATION, ''))
  return words === '' ? blanks(folded) : words
}

export function comparedWords(text: string): readonly string[] {
  return [...new Set(comparedText(text).split(' '))].map(cut)
}

export function searchedText(text: string): SearchedText {
  const whole = comparedText(text)
  const isShort = whole.length <= MOST
  const parts = hasInnerPunctuation(text) ? punctuatedParts(text) : NONE
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

/** Splits a compared text into windows that each lie within one chunk of any value that contains the text. */
export function splitWindows(compared: string): readonly string[] {
  if (compared.length <= WINDOW) return [compared]
  const windows: string[] = []
  for (let at = 0; at + WINDOW < compared.length; at += WINDOW) {
    windows.push(whole(compared.slice(at, at + WINDOW)))
  }
  return [...windows, whole(compared.slice(-WINDOW))]
}

/** Removes case, accents, apostrophes and invisible characters. */
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

const ONE_WORD = /^[a-z0-9]*$/
const PUNCTUATION = /[\p{P}\p{S}]+/gu
const UNSEEN = /['’‘ʼ´\p{Cf}]+/gu
/** Includes NUL, which PostgreSQL text cannot hold. */
const BLANKS = /[\s\p{Cc}]+/gu

function blanks(text: string): string {
  return text.replace(BLANKS, ' ').trim()
}

/** True for punctuation within a word: `Smith-Jones` is indexed as `smithjones` and as both names. */
function hasInnerPunctuation(text: string): boolean {
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

/** Drops lone surrogates that a cut left at the ends. */
function whole(text: string): string {
  return text.replace(/^[\udc00-\udfff]|[\ud800-\udbff]$/g, '')
}

// Full text of a resource for `_text` and `_content`. https://hl7.org/fhir/R4/search.html#content

export interface ResourceText {
  readonly narrative: string
  readonly content: string
}

/** Longer text is indexed up to here: a PostgreSQL tsvector holds at most 1 MB. */
const MAX_TEXT = 100_000

/** Elements without searchable words: links, types, encoded data. */
const SILENT: ReadonlySet<string> = new Set([
  'resourceType',
  'id',
  'meta',
  'data',
  'contentType',
  'system',
  'url',
  'reference',
  'profile',
  'instantiatesCanonical',
])

export function extractResourceText(resource: Resource): ResourceText {
  const narrative = isObject(resource.text) ? resource.text.div : undefined
  return {
    narrative: words(typeof narrative === 'string' ? withoutTags(narrative) : ''),
    content: words(collectText(resource)),
  }
}

/** Normalises a query for `websearch_to_tsquery`: quotes make a phrase, a leading hyphen excludes. */
export function wordsQuery(text: string): string {
  return plain(text)
    .replace(/(?<=[\p{L}\p{N}])-/gu, ' ')
    .replace(/[^\p{L}\p{N}"-]+/gu, ' ')
}

// PostgreSQL's parser would treat URLs, paths and hyphenated words as single words.
const words = (text: string) => plain(text).replace(/[^\p{L}\p{N}]+/gu, ' ')

function plain(text: string): string {
  const start = text
    .slice(0, MAX_TEXT)
    .normalize('NFKD')
    .replace(/\p{M}+/gu, '')
  return start.toLowerCase().slice(0, MAX_TEXT)
}

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
      // Stops at the next bracket of either kind, so that many opening brackets stay linear.
      .replace(/<[^<>]*>/g, ' ')
      .replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{1,32}));/gi, (_, decimal, hex, name) => {
        if (name !== undefined) return ENTITIES[name] ?? ' '
        const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal)
        return code > 0x10ffff ? ' ' : String.fromCodePoint(code)
      })
  )
}
