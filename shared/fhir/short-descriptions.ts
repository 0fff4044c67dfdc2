/** What the standard says of types and elements in a few words. */
import type { ShortsLine } from './definitions-data.ts'
import { openLines, openOnce } from './definitions-lines.ts'

/** Of a type, or of the element at a path below it; undefined where nothing is said. */
export function shortText(type: string, path = ''): string | undefined {
  return lines().get(type)?.texts[path]
}

const lines = openOnce(() => openLines<ShortsLine>('shorts', 'name'))
