/** Merges of typed changes with a version that was saved meanwhile. */

export type Values = Readonly<Record<string, unknown>>

export interface Versions<T> {
  readonly base: T
  readonly mine: T
  readonly newest: T
}

const WRITTEN_BY_SERVICE = [
  'versionId',
  'lastUpdated',
  'author',
  'onBehalfOf',
  'project',
  'compartment',
]

/** Returns the elements of `meta` that persons write, such as tags. */
export function ownMeta(record: object): Values {
  const { meta }: Values = { ...record }
  const given = Object.entries(isObject(meta) ? meta : {})
  return Object.fromEntries(given.filter(([name]) => !WRITTEN_BY_SERVICE.includes(name)))
}

/** Applies the changes from `base` to `mine` to the newest version. */
export function merged<T extends object>(versions: Versions<T>): T {
  const record: Values = mergedElements(versions)
  if (!isObject(record.meta)) return record as T
  const { base, mine } = mapVersions(versions, ownMeta)
  const meta = mergedElements({ base, mine, newest: record.meta })
  return { ...record, meta } as unknown as T
}

/** All but `meta`, which stays the newest. */
function mergedElements<T extends object>({ base, mine, newest }: Versions<T>): Values {
  const names = changedNames(base, mine)
  const kept = Object.entries(newest).filter(([name]) => !names.has(plain(name)))
  const typed = Object.entries(mine).filter(([name]) => names.has(plain(name)))
  return Object.fromEntries([...kept, ...typed])
}

/** Returns the elements that both sides changed. */
export function conflicts<T extends object>(versions: Versions<T>): string[] {
  const inMeta = findConflicts(mapVersions(versions, ownMeta))
  return [...findConflicts(versions), ...inMeta.map((name) => `meta.${name}`)]
}

function findConflicts({ base, mine, newest }: Versions<object>): string[] {
  const theirs = changedNames(base, newest)
  const different = changedNames(mine, newest)
  return [...changedNames(base, mine)].filter((name) => theirs.has(name) && different.has(name))
}

export function mapVersions<A, B>(
  { base, mine, newest }: Versions<A>,
  change: (version: A) => B,
): Versions<B> {
  return { base: change(base), mine: change(mine), newest: change(newest) }
}

/** A primitive and its extensions count as one element. */
export function changedNames(before: object, after: object): ReadonlySet<string> {
  const [old, young]: readonly Values[] = [{ ...before }, { ...after }]
  const names = Object.keys({ ...old, ...young }).filter((name) => name !== 'meta')
  return new Set(
    names
      .filter((name) => JSON.stringify(old?.[name]) !== JSON.stringify(young?.[name]))
      .map(plain),
  )
}

function plain(name: string): string {
  return name.replace(/^_/, '')
}

export function isObject(value: unknown): value is Values {
  return Object.getPrototypeOf(value ?? 0) === Object.prototype
}
