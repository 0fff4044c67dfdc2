/** Login or membership → Principal, cached; a change takes effect everywhere within 5 s. */
import type { Principal, ProjectContext } from '../access/principal.ts'
import type { Resource } from '../fhir/resource.ts'

/** What a login stands for: the resources it was made of. */
export interface Session {
  readonly principal: Principal
  readonly project: Resource
  readonly membership: Resource
  readonly profile: Resource
}

export interface Principals {
  /** Undefined when the login is revoked or its membership, project or profile is gone or inactive. */
  forLogin(loginId: string): Promise<Session | undefined>
  /** The same for a membership, without a login (bot runs). */
  forMembership(membershipId: string): Promise<Session | undefined>
  /** The membership whose profile is the given `Type/id`, e.g. of a Bot or ClientApplication. */
  forProfile(reference: string): Promise<Session | undefined>
  project(id: string): Promise<ProjectContext | undefined>
  /** Drops what this process has cached. */
  forget(): void
}
