/** Element paths of a policy (`name`, `contact.telecom`): removes them or keeps them as stored. */

import { isDeepStrictEqual } from 'node:util'
import { memoFor } from '../core/cache.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { asArray, isObject, type Resource } from '../fhir/resource.ts'
import { elementProperties } from '../fhirpath/members.ts'

/** A resource cannot do without these. */
const ALWAYS_SHOWN = /^(resourceType|id|meta)(\.(versionId|lastUpdated))?$/
const PATH = /^[A-Za-z]\w*(\[x\])?(\.[A-Za-z]\w*(\[x\])?)*$/

/** Returns the path without `[x]`. Throws for an unknown element, or one that must stay visible. */
export function checkPath(type: string, path: string): string {
  if (!PATH.test(path)) throw new Error(`"${path}" is not an element path`)
  const plain = path.replaceAll('[x]', '')
  if (ALWAYS_SHOWN.test(plain)) throw new Error(`${path} is always shown`)
  if (type !== '*' && !isElement(type, plain.split('.'))) {
    throw new Error(`${type} has no element "${path}"`)
  }
  return plain
}

function isElement(owner: string, [name = '', ...below]: readonly string[]): boolean {
  const forms = elementProperties(owner, name)
  return below.length === 0 ? forms.length > 0 : forms.some(({ type }) => isElement(type, below))
}

/** True when one path of a type equals the other, contains it, or is a form of it (`value`, `valueQuantity`). */
export function overlaps(type: string, a: string, b: string): boolean {
  return meet(type, a.split('.'), b.split('.'))
}

function meet(owner: string, a: readonly string[], b: readonly string[]): boolean {
  const [first, ...restA] = a
  const [second, ...restB] = b
  if (first === undefined || second === undefined) return true
  const forms = new Set(elementProperties(owner, second).map(({ property }) => property))
  const common = elementProperties(owner, first).filter(({ property }) => forms.has(property))
  return common.some(({ type }) => meet(type, restA, restB))
}

export function withoutPaths(resource: Resource, paths: readonly string[]): Resource {
  return cut(resource, pathTree(resource.resourceType, paths)) as Resource
}

/** Returns the rest of a member: `all` of it, undefined for nothing. `value` is read only if needed. */
export function cutBelow(
  type: string,
  paths: readonly string[],
  member: string,
  value: () => unknown,
): unknown {
  const branch = memberBranch(pathTree(type, paths), member)
  if (branch === undefined) return 'all'
  if (branch.size === 0) return undefined
  const rest = cut(value(), branch)
  return isEmpty(rest) ? undefined : rest
}

/**
 * Absent elements stay absent. List items are matched by their visible content, then by position; new ones get
 * nothing.
 */
export function keepPaths(
  next: Resource,
  stored: Resource | undefined,
  paths: readonly string[],
): Resource {
  if (paths.length === 0) return next
  return restore(next, stored, pathTree(next.resourceType, paths)) as Resource
}

/** Property → tree below it; empty: the whole property. */
type Tree = Map<string, Tree>

const trees = memoFor<readonly string[], Tree>()

function pathTree(type: string, paths: readonly string[]): Tree {
  return trees(paths, type, () => {
    const root: Tree = new Map()
    // Shorter ones first: a whole element includes its parts.
    const sorted = paths.map((path) => path.split('.')).sort((a, b) => a.length - b.length)
    for (const steps of sorted) if (isResourceType(type)) plant(root, type, steps)
    return root
  })
}

function plant(tree: Tree, owner: string, [step = '', ...below]: readonly string[]): void {
  const forms = elementProperties(owner, step)
  if (forms.length === 0 && below.length === 0) tree.set(step, new Map())
  for (const { property, type } of forms) {
    const branch = tree.get(property)
    if (branch?.size === 0) continue
    const next: Tree = branch ?? new Map()
    if (below.length > 0) plant(next, type, below)
    if (below.length === 0 || next.size > 0) tree.set(property, next)
  }
}

/** `_name` follows `name`. */
function memberBranch(tree: Tree, member: string): Tree | undefined {
  return tree.get(member.startsWith('_') ? member.slice(1) : member)
}

function cut(value: unknown, tree: Tree): unknown {
  if (Array.isArray(value)) {
    return value.map((item) => cut(item, tree)).filter((item) => !isEmpty(item))
  }
  if (!isObject(value)) return value
  const left = Object.entries(value).flatMap(([name, child]): [string, unknown][] => {
    const branch = memberBranch(tree, name)
    if (branch === undefined) return [[name, child]]
    if (branch.size === 0) return []
    const rest = cut(child, branch)
    return isEmpty(rest) ? [] : [[name, rest]]
  })
  return Object.fromEntries(left)
}

/** True when only hidden values were in it: FHIR has no empty objects or lists. */
function isEmpty(value: unknown): boolean {
  if (Array.isArray(value)) return value.every(isEmpty)
  return isObject(value) && Object.keys(value).length === 0
}

function restore(next: unknown, stored: unknown, tree: Tree): unknown {
  if (Array.isArray(next)) return restoreItems(next, asArray(stored), tree)
  const before = isObject(stored) ? stored : {}
  if (!isObject(next)) return next
  const kept: Record<string, unknown> = {}
  for (const [name, child] of Object.entries(next)) {
    const branch = memberBranch(tree, name)
    if (branch === undefined) kept[name] = child
    else if (branch.size > 0) {
      const value = restore(child, before[name], branch)
      if (!isEmpty(value)) kept[name] = value
    }
  }
  for (const [name, child] of Object.entries(before)) {
    const branch = memberBranch(tree, name)
    if (branch === undefined || name in kept) continue
    // The caller saw nothing of this element, so did not remove it.
    if (branch.size === 0 || isEmpty(cut(child, branch))) kept[name] = child
  }
  return kept
}

function restoreItems(next: readonly unknown[], stored: readonly unknown[], tree: Tree): unknown[] {
  const shown = stored.map((item) => cut(item, tree))
  const free = new Set([...stored.keys()].filter((i) => !isEmpty(shown[i])))
  const visible = free.size
  const places = next.map((item) => {
    const seen = cut(item, tree)
    const place = [...free].find((i) => isDeepStrictEqual(shown[i], seen))
    if (place !== undefined) free.delete(place)
    return place
  })
  // If the count is unchanged, the remaining items were edited in place.
  const changed = next.length === visible ? [...free] : []
  const kept = places.map((place, i) =>
    restore(next[i], stored[place ?? changed.shift() ?? -1], tree),
  )
  // The caller saw nothing of these, so did not remove them.
  const unseen = stored.filter((_, i) => isEmpty(shown[i]))
  return [...kept.filter((item) => !isEmpty(item)), ...unseen]
}
