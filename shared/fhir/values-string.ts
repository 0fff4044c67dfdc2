/** How strings are compared: without case, accents and runs of blanks. */

/** Longer values are found by their beginning. */
export const MAX_STRING = 200
const MAX_WORDS = 20

/** NFKD, no marks, lower case, single blanks, trimmed, at most MAX_STRING characters. */
export function normaliseString(text: string): string {
  const start = text.length > MAX_STRING * 4 ? text.slice(0, MAX_STRING * 4) : text
  const plain = PLAIN.test(start) ? start : start.normalize('NFKD').replace(/\p{M}+/gu, '')
  // Control characters go too: PostgreSQL text cannot hold NUL.
  const spaced = plain
    .toLowerCase()
    .replace(/[\s\p{Cc}]+/gu, ' ')
    .trim()
  return spaced.length > MAX_STRING ? spaced.slice(0, MAX_STRING).toWellFormed().trimEnd() : spaced
}

/** Letters and digits only, in words parted by single blanks: what `:text` of a token compares. */
export function plainWords(text: string): string {
  return normaliseString(text)
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim()
}

/** Words of a normalised string after its first, which the string itself begins with. */
export function laterWords(normalised: string): readonly string[] {
  if (!normalised.includes(' ')) return []
  return normalised.split(' ', MAX_WORDS + 1).slice(1)
}

const PLAIN = /^[\x20-\x7e]*$/
