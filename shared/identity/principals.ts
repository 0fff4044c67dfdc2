/**
 * Login or membership → Principal, cached. An entry is served for 2 s, then served while it is read
 * again, and never served beyond 4 s; so a change takes effect in every process within 5 s and a
 * busy session never waits for the database.
 */

import { AREAS } from '../access/areas.ts'
import { builtInAccess, patientOf } from '../access/built-in.ts'
import { type Access, compilePolicies } from '../access/compile.ts'
import { isActiveClient } from '../access/credentials/clients.ts'
import type { Rules } from '../access/grant.ts'
import { readIpRules } from '../access/ip-rules.ts'
import { type Principal, type ProjectContext, systemPrincipal } from '../access/principal.ts'
import { memberQuota, projectContext, SYSTEM_PROJECT } from '../access/project-context.ts'
import { narrowed } from '../access/scopes.ts'
import { variablesOf } from '../access/variables.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { isObject, parseReference, type Resource, referenceIn } from '../fhir/resource.ts'
import type { Logger } from '../log.ts'
import type { Database } from '../platform/postgres/database.ts'
import type { OwnParametersReader } from '../store/index/custom-parameters.ts'
import { Keys } from '../store/index/keys.ts'
import type { Repository } from '../store/repository.ts'
import { freshCache } from '../store/rows/fresh-cache.ts'
import { readSalt } from '../store/rows/salt.ts'
import { unitsOf } from '../store/search/tests/units.ts'
import {
  type MembershipContext,
  type Place,
  readContext,
  readLoginMembership,
  readMembershipsOf,
  readProject,
} from './memberships.ts'

/** What a login stands for: the resources it was made of. */
export interface Session {
  readonly principal: Principal
  readonly project: Resource
  readonly membership: Resource
  readonly profile: Resource
  readonly policies: readonly Resource[]
  /** The UserConfiguration of the membership. */
  readonly configuration: Resource | undefined
  /** Undefined for a membership without a login. */
  readonly login: Resource | undefined
}

export interface Principals {
  /** Undefined when the login is revoked or its membership, project or profile is gone or inactive. */
  forLogin(loginId: string): Promise<Session | undefined>
  /** The same for a membership, without a login (bot runs). */
  forMembership(membershipId: string): Promise<Session | undefined>
  /** The membership whose profile is the given `Type/id`, e.g. of a Bot or ClientApplication. */
  forProfile(reference: string): Promise<Session | undefined>
  project(id: string): Promise<ProjectContext | undefined>
  /** Drops what this process has cached, of one login or of all. */
  forget(loginId?: string): void
}

export interface PrincipalsOptions {
  /** Patients without a policy may do everything; false by default. */
  readonly openPatientAccess?: boolean
}

const TIMES = { freshMs: 2_000, usableMs: 4_000, max: 20_000 }

/** One statement, for the salt of row ids. */
export async function openPrincipals(
  database: Database,
  repository: Repository,
  own: OwnParametersReader,
  log: Logger,
  options: PrincipalsOptions = {},
): Promise<Principals> {
  const place: Place = { database, keys: new Keys(await readSalt(database)) }
  const system = systemPrincipal(SYSTEM_PROJECT)
  const warned = new Set<string>()

  const warn = (warnings: readonly string[]) => {
    for (const warning of warnings) {
      if (warned.has(warning)) continue
      warned.add(warning)
      log.warn(warning)
    }
  }

  const contextOf = async (
    found: Pick<MembershipContext, 'project' | 'number' | 'own'>,
    readAt: number,
  ): Promise<ProjectContext> => {
    const { project, number } = found
    const parameters = await own.compiled(database, number, found.own)
    return { ...projectContext(project, number), parameters, readAt }
  }

  /** Read anew, as a session may be as old as a change of it allows. */
  const withLinks = async (context: ProjectContext): Promise<ProjectContext> => {
    if ((context.links ?? []).length === 0) return context
    const found = await Promise.all((context.links ?? []).map((id) => readProject(place, id)))
    const linked = found.flatMap((item) => {
      if (item === undefined) return []
      const { id, number, exports = [] } = projectContext(item.project, item.number)
      return number === context.number ? [] : [{ id, number, exports }]
    })
    return { ...context, linked }
  }

  const sessionOf = async (
    membership: Resource | undefined,
    login?: Resource,
  ): Promise<Session | undefined> => {
    if (membership === undefined || membership.active === false) return undefined
    const readAt = Date.now()
    const context = await readContext(place, membership)
    if (context === undefined) return undefined
    const { project, profile, policies, configuration } = context
    if (profile.resourceType === 'ClientApplication' && !isActiveClient(profile)) return undefined
    const projectOf = await withLinks(await contextOf(context, readAt))
    const compiled = rulesOf(membership, context, projectOf.parameters, options)
    warn(compiled.warnings)
    const withUnits = await readUnits(place, projectOf, compiled.rules)
    const own = profile.resourceType === 'Patient' ? profile.id : undefined
    const patient = parseReference(referenceIn(login?.patient))?.id ?? own
    const scope = typeof login?.scope === 'string' ? login.scope : 'openid'
    const unscoped: Principal = {
      project: withUnits,
      membershipId: membership.id,
      loginId: login?.id,
      user: ownUserOf(membership, login),
      profile: `${profile.resourceType}/${profile.id}`,
      profileDisplay: displayOf(profile),
      clientId: parseReference(referenceIn(login?.client))?.id,
      scope,
      // A run is not the person whose rights it has.
      areas: login?.authMethod === 'execute' ? ['administration'] : AREAS,
      isSuperAdmin: projectOf.superAdmin,
      isProjectAdmin: projectOf.superAdmin || membership.admin === true,
      rules: compiled.rules,
      patient,
      ipRules: readIpRules(policies),
      quota: memberQuota(configuration),
    }
    const principal = narrowed(unscoped, scope, patient)
    return { principal, project, membership, profile, policies, configuration, login }
  }

  const logins = freshCache(TIMES, async (loginId: string) => {
    const found = await readLoginMembership(place, loginId)
    if (found?.login.granted !== true || found.login.revoked === true) return undefined
    return await sessionOf(found.membership, found.login)
  })
  const memberships = freshCache(TIMES, async (id: string) => {
    const [version] = await repository.readMany(system, [{ type: 'ProjectMembership', id }])
    if (version?.content === undefined) return undefined
    return await sessionOf(JSON.parse(version.content) as Resource)
  })
  const profiles = freshCache(TIMES, async (reference: string) => {
    const found = await readMembershipsOf(place, reference)
    return await sessionOf(found.find((membership) => membership.active !== false))
  })
  const projects = freshCache(TIMES, async (id: string) => {
    const readAt = Date.now()
    const found = await readProject(place, id)
    return found && contextOf(found, readAt)
  })

  return {
    forLogin: (id) => logins.get(id),
    forMembership: (id) => memberships.get(id),
    forProfile: (reference) => profiles.get(reference),
    project: (id) => projects.get(id),
    forget(loginId) {
      if (loginId !== undefined) {
        logins.delete(loginId)
        return
      }
      for (const cache of [logins, memberships, profiles, projects]) cache.clear()
    },
  }
}

/** The User who acts: nobody where there is no login, or one that a Project alone vouches for. */
function ownUserOf(membership: Resource, login: Resource | undefined): string | undefined {
  if (login === undefined || login.vouchedBy !== undefined) return undefined
  const user = parseReference(referenceIn(membership.user))
  return user?.type === 'User' ? user.id : undefined
}

/** Of a policy that compares quantities in a unit of UCUM: in which others they are. A statement a Project. */
async function readUnits(
  { database: connection, keys }: Place,
  project: ProjectContext,
  rules: Rules | undefined,
): Promise<ProjectContext> {
  const asked = rules?.grants.map(({ criteria }) => ({ conditions: criteria })) ?? []
  const of = (number: number) => unitsOf({ connection, keys }, number, asked)
  const linked = (project.linked ?? []).map(async (other) => ({
    ...other,
    units: await of(other.number),
  }))
  return { ...project, linked: await Promise.all(linked), units: await of(project.number) }
}

/** A named policy that is not there grants nothing, and so do the rights it might have limited. */
export function rulesOf(
  membership: Resource,
  { project, profile, access, missing }: MembershipContext,
  own: OwnParameters | undefined,
  { openPatientAccess }: PrincipalsOptions,
): { readonly rules: Rules | undefined; readonly warnings: readonly string[] } {
  const projectId = project.id ?? ''
  if (access.length > 0 || missing.length > 0) {
    const reference = `${profile.resourceType}/${profile.id}`
    const items = access.map(({ policy, parameters }): Access => {
      const variables = variablesOf(projectId, reference, patientOf(profile), parameters)
      return { policy, variables: { ...variables, own } }
    })
    const compiled = compilePolicies(items)
    const lost = missing.map((name) => `ProjectMembership/${membership.id} names a lost ${name}`)
    return { rules: compiled.rules, warnings: [...compiled.warnings, ...lost] }
  }
  const isOpen = openPatientAccess || membership.admin === true
  const builtIn = isOpen ? undefined : builtInAccess(projectId, profile)
  return builtIn === undefined ? { rules: undefined, warnings: [] } : compilePolicies([builtIn])
}

/** The name of a person, or `name` of a ClientApplication or Bot. */
export function displayOf(profile: Resource): string | undefined {
  if (typeof profile.name === 'string') return profile.name
  const name: unknown = Array.isArray(profile.name) ? profile.name[0] : undefined
  if (!isObject(name)) return undefined
  const given = Array.isArray(name.given) ? name.given : []
  return [...given, name.family].filter((part) => typeof part === 'string').join(' ') || undefined
}
