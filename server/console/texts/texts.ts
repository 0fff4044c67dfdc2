/**
 * Texts of the console, and formatted sizes. Another language is another file with the same keys. The files
 * next to `en.json` have those that only their pages load.
 */
import en from './en.json' with { type: 'json' }

export const texts = en

export function fill(text: string, values: Readonly<Record<string, string | number>>): string {
  return text.replace(/\{(\w+)\}/g, (place, name: string) => String(values[name] ?? place))
}

export interface Stored {
  readonly versions: number
  readonly bytes: number
  readonly isEstimate: boolean
}

const UNITS = ['B', 'KB', 'MB', 'GB', 'TB'] as const

/** "1.4 MB"; "about 12 GB" for an estimate. */
export function formatStoredSize({ bytes, isEstimate }: Stored): string {
  const power = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), UNITS.length - 1)
  const size = `${Number((bytes / 1000 ** power).toPrecision(3))} ${UNITS[power]}`
  return isEstimate ? fill(texts.common.about, { size }) : size
}
