/** The storage of a project in words. */
import { fill, texts } from '../texts/texts.ts'

/** The answer of `admin/projects/:id/storage`. */
export interface Stored {
  readonly versions: number
  readonly bytes: number
  readonly isEstimate: boolean
}

const UNITS = ['B', 'KB', 'MB', 'GB', 'TB'] as const

/** "1.4 MB"; "about 12 GB" of what is not counted. */
export function sizeOf({ bytes, isEstimate }: Stored): string {
  const power = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), UNITS.length - 1)
  const size = `${Number((bytes / 1000 ** power).toPrecision(3))} ${UNITS[power]}`
  return isEstimate ? fill(texts.common.about, { size }) : size
}
