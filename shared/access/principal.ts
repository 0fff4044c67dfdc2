/** The caller: an immutable value, made once per login and cached; every call of the store takes it first. */

import { BlockList, isIP, isIPv4 } from 'node:net'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { isObject, type Reference, type Resource } from '../fhir/resource.ts'
import { AREAS, type Area, type Rules } from './grant.ts'

/** A Project whose resources another one may read. */
export interface LinkedProject {
  readonly id: string
  readonly number: number
  /** Types that it shares; empty: all. */
  readonly exports: readonly string[]
  /** As of one's own. */
  readonly units?: readonly string[] | undefined
}

/** The Project a Principal works in, as the store needs it. */
export interface ProjectContext {
  /** Id of the Project resource. */
  readonly id: string
  /** The small integer that leads every primary key (table `tenant`). */
  readonly number: number
  readonly name: string
  readonly superAdmin: boolean
  readonly strictMode: boolean
  readonly features: readonly string[]
  readonly checkReferencesOnWrite: boolean
  /** Project.systemSetting `updateAsCreate`. */
  readonly updateAsCreate: boolean
  /** Load units a minute of each member and of all (`enableFhirQuota`); negative: no limit. */
  readonly quota?: { readonly member: number; readonly project: number } | undefined
  /** Requests a minute and address (`rateLimit`, `authRateLimit`); 0 or less: no limit. */
  readonly rateLimits?:
    | {
        readonly requests: number | undefined
        readonly auth: number | undefined
      }
    | undefined
  /** Its Subscriptions may have bots asked about writes before they are made (`preCommitSubscriptionsEnabled`). */
  readonly preCommit?: boolean
  /** Its Bots get secrets (`Project.secret`). */
  readonly hasSecrets?: boolean
  /** Bot runs at a time over all workers (`botConcurrency`). */
  readonly botConcurrency?: number | undefined
  /** Own limits of a GraphQL request (`graphqlMaxDepth`, `graphqlMaxCost`, `graphqlMaxSearches`). */
  readonly graphql?:
    | {
        readonly depth: number | undefined
        readonly cost: number | undefined
        readonly searches: number | undefined
      }
    | undefined
  /** Ids of Projects whose shared resources this one may read (`Project.link`). */
  readonly links?: readonly string[]
  /** The linked Projects that exist; only sessions have them. */
  readonly linked?: readonly LinkedProject[]
  /** Types that linking Projects may read (`Project.exportedResourceType`); empty: all. */
  readonly exports?: readonly string[]
  /** By resource type: profiles of a resource that names none (`Project.defaultProfile`). */
  readonly defaultProfiles?: ReadonlyMap<string, readonly string[]>
  /** `Project.setting` `validateQuestionnaireResponse` is `refuse`: others are warned of. */
  readonly refusesResponses?: boolean
  /** `Project.setting` `validateTerminology` is `off`: codes outside of required bindings are warned of. */
  readonly takesCodes?: boolean
  /** Search parameters that it defines for itself. */
  readonly parameters?: OwnParameters | undefined
  /** UCUM codes of its data; of sessions whose policies ask for quantities in one. */
  readonly units?: readonly string[] | undefined
  /** When all this was read, epoch ms; undefined for what is not read from the database. */
  readonly readAt?: number
}

export interface Principal {
  readonly project: ProjectContext
  /** Undefined only for the system's own work. */
  readonly membershipId: string | undefined
  readonly loginId: string | undefined
  /** Id of the User who acts; absent for programs, and where only a Project says who it is. */
  readonly user?: string | undefined
  /** `Type/id` of the member's profile: `meta.author` of what it writes. */
  readonly profile: string | undefined
  readonly profileDisplay: string | undefined
  /** The member whose rights these are, when `profile` is another's: `meta.onBehalfOf`. */
  readonly onBehalfOf?: Reference | undefined
  readonly clientId: string | undefined
  readonly scope: string
  /** Areas that the scope reaches besides resources; see grant.ts. */
  readonly areas: readonly Area[]
  /** Id of the Patient in context, which `patient/` scopes are about. */
  readonly patient: string | undefined
  /** A member of a super admin project; project isolation does not apply to it. False outside of its scope. */
  readonly isSuperAdmin: boolean
  /** False for an administrator whose scope does not reach the administration. */
  readonly isProjectAdmin: boolean
  /** Compiled access policy; undefined is unrestricted inside the project. */
  readonly rules: Rules | undefined
  /** From where its policies let it ask; absent: from anywhere. */
  readonly ipRules?: readonly IpRule[]
  /** Its own load units a minute, instead of what its Project gives each member. */
  readonly quota?: number | undefined
  /** The cause of the current action; absent where nobody follows it. */
  readonly cause?: Cause
  /** The run of a bot that acts; absent where none does, or none that may be repeated. */
  readonly lease?: RunLease | undefined
}

export interface Cause {
  /** How many bots have caused each other to get here. */
  readonly depth: number
  readonly traceId: string
  readonly requestId: string
}

/** By which answers are cached for who asked: who that is, and how far its scope reaches. */
export function callerKey({ membershipId, scope, patient }: Principal): string {
  return JSON.stringify([membershipId, scope, patient])
}

/** The member's profile, as `meta.author` and `meta.onBehalfOf` name it. */
export function profileReference({
  profile,
  profileDisplay,
}: Pick<Principal, 'profile' | 'profileDisplay'>): Reference {
  const display = profileDisplay === undefined ? {} : { display: profileDisplay }
  return { reference: profile ?? 'system', ...display }
}

/** The system project holds the platform's registry (see `REGISTRY_TYPES` in policy.ts). */
export const SYSTEM_PROJECT_NUMBER = 1

/** The service's own work inside one project: no policy, no author. */
export function systemPrincipal(project: ProjectContext): Principal {
  return {
    project,
    membershipId: undefined,
    loginId: undefined,
    profile: undefined,
    profileDisplay: undefined,
    clientId: undefined,
    scope: '',
    areas: AREAS,
    patient: undefined,
    isSuperAdmin: true,
    isProjectAdmin: true,
    rules: undefined,
  }
}

export interface RunLease {
  /** The table of the row: `pending_run`, `occurrence`, `delivery` or `job`. */
  readonly owner: 'r' | 'o' | 'd' | 'j'
  readonly run: string
  /** The token of the lease. */
  readonly token: number
}

interface IpRule {
  readonly action: 'allow' | 'block'
  readonly matches: (address: string) => boolean
}

/** In the order of the policies. What cannot be read blocks every address. */
export function readIpRules(policies: readonly Resource[]): readonly IpRule[] {
  return policies.flatMap(({ ipAccessRule }) => {
    if (ipAccessRule === undefined) return []
    const items: readonly unknown[] = Array.isArray(ipAccessRule) ? ipAccessRule : [ipAccessRule]
    return items.map((item): IpRule => {
      const { value, action } = isObject(item) ? item : {}
      const matches = typeof value === 'string' ? compileIpRule(value.trim()) : undefined
      if (matches === undefined || (action !== 'allow' && action !== 'block')) {
        return { action: 'block', matches: () => true }
      }
      return { action, matches }
    })
  })
}

/** IPv4 addresses in the form of IPv6 count as IPv4. */
export function isAllowedFrom(rules: readonly IpRule[] | undefined, address: string): boolean {
  if (rules === undefined || rules.length === 0) return true
  const plain = plainAddress(address)
  return rules.find((rule) => rule.matches(plain))?.action !== 'block'
}

/** `*`, an address, a block such as `10.0.0.0/8`, or the beginning of addresses (`8.8.`); else undefined. */
export function compileIpRule(value: string): ((address: string) => boolean) | undefined {
  if (value === '*') return () => true
  if (/^[0-9a-f.:]*[.:]$/i.test(value) && isIP(value) === 0) {
    return (address) => address.toLowerCase().startsWith(value.toLowerCase())
  }
  const [base = '', bits, more] = value.split('/')
  const address = plainAddress(base)
  if (isIP(address) === 0 || more !== undefined) return undefined
  const family = isIPv4(address) ? 'ipv4' : 'ipv6'
  const widest = family === 'ipv4' ? 32 : 128
  const prefix = bits === undefined ? widest : Number(bits)
  if (!/^\d{1,3}$/.test(bits ?? '0') || prefix > widest) return undefined
  const block = new BlockList()
  block.addSubnet(address, prefix, family)
  return (one) => isIP(one) !== 0 && block.check(one, isIPv4(one) ? 'ipv4' : 'ipv6')
}

function plainAddress(address: string): string {
  return address.replace(/^::ffff:(?=\d+\.\d+\.\d+\.\d+$)/i, '')
}
