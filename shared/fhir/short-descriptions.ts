/** Short descriptions of types and elements, in the words of the standard. */
import type { ShortsLine } from './definitions-data.ts'
import { openLines, openOnce } from './definitions-lines.ts'

/** Returns the text of a type, or of the element at a path below it; undefined where there is none. */
export function shortText(type: string, path = ''): string | undefined {
  return lines().get(type)?.texts[path]
}

const lines = openOnce(() => openLines<ShortsLine>('shorts', 'name'))
