/** The profiles that a resource claims, and those inside it. https://hl7.org/fhir/R4/profiling.html#resources */

import { isObject, isResource, type Resource } from '../../fhir/resource.ts'
import type { Place } from './run.ts'

export interface Claim extends Place {
  /** Canonical urls, each once. */
  readonly canonicals: readonly string[]
}

/** Lists claims, those of the resource itself first; resources without claims are left out. */
export function claimsOf(
  resource: Resource,
  { root = resource, steps = [resource.resourceType] }: Outside = {},
): Claim[] {
  const canonicals = profilesOf(resource)
  const own = canonicals.length === 0 ? [] : [{ resource, root, steps, canonicals }]
  const contained = itemsOf(resource.contained).flatMap((item, i) =>
    isResource(item) ? claimsOf(item, { root, steps: [...steps, 'contained', i] }) : [],
  )
  return [...own, ...contained, ...carriedBy(resource, steps)]
}

interface Outside {
  readonly root?: Resource
  readonly steps?: Place['steps']
}

/** Entries that are no text are skipped; validation reports them. */
function profilesOf({ meta }: Resource): readonly string[] {
  const claimed = itemsOf(meta?.profile)
  return [...new Set(claimed.filter((item) => typeof item === 'string'))]
}

/** Resources of their own that travel in a Bundle or in Parameters. */
function carriedBy({ resourceType, entry, parameter }: Resource, steps: Place['steps']): Claim[] {
  if (resourceType === 'Parameters') return inParameters(parameter, [...steps, 'parameter'])
  if (resourceType !== 'Bundle') return []
  return itemsOf(entry).flatMap((item, i) => {
    if (!isObject(item)) return []
    const { resource, response } = item
    const at = [...steps, 'entry', i]
    const outcome = isObject(response) ? response.outcome : undefined
    return [
      ...carried(resource, [...at, 'resource']),
      ...carried(outcome, [...at, 'response', 'outcome']),
    ]
  })
}

function inParameters(parameters: unknown, steps: Place['steps']): Claim[] {
  return itemsOf(parameters).flatMap((item, i) => {
    if (!isObject(item)) return []
    const at = [...steps, i]
    return [
      ...carried(item.resource, [...at, 'resource']),
      ...inParameters(item.part, [...at, 'part']),
    ]
  })
}

function carried(value: unknown, steps: Place['steps']): Claim[] {
  return isResource(value) ? claimsOf(value, { steps }) : []
}

function itemsOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : []
}
