/** SearchParameters of a Project: what is stored must be of use. */
import { systemPrincipal } from '../access/principal.ts'
import { badRequest } from '../errors.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Interaction } from '../request/request.ts'
import { checkedDefinitions } from '../store/index/custom-parameters.ts'
import { find } from '../store/rows/lookups.ts'

const CANDIDATES = 100

/**
 * One statement for an active SearchParameter. Errors: 400 for a base, type, code or expression that
 * cannot be searched by, and for a code that the standard or the Project has already.
 */
export async function requireUsable(
  { services, principal }: Interaction,
  resource: Resource,
): Promise<void> {
  const [first, ...others] = checkedDefinitions(resource)
  if (first === undefined) return
  const reader = { ...systemPrincipal(principal.project), isSuperAdmin: false }
  const conditions = [
    { code: 'code', type: 'token', modifier: undefined, values: [first.code] },
    { code: 'status', type: 'token', modifier: undefined, values: ['active'] },
  ] as const
  const { repository } = services
  const same = await find(repository, reader, 'SearchParameter', conditions, CANDIDATES)
  for (const { base } of [first, ...others]) {
    const other = same.find((item) => item.id !== resource.id && basesOf(item).includes(base))
    if (other === undefined) continue
    const text = `${base} has a search parameter ${first.code} already: SearchParameter/${other.id}`
    throw badRequest(text, 'SearchParameter.code')
  }
}

function basesOf({ base }: Resource): readonly unknown[] {
  return Array.isArray(base) ? base : []
}
