/** Edits of a record: changes, removals on save, and restored versions. */
import { isObject, ownMeta, type Values } from '../../client/merging.ts'

/** An emptied element stays as `''` until saved or removed. */
export function withElement(value: Values, name: string, next: unknown): Values {
  return { ...value, [name]: next }
}

/**
 * Removes an element with its extensions, in the sibling property of a primitive:
 * https://hl7.org/fhir/R4/json.html#primitive
 */
export function withoutElement(value: Values, name: string): Values {
  const { [name]: _, [`_${name}`]: __, ...others } = value
  return others
}

/** Removes one item of a list, and the list with its last item. */
export function withoutItem(value: Values, name: string, place: number): Values {
  const items = listAt(value, name).toSpliced(place, 1)
  if (items.length === 0) return withoutElement(value, name)
  const besides = listAt(value, `_${name}`)
  const extensions = besides.length > place ? { [`_${name}`]: besides.toSpliced(place, 1) } : {}
  return { ...value, [name]: items, ...extensions }
}

function listAt(value: Values, name: string): readonly unknown[] {
  const list = value[name]
  return Array.isArray(list) ? list : []
}

/** Returns the record without empty values, for sending. Items keep their positions relative to extensions. */
export function pruned<T extends object>(record: T): T {
  const value = Object.fromEntries(Object.entries(record))
  const entries = Object.entries(value).flatMap(([name, own]) => {
    const next = Array.isArray(own) ? prunedList(value, name) : prunedValue(own)
    return next === undefined ? [] : [[name, next] as const]
  })
  return Object.fromEntries(entries) as T
}

function prunedValue(value: unknown): unknown {
  if (value === '' || value === null) return undefined
  if (Array.isArray(value)) return prunedList({ value }, 'value')
  if (!isObject(value)) return value
  const next = pruned(value)
  return Object.keys(next).length === 0 ? undefined : next
}

function prunedList(value: Values, name: string): unknown {
  const items = listAt(value, name).map(prunedValue)
  const beside = name.startsWith('_') ? name.slice(1) : `_${name}`
  const others = listAt(value, beside).map(prunedValue)
  const length = Math.max(items.length, others.length)
  const kept = Array.from({ length }, (_, place) => place).filter(
    (place) => items[place] !== undefined || others[place] !== undefined,
  )
  const places = kept.filter((place) => place < items.length)
  const isEmpty = places.every((place) => items[place] === undefined)
  // A stored list of nulls holds the positions of extensions; an emptied one is dropped.
  const holdsPlaces = places.length > 0 && listAt(value, name).every((item) => item === null)
  if (isEmpty && (name.startsWith('_') || !holdsPlaces)) return undefined
  return places.map((place) => items[place] ?? null)
}

export interface Removal {
  /** Such as `name[0].given`, by original positions. */
  readonly path: string
  readonly value: unknown
}

/** Returns elements missing from the changed record, each once, at its highest path. */
export function removalsBetween(before: object, after: object): readonly Removal[] {
  return removals(withoutService(before), withoutService(after), '')
}

/** Returns the record without the elements of `meta` that the service writes. */
export function withoutService(record: object): Values {
  const { meta: _, ...others }: Values = { ...record }
  const meta = ownMeta(record)
  return Object.keys(meta).length === 0 ? others : { ...others, meta }
}

/** Returns an older version as it is sent to restore it: its accounts, which decide on access, stay the newest ones. */
export function restored(record: object): Values {
  const { account: _, accounts: __, ...meta } = ownMeta(record)
  return withoutService({ ...record, meta })
}

function removals(before: unknown, after: unknown, path: string): readonly Removal[] {
  if (before === undefined || before === null) return []
  if (after === undefined || after === null) return [{ path, value: before }]
  if (Array.isArray(before)) {
    return Array.isArray(after) ? itemRemovals(before, after, path) : [{ path, value: before }]
  }
  if (!isObject(before)) return []
  if (!isObject(after)) return [{ path, value: before }]
  return Object.entries(before).flatMap(([name, value]) =>
    removals(value, after[name], path === '' ? name : `${path}.${name}`),
  )
}

/** Items in both lists stay; the others are paired by least loss. */
function itemRemovals(before: unknown[], after: unknown[], path: string): readonly Removal[] {
  const rest = after.map(canonicalText)
  const left = before.flatMap((item, place) => {
    if (item === null) return []
    const same = rest.indexOf(canonicalText(item))
    if (same < 0) return [{ item, path: `${path}[${place}]` }]
    rest.splice(same, 1)
    return []
  })
  const found: Removal[] = []
  const changed = rest.map((text): unknown => JSON.parse(text))
  for (const next of changed) {
    const lost = left.map(({ item, path }) => removals(item, next, path))
    const least = lost.reduce((best, one, place) => {
      return one.length < (lost[best]?.length ?? 0) ? place : best
    }, 0)
    found.push(...(lost[least] ?? []))
    left.splice(least, 1)
  }
  return [...found, ...left.map(({ item, path }) => ({ path, value: item }))]
}

function canonicalText(value: unknown): string {
  return JSON.stringify(value) ?? ''
}
