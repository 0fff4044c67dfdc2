/** Names that members have below the root of a resource: any other name is one of the root's own. */
import { elementsOf } from './definitions.ts'

/**
 * Of all types that an element below the root, or an extension, may have. Undefined for a type that holds
 * whole resources of its own, as a Bundle does; `contained` ones are for the caller to look for.
 */
export function nestedNames(type: string): ReadonlySet<string> | undefined {
  if (!known.has(type)) known.set(type, namesBelow(type))
  return known.get(type)
}

const known = new Map<string, ReadonlySet<string> | undefined>()

function namesBelow(type: string): ReadonlySet<string> | undefined {
  const names = new Set<string>()
  const seen = new Set<string>()
  const pending = ['Extension', 'Element']
  const take = (owner: string, isRoot: boolean) => {
    for (const { path, choice, types } of elementsOf(owner)) {
      if (isRoot && path === 'contained') continue
      const name = path.slice(path.lastIndexOf('.') + 1)
      const forms = choice ? types.map(({ code }) => name + capital(code)) : [name]
      if (!isRoot || path.includes('.')) for (const form of forms) names.add(form)
      pending.push(...types.map(({ code }) => code))
    }
  }
  take(type, true)
  for (let owner = pending.pop(); owner !== undefined; owner = pending.pop()) {
    if (owner === 'Resource' || owner === 'DomainResource') return undefined
    if (seen.has(owner)) continue
    seen.add(owner)
    take(owner, false)
  }
  return names
}

function capital(code: string): string {
  return code.charAt(0).toUpperCase() + code.slice(1)
}
