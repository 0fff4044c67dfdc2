/** Changes strings wherever they stand in a resource. */
import { isDecimal } from '../fhir/json.ts'

/** A new text for a string; `name` is the element it stands in. */
export type MapString = (text: string, name: string) => string

/** The same object when nothing changes; what does is copied on its path. */
export function mapStrings<T>(value: T, map: MapString): T {
  // Only strings are replaced, by strings, so the result has the shape of what goes in.
  return mapValue(value, '', map) as T
}

function mapValue(value: unknown, name: string, map: MapString): unknown {
  if (typeof value === 'string') return map(value, name)
  if (typeof value !== 'object' || value === null || isDecimal(value)) return value
  if (Array.isArray(value)) return mapItems(value, name, map)
  // A parser made this value, or a copy of it: its members are its own.
  const members = value as Readonly<Record<string, unknown>>
  let changed: Record<string, unknown> | undefined
  for (const key in members) {
    const item = members[key]
    const mapped = mapValue(item, key, map)
    if (mapped === item) continue
    changed ??= { ...value }
    changed[key] = mapped
  }
  return changed ?? value
}

function mapItems(items: readonly unknown[], name: string, map: MapString): unknown {
  let changed: unknown[] | undefined
  for (const [index, item] of items.entries()) {
    const mapped = mapValue(item, name, map)
    if (mapped === item) continue
    changed ??= [...items]
    changed[index] = mapped
  }
  return changed ?? items
}
