/** The profiles that a resource is checked against. https://hl7.org/fhir/R4/profiling.html#resources */
import type { Principal, ProjectContext } from '../access/principal.ts'
import { tooCostly } from '../errors.ts'
import type { Profile } from '../fhir/profile-run.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { forgetBoundCodes } from './terminology/bound-codes.ts'

/** What validation remembers of a type that was just written is forgotten. */
export function forgetDefinitions({ profiles }: Services, type: string): void {
  if (type === 'StructureDefinition') profiles.forget()
  if (type === 'ValueSet' || type === 'CodeSystem') forgetBoundCodes()
}

/** More are not looked for. */
const MAX_PROFILES = 20

/** Canonical urls that the resource claims; what is no text is for validation to tell. */
export function profilesOf({ meta }: Resource): readonly string[] {
  const claimed: unknown = meta?.profile
  if (!Array.isArray(claimed)) return []
  return [...new Set(claimed.filter((item) => typeof item === 'string'))]
}

/** The Project's choice for a resource that claims no profile. */
export function withDefaultProfiles(resource: Resource, project: ProjectContext): Resource {
  const profile = project.defaultProfiles?.get(resource.resourceType)
  if (profile === undefined || resource.meta?.profile !== undefined) return resource
  return { ...resource, meta: { ...resource.meta, profile } }
}

/** Errors: 400 for more profiles than one resource may claim. */
export async function findProfiles(
  { services, principal }: { readonly services: Services; readonly principal: Principal },
  canonicals: readonly string[],
): Promise<{ readonly profiles: readonly Profile[]; readonly unknown: readonly string[] }> {
  const profiles: Profile[] = []
  const unknown: string[] = []
  if (canonicals.length > MAX_PROFILES) {
    throw tooCostly(`A resource may claim ${MAX_PROFILES} profiles`, 'meta.profile')
  }
  for (const canonical of canonicals) {
    const { repository } = services
    const found = await services.profiles.find(repository, principal.project, canonical)
    if (found === undefined) unknown.push(canonical)
    else profiles.push(found)
  }
  return { profiles, unknown }
}
