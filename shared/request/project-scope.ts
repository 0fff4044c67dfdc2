/** Requests at the address of a Project, such as `/projects/{id}/fhir/R4/Patient`, and their addresses. */
import { issuerUrl } from '../access/credentials/tokens.ts'
import type { Services } from './services.ts'

export type Addressed = Pick<Services, 'config' | 'projectScope'>

/** Returns the services of a request at the address of this Project, or of all Projects. */
export function scopedTo(services: Services, projectScope: string | undefined): Services {
  return projectScope === undefined ? services : { ...services, projectScope }
}

/** True at the address of all Projects, and at that of this Project. */
export function isInScope(
  projectScope: string | undefined,
  project: { readonly id?: string },
): boolean {
  return projectScope === undefined || project.id === projectScope
}

/** Returns the address of the service, under the Project of the called address: the issuer of its tokens. */
export function serviceUrl({ config, projectScope }: Addressed): string {
  return issuerUrl(config.baseUrl, projectScope)
}
