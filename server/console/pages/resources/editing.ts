/** Changes of a record that is edited, what saving it would remove, and how it meets a newer version. */

export type Values = Readonly<Record<string, unknown>>

/** An emptied element stays, as `''`, until it is saved or removed. */
export function withElement(value: Values, name: string, next: unknown): Values {
  return { ...value, [name]: next }
}

/** Removes an element with its extensions, which lie beside a primitive: https://hl7.org/fhir/R4/json.html#primitive */
export function withoutElement(value: Values, name: string): Values {
  const { [name]: _, [`_${name}`]: __, ...others } = value
  return others
}

/** Removes one item of a list; the last one takes the list with it. */
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

/** The record as it is sent: without what was left empty. Items keep their places beside their extensions. */
export function pruned<T extends object>(record: T): T {
  const value = Object.fromEntries(Object.entries(record))
  const entries = Object.entries(value).flatMap(([name, own]) => {
    const next = Array.isArray(own) ? prunedList(value, name) : prunedValue(own)
    return next === undefined ? [] : [[name, next] as const]
  })
  // Elements are left out, none changes its type.
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
  // A stored list of nulls holds the places of extensions; one that the person has emptied goes.
  const holdsPlaces = places.length > 0 && listAt(value, name).every((item) => item === null)
  if (isEmpty && (name.startsWith('_') || !holdsPlaces)) return undefined
  return places.map((place) => items[place] ?? null)
}

export interface Removal {
  /** Such as `name[0].given`, by the places that items had before. */
  readonly path: string
  readonly value: unknown
}

/** The service writes these of `meta` by itself. */
const WRITTEN_BY_SERVICE = ['versionId', 'lastUpdated', 'author', 'project', 'compartment']

/** Elements of a record that the changed one lacks, each once, at its highest place. */
export function removalsBetween(before: object, after: object): readonly Removal[] {
  return removals(withoutService(before), withoutService(after), '')
}

function withoutService(record: object): Values {
  const { meta, ...others }: Values = { ...record }
  if (!isObject(meta)) return others
  const given = Object.entries(meta).filter(([name]) => !WRITTEN_BY_SERVICE.includes(name))
  return given.length === 0 ? others : { ...others, meta: Object.fromEntries(given) }
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

/** Items that are in both lists stay; of the others, each goes on as the one that lacks the least of it. */
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

interface Versions<T> {
  /** The version that the person began with. */
  readonly base: T
  readonly mine: T
  readonly newest: T
}

/** The newest version with the elements that the person has changed. */
export function merged<T extends object>({ base, mine, newest }: Versions<T>): T {
  const names = changedNames(base, mine)
  const kept = Object.entries(newest).filter(([name]) => !names.has(plain(name)))
  const typed = Object.entries(mine).filter(([name]) => names.has(plain(name)))
  // Both are versions of one record.
  return Object.fromEntries([...kept, ...typed]) as T
}

/** Elements that both have changed, and not alike. */
export function conflicts<T extends object>({ base, mine, newest }: Versions<T>): string[] {
  const theirs = changedNames(base, newest)
  const different = changedNames(mine, newest)
  return [...changedNames(base, mine)].filter((name) => theirs.has(name) && different.has(name))
}

/** A primitive and its extensions count as one element. */
function changedNames(before: object, after: object): ReadonlySet<string> {
  const [old, young]: readonly Values[] = [{ ...before }, { ...after }]
  const names = Object.keys({ ...old, ...young }).filter((name) => name !== 'meta')
  return new Set(
    names.filter((name) => canonicalText(old?.[name]) !== canonicalText(young?.[name])).map(plain),
  )
}

function plain(name: string): string {
  return name.replace(/^_/, '')
}

function canonicalText(value: unknown): string {
  return JSON.stringify(value) ?? ''
}

function isObject(value: unknown): value is Values {
  return Object.getPrototypeOf(value ?? 0) === Object.prototype
}
