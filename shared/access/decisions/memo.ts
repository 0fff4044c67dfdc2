/** Memoizes values by name for the lifetime of an object. */

export function memoFor<Owner extends object, T>(most = Number.POSITIVE_INFINITY) {
  const known = new WeakMap<Owner, Map<string, { readonly made: T }>>()
  return (owner: Owner, name: string, make: () => T): T => {
    const byName = known.get(owner) ?? new Map<string, { readonly made: T }>()
    known.set(owner, byName)
    const found = byName.get(name)
    if (found !== undefined) return found.made
    const made = make()
    if (byName.size >= most) byName.clear()
    byName.set(name, { made })
    return made
  }
}
