/**
 * Resolves definitions by url. A plain member's definition yields to those of administrators and of members whose
 * policy names the type.
 */
import { canonicalUrl, chosen, isObject, type Meta, type Reference } from '../../fhir/resource.ts'
import { grantsFor } from '../policy.ts'
import { type Principal, profileReference } from '../principal.ts'

/** Extension of `meta.author`: the writer's right to define for others. Older versions have none. */
const DEFINER = 'urn:botica:definer'

type Definer = 'administrator' | 'member' | undefined

export function definesForOthers(principal: Principal, type: string): boolean {
  return principal.isProjectAdmin || isNamedIn(principal, type)
}

function isNamedIn(principal: Principal, type: string): boolean {
  return (['create', 'update'] as const).some((interaction) =>
    grantsFor(principal, type, interaction)?.some(({ isNamed }) => isNamed),
  )
}

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

/** Resolves a canonical in one Project; other owners count when the url's owner lacks the version. */
export function resolvedIn<T extends Stored & { readonly url?: unknown }>(
  definitions: readonly T[],
  canonical: string,
): T | undefined {
  const same = definitions.filter(({ url }) => url === canonicalUrl(canonical))
  return chosen(ownedDefinitions(same), canonical) ?? chosen(same, canonical)
}

/** True when a linked Project or the standard may supply the definition. */
export function isOverridable(definition: Stored | undefined): boolean {
  return definition === undefined || readDefiner(definition) === 'member'
}

/**
 * Plain members' definitions are dropped if there are others; of the rest, those of the first author and of writers
 * with the right to define for others stay.
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

/** Uses the creation time in generated ids, or the last change for other ids. */
export function oldestFirst<T extends Stored>(resources: readonly T[]): readonly T[] {
  const timed = resources.map((resource) => ({ resource, time: creationTime(resource) }))
  return timed.toSorted((a, b) => a.time - b.time).map(({ resource }) => resource)
}

/** https://www.rfc-editor.org/rfc/rfc9562#name-uuid-version-7: the first 48 bits are milliseconds. */
const UUID_7 = /^([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-/

function creationTime({ id = '', meta }: Stored): number {
  const [, high, low] = UUID_7.exec(id) ?? []
  if (high !== undefined) return Number.parseInt(`${high}${low}`, 16)
  return Date.parse(meta?.lastUpdated ?? '') || 0
}
