/** Text typed by a person → concepts: every word must begin a word of the display, or the code. */
import { normaliseString } from '../fhir/values-string.ts'

const MAX_WORDS = 10

/** Words of a text as they are compared: without case and accents. */
export function wordsOf(text: string): readonly string[] {
  return split(normaliseString(text))
}

function split(normalised: string): readonly string[] {
  return normalised.split(/[^\p{L}\p{N}]+/u).filter((word) => word !== '')
}

/** The words of a filter; words beyond the tenth are not looked at. */
export function filterWords(text: string): readonly string[] {
  return [...new Set(wordsOf(text))].slice(0, MAX_WORDS)
}

/** Smaller is better; undefined: no match. */
export type Ranking = (code: string, display: string | undefined) => number | undefined

/** The whole display, its beginning, its first word, any word. */
export function rankingOf(text: string): Ranking {
  const wanted = normaliseString(text)
  const words = filterWords(text)
  const [first = ''] = words
  return (code, display = '') => {
    const shown = normaliseString(display)
    const folded = normaliseString(code)
    if (folded === wanted) return 0
    // Most displays are told apart by this alone, without a look at their words.
    if (!words.every((word) => shown.includes(word) || folded.startsWith(word))) return undefined
    const own = split(shown)
    const isMatch = words.every(
      (word) => folded.startsWith(word) || own.some((item) => item.startsWith(word)),
    )
    if (!isMatch || words.length === 0) return undefined
    if (shown === wanted) return 0
    if (shown.startsWith(wanted)) return 1
    return own[0]?.startsWith(first) ? 2 : 3
  }
}
