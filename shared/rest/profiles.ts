/** Profiles that a resource is validated against. https://hl7.org/fhir/R4/profiling.html#resources */
import type { Principal, ProjectContext } from '../access/principal.ts'
import { tooCostly } from '../core/errors.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Services } from '../request/services.ts'
import type { CheckedResource, Claim, Claimed, Profile } from '../validation/profile-run.ts'
import { toFhirPath } from '../validation/shapes.ts'

const MAX_PROFILES = 20
const MAX_DISTINCT = 100

/** Applies the Project's default profile to a resource without claims. */
export function withDefaultProfiles(resource: Resource, project: ProjectContext): Resource {
  const profile = project.defaultProfiles?.get(resource.resourceType)
  if (profile === undefined || resource.meta?.profile !== undefined) return resource
  return { ...resource, meta: { ...resource.meta, profile } }
}

interface UnknownProfile extends Pick<CheckedResource, 'steps'> {
  readonly canonical: string
}

const NONE = { profiles: [], unknown: [] } as const

/** Errors: 400 for too many profiles. */
export async function findProfiles(
  { services, principal }: { readonly services: Services; readonly principal: Principal },
  claims: readonly Claim[],
): Promise<{ readonly profiles: readonly Claimed[]; readonly unknown: readonly UnknownProfile[] }> {
  if (claims.length === 0) return NONE
  requireFew(claims)
  const found = new Map<string, Profile | undefined>()
  for (const canonical of new Set(claims.flatMap(({ canonicals }) => canonicals))) {
    const { repository } = services
    found.set(canonical, await services.profiles.find(repository, principal.project, canonical))
  }
  const profiles: Claimed[] = []
  const unknown: UnknownProfile[] = []
  for (const { canonicals, ...place } of claims) {
    for (const canonical of canonicals) {
      const profile = found.get(canonical)
      if (profile === undefined) unknown.push({ canonical, steps: place.steps })
      else profiles.push({ ...place, profile })
    }
  }
  return { profiles, unknown }
}

function requireFew(claims: readonly Claim[]): void {
  const crowded = claims.find(({ canonicals }) => canonicals.length > MAX_PROFILES)
  if (crowded !== undefined) {
    const path = toFhirPath([...crowded.steps, 'meta', 'profile'])
    throw tooCostly(`A resource may claim ${MAX_PROFILES} profiles`, path)
  }
  const distinct = new Set(claims.flatMap(({ canonicals }) => canonicals))
  if (distinct.size > MAX_DISTINCT) {
    throw tooCostly(`The resources in one body may claim ${MAX_DISTINCT} profiles`)
  }
}
