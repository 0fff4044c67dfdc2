/** JSON values as the FHIRPath engine must see them: numbers that kept their text become plain ones. */
import { isDecimal } from '../fhir/json.ts'

// What a value became, so that a resource is walked once for all expressions on it.
const plainOf = new WeakMap<object, unknown>()
const sourceOf = new WeakMap<object, unknown>()

/** The same value when no Decimal is in it, otherwise a copy without any. */
export function plain(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value
  if (isDecimal(value)) return value.valueOf()
  const known = plainOf.get(value)
  if (known !== undefined) return known
  const copy = Array.isArray(value) ? plainItems(value) : plainMembers(value)
  plainOf.set(value, copy)
  if (copy !== value) {
    plainOf.set(copy, copy)
    sourceOf.set(copy, value)
  }
  return copy
}

/** The value that `plain` was given, Decimals and all, for one that came out of the engine. */
export function sourceOfPlain(value: unknown): unknown {
  return typeof value === 'object' && value !== null ? (sourceOf.get(value) ?? value) : value
}

function plainItems(items: readonly unknown[]): readonly unknown[] {
  const copies = items.map(plain)
  return copies.some((copy, index) => copy !== items[index]) ? copies : items
}

function plainMembers(value: object): object {
  const entries = Object.entries(value)
  const copies = entries.map(([key, member]) => [key, plain(member)] as const)
  const isSame = copies.every(([, copy], index) => copy === entries[index]?.[1])
  return isSame ? value : Object.fromEntries(copies)
}
