/** The product's version, as in package.json. */
import { readFileSync } from 'node:fs'

export function productVersion(): string {
  const file = new URL('../../package.json', import.meta.url)
  const parsed: unknown = JSON.parse(readFileSync(file, 'utf8'))
  return String((parsed as { version?: unknown }).version)
}
