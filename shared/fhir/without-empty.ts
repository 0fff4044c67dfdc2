/** Cleaning of input in projects without strict mode: what is empty was never sent. */
import { isDecimal } from './json.ts'
import type { Resource } from './resource.ts'

/** The resource without nulls, blank strings, empty arrays and empty objects; the same object when it has none. */
export function withoutEmpty(resource: Resource): Resource {
  // The type is never empty, so the result is still a resource.
  return (clean(resource) ?? { resourceType: resource.resourceType }) as Resource
}

function clean(value: unknown): unknown {
  if (value === null || (typeof value === 'string' && !/\S/.test(value))) return undefined
  if (typeof value !== 'object' || isDecimal(value)) return value
  if (!Array.isArray(value)) return cleanMembers(value as Readonly<Record<string, unknown>>)
  const kept = value.map(clean).filter((item) => item !== undefined)
  return kept.length === 0 ? undefined : unlessSame(value, kept)
}

function cleanMembers(value: Readonly<Record<string, unknown>>): unknown {
  let changed: Map<string, unknown> | undefined
  let isEmpty = true
  for (const key in value) {
    const item = value[key]
    const cleaned = hasTwin(value, key) ? cleanInPlace(item) : clean(item)
    if (cleaned !== undefined) isEmpty = false
    if (cleaned === item) continue
    changed ??= new Map()
    changed.set(key, cleaned)
  }
  if (isEmpty) return undefined
  if (changed === undefined) return value
  const members = Object.entries(value).map(([key, item]) =>
    changed.has(key) ? [key, changed.get(key)] : [key, item],
  )
  return Object.fromEntries(members.filter(([, item]) => item !== undefined))
}

function hasTwin(value: object, key: string): boolean {
  return key.startsWith('_') || Object.hasOwn(value, `_${key}`)
}

/** Nulls stay where they keep an array of primitives in line with the ids and extensions of `_name`. */
function cleanInPlace(value: unknown): unknown {
  if (!Array.isArray(value)) return clean(value)
  const cleaned = value.map((item) => clean(item) ?? null)
  return cleaned.every((item) => item === null) ? undefined : unlessSame(value, cleaned)
}

function unlessSame(before: readonly unknown[], after: readonly unknown[]): readonly unknown[] {
  const isSame = before.length === after.length && before.every((item, i) => item === after[i])
  return isSame ? before : after
}
