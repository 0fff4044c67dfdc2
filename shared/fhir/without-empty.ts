/** Cleaning of input in projects without strict mode: what is empty was never sent. */
import { isDecimal } from './json.ts'
import type { Resource } from './resource.ts'

/** A copy without nulls, blank strings, empty arrays and empty objects. */
export function withoutEmpty(resource: Resource): Resource {
  // The type is never empty, so the result is still a resource.
  return (clean(resource) ?? { resourceType: resource.resourceType }) as Resource
}

function clean(value: unknown): unknown {
  if (value === null || (typeof value === 'string' && !/\S/.test(value))) return undefined
  if (typeof value !== 'object' || isDecimal(value)) return value
  if (Array.isArray(value)) {
    const kept = value.map(clean).filter((item) => item !== undefined)
    return kept.length === 0 ? undefined : kept
  }
  const entries: [string, unknown][] = Object.entries(value)
  const kept = entries.flatMap(([key, item]) => {
    const cleaned = hasTwin(value, key) ? cleanInPlace(item) : clean(item)
    return cleaned === undefined ? [] : [[key, cleaned] as const]
  })
  return kept.length === 0 ? undefined : Object.fromEntries(kept)
}

function hasTwin(value: object, key: string): boolean {
  return key.startsWith('_') || Object.hasOwn(value, `_${key}`)
}

/** Nulls stay where they keep an array of primitives in line with the ids and extensions of `_name`. */
function cleanInPlace(value: unknown): unknown {
  if (!Array.isArray(value)) return clean(value)
  const cleaned = value.map((item) => clean(item) ?? null)
  return cleaned.every((item) => item === null) ? undefined : cleaned
}
