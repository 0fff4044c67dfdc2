/**
 * Cached Login or membership → Principal. Changes drop entries; otherwise an entry is served for 2 s, then stale up to
 * 4 s during a refresh. So a change takes effect at once, or within 5 s without Redis, and busy sessions never wait for
 * the database. Memberships without a policy get a built-in one.
 */

import { type Access, builtInAccess, compilePolicies, profilePatient } from '../access/compile.ts'
import { isActiveClient } from '../access/credentials/clients.ts'
import { policyVariables } from '../access/criteria.ts'
import { AREAS, type Rules } from '../access/grant.ts'
import { compileAddressRules, type Principal, type ProjectContext } from '../access/principal.ts'
import { memberQuota, projectContext, system } from '../access/project-context.ts'
import { narrowed, smartScopes } from '../access/scopes.ts'
import { type CacheChange, FreshCache, memoFor, type ReportedType } from '../core/cache.ts'
import { timings } from '../core/config/waits.ts'
import type { Logger } from '../core/log.ts'
import { readDeclarations } from '../fhir/bot-declarations.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { asArray, isObject, type Resource, targetIn } from '../fhir/resource.ts'
import type { Database } from '../postgres/database.ts'
import { findUnits } from '../search/planner/prepare.ts'
import { Keys, readSalt } from '../store/index/keys.ts'
import type { Repository } from '../store/repository.ts'
import { type OwnParametersReader, SEARCH_PARAMETER } from '../store/rows/custom-parameters.ts'
import {
  type MembershipContext,
  type MembershipRows,
  readContext,
  readLoginMembership,
  readProfileMemberships,
  readProject,
} from './memberships.ts'

export interface Session {
  readonly principal: Principal
  readonly project: Resource
  readonly membership: Resource
  readonly profile: Resource
  /** True for a Bot of a linked Project. */
  readonly isProfileLinked: boolean
  readonly policies: readonly Resource[]
  readonly configuration: Resource | undefined
  /** Undefined for a membership without a login. */
  readonly login: Resource | undefined
}

export interface Principals {
  /** Returns undefined when the login is revoked or its membership, project, profile or app is gone or inactive. */
  forLogin(loginId: string): Promise<Session | undefined>
  /** Returns the session of a membership without a login (bot runs). */
  forMembership(membershipId: string): Promise<Session | undefined>
  /**
   * Returns the session of the profile `Type/id`, e.g. a Bot or ClientApplication, in the given Project, or by default
   * in the profile's own.
   */
  forProfile(reference: string, projectId?: string): Promise<Session | undefined>
  project(id: string): Promise<ProjectContext | undefined>
  /** Drops this process's cache of one login or of all. */
  forget(loginId?: string): void
}

interface PrincipalsOptions {
  /** Patients without a policy may do everything; false by default. */
  readonly openPatientAccess?: boolean
}

const TIMES = { freshMs: timings.sessionMs / 2, usableMs: timings.sessionMs, max: 20_000 }

interface Opening {
  readonly own: OwnParametersReader
  readonly log: Logger
  readonly options?: PrincipalsOptions | undefined
}

/** One statement, for the salt of row ids. */
export async function openPrincipals(
  database: Database,
  repository: Repository,
  { own, log, options = {} }: Opening,
): Promise<Principals> {
  const keys = new Keys(await readSalt(database))
  const sessions = new Sessions({ database, keys }, own, log, options)

  const cached = { ...TIMES, staleEntries: staleSessions }
  const logins = new FreshCache(
    { ...cached, name: 'sessions-by-login', staleKey: changedLogin },
    (loginId) => sessions.ofLogin(loginId),
  )
  const memberships = new FreshCache({ ...cached, name: 'sessions-by-membership' }, async (id) => {
    const [version] = await repository.readMany(system, [{ type: 'ProjectMembership', id }])
    if (version?.content === undefined) return undefined
    return await sessions.of(JSON.parse(version.content) as Resource)
  })
  const profiles = new FreshCache({ ...cached, name: 'sessions-by-profile' }, (key) => {
    const [reference = '', projectId] = key.split(' ')
    return sessions.ofProfile(reference, projectId)
  })
  const projects = new FreshCache(
    { ...TIMES, name: 'projects', staleEntries: staleProjects },
    (id: string) => sessions.projectOf(id),
  )

  return {
    forLogin: (id) => logins.get(id),
    forMembership: (id) => memberships.get(id),
    forProfile: (reference, projectId) =>
      profiles.get(projectId === undefined ? reference : `${reference} ${projectId}`),
    project: (id) => projects.get(id),

    forget(loginId) {
      if (loginId !== undefined) logins.delete(loginId)
      else for (const cache of [logins, memberships, profiles, projects]) cache.clear()
    },
  }
}

// There are many of them, each of one session.
const changedLogin = ({ type, id }: CacheChange) => (type === 'Login' ? id : undefined)

function staleSessions(change: CacheChange) {
  if (!IN_SESSIONS.has(change.type)) return undefined
  return (session: Session | undefined) => session === undefined || concerns(session, change)
}

function staleProjects(change: CacheChange) {
  if (!IN_SESSIONS.has(change.type)) return undefined
  return (project: ProjectContext | undefined) =>
    project === undefined || concernsProject(project, change)
}

/** The types that sessions are made of. */
const IN_SESSIONS = new Set<ReportedType>([
  ...(['ProjectMembership', 'Bot', 'ClientApplication', 'Project'] as const),
  ...(['AccessPolicy', 'UserConfiguration', SEARCH_PARAMETER] as const),
])

function concernsProject(project: ProjectContext, { type, id, number }: CacheChange): boolean {
  return type === SEARCH_PARAMETER
    ? number === project.number
    : type === 'Project' && id === project.id
}

/** Returns a predicate for changes that invalidate the session. */
function concerns({ principal, membership, profile }: Session, change: CacheChange) {
  const { project, clientId } = principal
  const isNear = (id: string | undefined) =>
    id !== undefined && (id === project.id || project.links?.includes(id) === true)
  const { type, id, home } = change
  switch (type) {
    case 'ProjectMembership':
      return id === membership.id
    case 'Bot':
      return id === profile.id
    case 'ClientApplication':
      return id === profile.id || id === clientId
    case 'Project':
      return isNear(id)
    case 'AccessPolicy':
    case 'UserConfiguration':
      return isNear(home)
    default:
      return concernsProject(project, change)
  }
}

/** Reads and builds sessions, without caching. */
class Sessions {
  readonly #place: MembershipRows
  readonly #own: OwnParametersReader
  readonly #log: Logger
  readonly #options: PrincipalsOptions
  readonly #warned = new Set<string>()

  constructor(
    place: MembershipRows,
    own: OwnParametersReader,
    log: Logger,
    options: PrincipalsOptions,
  ) {
    this.#place = place
    this.#own = own
    this.#log = log
    this.#options = options
  }

  async ofLogin(loginId: string): Promise<Session | undefined> {
    const found = await readLoginMembership(this.#place, loginId)
    if (found?.login.granted !== true || found.login.revoked === true) return undefined
    return await this.of(found.membership, found.login)
  }

  async ofProfile(reference: string, projectId?: string): Promise<Session | undefined> {
    const found = await readProfileMemberships(this.#place, reference, projectId)
    for (const membership of found.filter(({ active }) => active !== false)) {
      const session = await this.of(membership)
      if (projectId !== undefined || session?.isProfileLinked === false) return session
    }
    return undefined
  }

  async projectOf(id: string): Promise<ProjectContext | undefined> {
    const readAt = Date.now()
    const found = await readProject(this.#place, id)
    return found && this.#contextOf(found, readAt)
  }

  async of(membership: Resource | undefined, login?: Resource): Promise<Session | undefined> {
    if (membership === undefined || membership.active === false) return undefined
    const readAt = Date.now()
    const context = await readContext(this.#place, membership, login)
    if (context === undefined) return undefined
    const { project, profile, policies, configuration, client } = context
    if (isInactiveClient(profile) || isInactiveClient(client)) return undefined
    const linked = await this.#withLinks(await this.#contextOf(context, readAt))
    const { rules, warnings } = compileRules(membership, context, linked.parameters, this.#options)
    this.#warn(warnings)
    const withUnits = await readUnits(this.#place, linked, rules)
    const unscoped = unscopedPrincipal({ membership, login, context, project: withUnits, rules })
    const principal = narrowed(unscoped, unscoped.scope, unscoped.patient)
    const { isProfileLinked } = context
    return {
      principal,
      project,
      membership,
      profile,
      isProfileLinked,
      policies,
      configuration,
      login,
    }
  }

  async #contextOf(
    { project, number, own }: Pick<MembershipContext, 'project' | 'number' | 'own'>,
    readAt: number,
  ): Promise<ProjectContext> {
    const parameters = await this.#own.compiled(this.#place.database, number, own)
    return { ...projectContext(project, number), parameters, readAt }
  }

  /** Reads links fresh: the session may be stale. */
  async #withLinks(context: ProjectContext): Promise<ProjectContext> {
    const links = context.links ?? []
    if (links.length === 0) return context
    const found = await Promise.all(links.map((id) => readProject(this.#place, id)))
    const linked = found.flatMap((item) => {
      if (item === undefined) return []
      const { id, number, exports = [] } = projectContext(item.project, item.number)
      return number === context.number ? [] : [{ id, number, exports }]
    })
    return { ...context, linked }
  }

  #warn(warnings: readonly string[]): void {
    for (const warning of warnings) {
      if (this.#warned.has(warning)) continue
      this.#warned.add(warning)
      this.#log.warn(warning)
    }
  }
}

function isInactiveClient(resource: Resource | undefined): boolean {
  return resource?.resourceType === 'ClientApplication' && !isActiveClient(resource)
}

interface Standing {
  readonly membership: Resource
  readonly login: Resource | undefined
  readonly context: MembershipContext
  readonly project: ProjectContext
  readonly rules: Rules | undefined
}

/** Returns a member's full rights, before the login's scope. */
function unscopedPrincipal({ membership, login, context, project, rules }: Standing) {
  const { profile, policies, configuration } = context
  const own = profile.resourceType === 'Patient' ? profile.id : undefined
  return {
    project,
    membershipId: membership.id,
    loginId: login?.id,
    user: actingUserId(membership, login),
    profile: `${profile.resourceType}/${profile.id}`,
    profileDisplay: displayName(profile),
    clientId: targetIn(login?.client)?.id,
    scope: typeof login?.scope === 'string' ? login.scope : 'openid',
    // A run is not the person whose rights it has.
    areas: login?.authMethod === 'execute' ? (['administration'] as const) : AREAS,
    isSuperAdmin: project.superAdmin,
    isProjectAdmin: project.superAdmin || membership.admin === true,
    rules,
    patient: targetIn(login?.patient)?.id ?? own,
    allowsAddress: compileAddressRules(policies),
    quota: memberQuota(configuration),
    declared:
      profile.resourceType === 'Bot'
        ? readDeclarations(profile, project.requiresDeclarations === true)
        : undefined,
  } satisfies Principal
}

/** Returns the acting User; undefined without a login, or for one that only a Project vouches for. */
function actingUserId(membership: Resource, login: Resource | undefined): string | undefined {
  if (login === undefined || login.vouchedBy !== undefined) return undefined
  const user = targetIn(membership.user)
  return user?.type === 'User' ? user.id : undefined
}

/** Reads the units of the data, for policies that compare quantities in UCUM. One statement per Project. */
async function readUnits(
  { database: connection, keys }: MembershipRows,
  project: ProjectContext,
  rules: Rules | undefined,
): Promise<ProjectContext> {
  const asked = rules?.grants.map(({ criteria }) => ({ conditions: criteria })) ?? []
  const of = (number: number) => findUnits({ connection, keys }, number, asked)
  const linked = (project.linked ?? []).map(async (other) => ({
    ...other,
    units: await of(other.number),
  }))
  return { ...project, linked: await Promise.all(linked), units: await of(project.number) }
}

/** A missing policy grants nothing, including rights it might have limited. */
export function compileRules(
  membership: Resource,
  { project, profile, access, missing }: MembershipContext,
  own: OwnParameters | undefined,
  { openPatientAccess }: PrincipalsOptions,
): { readonly rules: Rules | undefined; readonly warnings: readonly string[] } {
  const projectId = project.id ?? ''
  if (access.length > 0 || missing.length > 0) {
    const reference = `${profile.resourceType}/${profile.id}`
    const items = access.map(({ policy, parameters }): Access => {
      const variables = policyVariables(projectId, reference, profilePatient(profile), parameters)
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

/** Returns a person's name, or `name` of a ClientApplication or Bot. */
export function displayName(profile: Resource): string | undefined {
  if (typeof profile.name === 'string') return profile.name
  const name: unknown = Array.isArray(profile.name) ? profile.name[0] : undefined
  if (!isObject(name)) return undefined
  const given = asArray(name.given)
  return [...given, name.family].filter((part) => typeof part === 'string').join(' ') || undefined
}

/*
 * Sessions narrowed to the scope of a request. All deferred work for a member carries that scope: bot runs, accepted
 * bundles, exports, imports, long jobs.
 */

type Scope = Pick<Principal, 'scope' | 'patient'>

/** Identity and scope of a job, without tokens. */
export interface Acting extends Scope {
  readonly membershipId: string
}

/** Narrowed sessions, cached as long as their session, which keeps rules compiled. */
const made = memoFor<Session, Session>()

/** Never wider than the Session. */
export function narrowSession(session: Session, { scope, patient }: Scope): Session {
  const { principal } = session
  if (scope === principal.scope && patient === principal.patient) return session
  return made(session, `${patient} ${scope}`, () => {
    return { ...session, principal: narrowed(principal, scope, patient) }
  })
}

/** Returns the member with current rights within the request's scope; undefined when inactive. */
export async function actingSession(
  principals: Pick<Principals, 'forMembership'>,
  acting: Acting,
): Promise<Session | undefined> {
  const session = await principals.forMembership(acting.membershipId)
  return session && narrowSession(session, acting)
}

/**
 * True when this Principal may see the results of a request with the given scope: it is not narrowed, or has the same
 * scope.
 */
export function coversScope(principal: Principal, { scope, patient }: Scope): boolean {
  if (principal.rules?.scoped === undefined) return true
  const own = new Set(principal.scope.split(' '))
  const asked = scope.split(' ').filter((word) => smartScopes(word).length > 0)
  return asked.length > 0 && asked.every((word) => own.has(word)) && patient === principal.patient
}
