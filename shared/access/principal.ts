/** The caller: an immutable value, cached per login; the first argument of every store call. */

import { BlockList, isIP, isIPv4 } from 'node:net'
import type { BotDeclarations } from '../fhir/bot-declarations.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { isObject, type Reference, type Resource } from '../fhir/resource.ts'
import { AREAS, type Area, type Rules } from './grant.ts'

export interface LinkedProject {
  readonly id: string
  readonly number: number
  /** Empty: all types. */
  readonly exports: readonly string[]
  readonly units?: readonly string[] | undefined
}

export interface ProjectContext {
  readonly id: string
  /** Leads every primary key (table `tenant`). */
  readonly number: number
  readonly name: string
  readonly superAdmin: boolean
  readonly strictMode: boolean
  readonly features: readonly string[]
  readonly checkReferencesOnWrite: boolean
  readonly updateAsCreate: boolean
  /** Load units a minute per member and in total (`enableFhirQuota`); negative: unlimited. */
  readonly quota?: { readonly member: number; readonly project: number } | undefined
  /** Requests a minute per address (`rateLimit`, `authRateLimit`); 0 or less: unlimited. */
  readonly rateLimits?:
    | {
        readonly requests: number | undefined
        readonly auth: number | undefined
      }
    | undefined
  /** Subscriptions may call bots before a write (`preCommitSubscriptionsEnabled`). */
  readonly preCommit?: boolean
  /** True when its Bots get secrets (`Project.secret`). */
  readonly hasSecrets?: boolean
  /** Bots reach only the secrets and hosts that they name (`botDeclarationsRequired`). */
  readonly requiresDeclarations?: boolean
  /** A sign-in with a password needs a second factor (`mfaRequired`). */
  readonly requiresFactor?: boolean
  /** True: a mailed code is the second factor of those without an authenticator app. */
  readonly mailsCodes?: boolean
  /** Concurrent bot runs over all workers (`botConcurrency`). */
  readonly botConcurrency?: number | undefined
  /** Limits of a GraphQL request (`graphqlMaxDepth`, `graphqlMaxCost`, `graphqlMaxSearches`). */
  readonly graphql?:
    | {
        readonly depth: number | undefined
        readonly cost: number | undefined
        readonly searches: number | undefined
      }
    | undefined
  readonly links?: readonly string[]
  /** The linked Projects that exist; only in sessions. */
  readonly linked?: readonly LinkedProject[]
  /** `Project.exportedResourceType`; empty: all types. */
  readonly exports?: readonly string[]
  /** Profiles by resource type, for resources that name none (`Project.defaultProfile`). */
  readonly defaultProfiles?: ReadonlyMap<string, readonly string[]>
  /** Invalid QuestionnaireResponses are rejected (`Project.setting` `validateQuestionnaireResponse`). */
  readonly refusesResponses?: boolean
  /** Codes outside of required bindings only warn (`Project.setting` `validateTerminology`). */
  readonly takesCodes?: boolean
  readonly parameters?: OwnParameters | undefined
  /** UCUM codes of its data; only in sessions whose policies search quantities by unit. */
  readonly units?: readonly string[] | undefined
  /** Time of reading, epoch ms; undefined if it was not read from the database. */
  readonly readAt?: number
}

export interface Principal {
  readonly project: ProjectContext
  /** Undefined only for the service itself. */
  readonly membershipId: string | undefined
  readonly loginId: string | undefined
  /** Id of the acting User; absent for programs, and when only a Project vouches for the person. */
  readonly user?: string | undefined
  /** `Type/id` of the profile: `meta.author` of its writes. */
  readonly profile: string | undefined
  readonly profileDisplay: string | undefined
  /** The member whose rights apply, if `profile` is another's: `meta.onBehalfOf`. */
  readonly onBehalfOf?: Reference | undefined
  readonly clientId: string | undefined
  /** Thumbprint of the client certificate that the caller's token is bound to. */
  readonly certificate?: string | undefined
  readonly scope: string
  /** Areas outside of resources that the scope includes; see grant.ts. */
  readonly areas: readonly Area[]
  readonly patient: string | undefined
  /** A member of a super admin project: project isolation does not apply. False if the scope excludes it. */
  readonly isSuperAdmin: boolean
  /** False when the scope excludes administration. */
  readonly isProjectAdmin: boolean
  /** Unrestricted inside the project when undefined. */
  readonly rules: Rules | undefined
  /** Whether its policies allow an address; absent: they allow any. */
  readonly allowsAddress?: AddressTest | undefined
  /** Load units a minute, overriding the Project's quota per member. */
  readonly quota?: number | undefined
  readonly cause?: Cause
  /** Lease of the acting bot run; absent outside of retryable runs. */
  readonly lease?: RunLease | undefined
  /** Limits of the acting Bot; absent: none. */
  readonly declared?: BotDeclarations | undefined
}

export interface Cause {
  readonly depth: number
  readonly traceId: string
  readonly requestId: string
}

export function callerKey({ membershipId, scope, patient }: Principal): string {
  return JSON.stringify([membershipId, scope, patient])
}

export function profileReference({
  profile,
  profileDisplay,
}: Pick<Principal, 'profile' | 'profileDisplay'>): Reference {
  const display = profileDisplay === undefined ? {} : { display: profileDisplay }
  return { reference: profile ?? 'system', ...display }
}

/** The system project holds the platform's registry (`REGISTRY_TYPES` in policy.ts). */
export const SYSTEM_PROJECT_NUMBER = 1

/** The service itself, without policy and author. It reaches all Projects, or only this one. */
export function systemPrincipal(
  project: ProjectContext,
  reach: 'everywhere' | 'project' = 'everywhere',
): Principal {
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
    isSuperAdmin: reach === 'everywhere',
    isProjectAdmin: true,
    rules: undefined,
  }
}

/** The service's work for a caller whose right to it was checked: no policy, and the caller as the author. */
export function servicePrincipal(
  project: ProjectContext,
  caller: Partial<Pick<Principal, 'profile' | 'profileDisplay' | 'onBehalfOf' | 'cause'>>,
): Principal {
  const { profile, profileDisplay, onBehalfOf, cause } = caller
  const author = { profile, profileDisplay, ...(onBehalfOf && { onBehalfOf }) }
  return { ...systemPrincipal(project), ...author, ...(cause && { cause }) }
}

export interface RunLease {
  readonly owner: 'r' | 'o' | 'd' | 'j'
  readonly run: string
  readonly token: number
}

type AddressTest = (address: string) => boolean

/**
 * Undefined without rules. The first rule that matches decides, in the order of the policies; an unreadable one blocks
 * every address. IPv4-mapped IPv6 addresses count as IPv4.
 */
export function compileAddressRules(policies: readonly Resource[]): AddressTest | undefined {
  const rules = policies.flatMap(({ ipAccessRule }) => {
    if (ipAccessRule === undefined) return []
    const items: readonly unknown[] = Array.isArray(ipAccessRule) ? ipAccessRule : [ipAccessRule]
    return items.map((item) => {
      const { value, action } = isObject(item) ? item : {}
      const matches = typeof value === 'string' ? compileIpRule(value.trim()) : undefined
      if (matches === undefined || (action !== 'allow' && action !== 'block')) {
        return { action: 'block', matches: () => true }
      }
      return { action, matches }
    })
  })
  if (rules.length === 0) return undefined
  return (address) => {
    const plain = plainAddress(address)
    return rules.find((rule) => rule.matches(plain))?.action !== 'block'
  }
}

/** Accepts `*`, an address, a block such as `10.0.0.0/8`, or a prefix (`8.8.`); otherwise undefined. */
export function compileIpRule(value: string): AddressTest | undefined {
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
