/**
 * Texts as string searches compare them: without case, accents and punctuation, by words.
 * https://hl7.org/fhir/R4/search.html#string
 */

/** The UTF-16 units of a row: an entry of a B-tree has at most 2,704 bytes. */
const MOST = 600
const STEP = 300
/** A text of this length that stands in a long one stands in one of its chunks. */
const WINDOW = 250

/** Ends what goes on in the next chunk; no compared text holds it. */
const GOES_ON = '\u0001'

const NONE: readonly never[] = []

export interface SearchedText {
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
  const parts = isParted(text) ? partsOf(text) : NONE
  if (isShort && parts.length === 0 && !whole.includes(' ')) {
    return { start: whole, words: NONE, chunks: NONE }
  }
  const words = new Set([...whole.split(' ').slice(1), ...parts].map(cut))
  return {
    start: isShort ? whole : chunkAt(whole, 0),
    words: [...words].filter((word) => !whole.startsWith(word)),
    chunks: isShort ? NONE : chunksOf(whole),
  }
}

/** Texts that stand in one chunk each where all of a compared text stands in a value. */
export function windowsOf(compared: string): readonly string[] {
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

function partsOf(text: string): readonly string[] {
  return fold(text)
    .split(/[\s\p{Cc}]+/u)
    .map((word) => word.split(PUNCTUATION).filter((part) => part !== ''))
    .filter((parts) => parts.length > 1)
    .flat()
}

function cut(word: string): string {
  return word.length > MOST ? whole(word.slice(0, MOST)) : word
}

function chunksOf(text: string): readonly string[] {
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
