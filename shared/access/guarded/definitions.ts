/**
 * Resolves definitions that others name by url (`url` in elements.ts). A definition of a plain member gives way to those
 * of administrators, and of members whose policy names the type.
 */
import { canonicalUrl, chosen, isObject, type Meta, type Reference } from '../../fhir/resource.ts'
import { grantsFor } from '../policy.ts'
import { type Principal, profileReference } from '../principal.ts'

/** Extension of `meta.author`: the right with which a definition was written. Older versions have none. */
const DEFINER = 'urn:botica:definer'

type Definer = 'administrator' | 'member' | undefined

/** True for administrators, and for members whose policy has an entry that names the type. */
export function definesForOthers(principal: Principal, type: string): boolean {
  return principal.isProjectAdmin || isNamedIn(principal, type)
}

function isNamedIn(principal: Principal, type: string): boolean {
  return (['create', 'update'] as const).some((interaction) =>
    grantsFor(principal, type, interaction)?.some(({ isNamed }) => isNamed),
  )
}

/** Returns the `meta.author` of a definition, with the right of its writer. */
export function definingAuthor(principal: Principal, type: string): Reference {
  const valueCode: Definer = definesForOthers(principal, type) ? 'administrator' : 'member'
  return { ...profileReference(principal), extension: [{ url: DEFINER, valueCode }] }
}

function readDefiner({ meta }: Stored): Definer {
  const extensions: readonly unknown[] = meta?.author?.extension ?? []
  const found = extensions.filter(isObject).find(({ url }) => url === DEFINER)?.valueCode
  return found === 'administrator' || found === 'member' ? found : undefined
}

interface Stored {
  readonly id?: string | undefined
  readonly meta?: Meta | undefined
}

/** Resolves a canonical among the definitions of one Project; other owners count where the url's owner has no such version. */
export function resolvedIn<T extends Stored & { readonly url?: unknown }>(
  definitions: readonly T[],
  canonical: string,
): T | undefined {
  const same = definitions.filter(({ url }) => url === canonicalUrl(canonical))
  return chosen(ownedDefinitions(same), canonical) ?? chosen(same, canonical)
}

/** True where a definition of a linked Project or of the standard is used instead: there is none, or a plain member's. */
export function isOverridable(definition: Stored | undefined): boolean {
  return definition === undefined || readDefiner(definition) === 'member'
}

/**
 * Filters definitions of one Project and one url. Those of plain members are dropped where there are others; of the
 * rest, those of the first author and those written with the right to define for others stay.
 */
export function ownedDefinitions<T extends Stored>(definitions: readonly T[]): readonly T[] {
  const others = definitions.filter((item) => readDefiner(item) !== 'member')
  const able = others.length > 0 ? others : definitions
  const [first] = oldestFirst(able)
  const owner = first?.meta?.author?.reference
  return able.filter(
    (item) => item.meta?.author?.reference === owner || readDefiner(item) === 'administrator',
  )
}

/** Sorts by the creation time in ids that the service made, and by the last change for other ids. */
export function oldestFirst<T extends Stored>(resources: readonly T[]): readonly T[] {
  const timed = resources.map((resource) => ({ resource, time: creationTime(resource) }))
  return timed.toSorted((a, b) => a.time - b.time).map(({ resource }) => resource)
}

/** UUIDs of version 7 begin with 48 bits of milliseconds: https://www.rfc-editor.org/rfc/rfc9562#name-uuid-version-7 */
const UUID_7 = /^([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-/

function creationTime({ id = '', meta }: Stored): number {
  const [, high, low] = UUID_7.exec(id) ?? []
  if (high !== undefined) return Number.parseInt(`${high}${low}`, 16)
  return Date.parse(meta?.lastUpdated ?? '') || 0
}
