/**
 * Elements that the platform hides or protects under every policy: left out of responses, kept on writes. See also
 * paths.ts.
 */

import { getOrInsert } from '../../core/cache.ts'
import { badRequest } from '../../core/errors.ts'
import { parseJson } from '../../fhir/json.ts'
import { eachMember } from '../../fhir/json-text.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import { cutBelow, withoutPaths } from '../paths.ts'
import type { Principal } from '../principal.ts'
import { SECRETS, SUBSCRIPTION } from '../subscription.ts'

interface Masks {
  /** Never shown. */
  readonly always?: readonly string[]
  /** Names in `always` that the service searches by: digests of random values. */
  readonly digests?: readonly string[]
  /** Shown to super admins only. */
  readonly superAdmin?: readonly string[]
  readonly admin?: readonly string[]
  /** Hidden from Bots that may not read every secret. */
  readonly limitedBots?: readonly string[]
  readonly readonly?: readonly string[]
  /** Immutable once written. */
  readonly fixed?: readonly string[]
  /**
   * Paths that no index, expression, constraint, profile or export reads: each would answer questions about its input,
   * or outlive the rights of its owner. Reads show some to administrators.
   */
  readonly secrets?: readonly string[]
}

const PRIVATE_KEY = ['d', 'p', 'q', 'dp', 'dq', 'qi', 'k']

const MASKS: Readonly<Record<string, Masks>> = {
  User: {
    always: ['passwordHash', 'mfaSecret', 'provenEmail'],
    readonly: ['email', 'emailVerified', 'mfaEnrolled', 'project'],
    secrets: ['passwordHash', 'mfaSecret'],
  },
  Login: {
    always: ['code', 'cookie', 'browser', 'refreshSecret', 'preAuthorizedCodeHash', 'emailMfa'],
    digests: ['code', 'cookie'],
    secrets: ['refreshSecret', 'browser', 'preAuthorizedCodeHash', 'emailMfa.codeHash'],
  },
  JsonWebKey: { always: PRIVATE_KEY, secrets: PRIVATE_KEY },
  Project: {
    superAdmin: ['superAdmin', 'systemSecret', 'strictMode'],
    limitedBots: ['secret', 'systemSecret'],
    readonly: ['features', 'link', 'systemSetting', 'owner'],
    secrets: ['secret', 'systemSecret', 'site.recaptchaSecretKey', 'site.googleClientSecret'],
  },
  ProjectMembership: { fixed: ['project', 'user'] },
  Bot: { readonly: ['system'] },
  ClientApplication: {
    admin: ['secret', 'retiringSecret', 'identityProvider'],
    limitedBots: ['secret', 'retiringSecret', 'identityProvider'],
    secrets: [
      'secret',
      'retiringSecret',
      'identityProvider.clientSecret',
      'identityProvider.userInfoApiKey',
    ],
  },
  DomainConfiguration: {
    secrets: ['identityProvider.clientSecret', 'identityProvider.userInfoApiKey'],
  },
  Subscription: { secrets: ['channel.header'] },
  UserSecurityRequest: { secrets: ['secret'] },
}

/** Types with elements that the platform hides, or with secrets of their authors. */
export const MASKED_TYPES: ReadonlySet<string> = new Set(Object.keys(MASKS))

/** Returns the paths that no caller may search: secrets, and elements hidden from anyone. */
export function unsearchablePaths(type: string): readonly string[] {
  return getOrInsert(unsearchable, type, () => {
    const { always = [], superAdmin = [], admin = [], digests = [] } = MASKS[type] ?? {}
    const masked = [...always, ...superAdmin, ...admin].filter((name) => !digests.includes(name))
    return [...masked, ...secretPaths(type)]
  })
}

const unsearchable = new Map<string, readonly string[]>()

/** Returns the resource for indexing, without unsearchable elements: a search would let callers guess them. */
export function searchable(resource: Resource): Resource {
  const paths = unsearchablePaths(resource.resourceType)
  return paths.length === 0 ? resource : withoutSecretExtensions(withoutPaths(resource, paths))
}

export function hiddenFields(principal: Principal, type: string): readonly string[] {
  const masks = MASKS[type]
  if (masks === undefined || isService(principal)) return []
  const level = principal.isSuperAdmin
    ? 'superAdmin'
    : principal.isProjectAdmin
      ? 'admin'
      : 'member'
  const hasSecrets = principal.declared?.secrets === undefined
  const key = `${type} ${level} ${hasSecrets}`
  const known = hidden.get(key)
  if (known !== undefined) return known
  const made = [
    ...(masks.always ?? []),
    ...(level === 'superAdmin' ? [] : (masks.superAdmin ?? [])),
    ...(level === 'member' ? (masks.admin ?? []) : []),
    ...(hasSecrets ? [] : (masks.limitedBots ?? [])),
  ]
  hidden.set(key, made)
  return made
}

/** Returns the same array each time, since compiled paths are cached by it. */
const hidden = new Map<string, readonly string[]>()

/** Elements that a change by this Principal leaves as stored: hidden, read-only and fixed ones. */
export function keptFields(principal: Principal, type: string): readonly string[] {
  const fixed = isService(principal) ? [] : (MASKS[type]?.fixed ?? [])
  return [...fieldsNotCreated(principal, type), ...fixed]
}

/** Elements that this Principal cannot set on create: hidden and read-only ones. */
export function fieldsNotCreated(principal: Principal, type: string): readonly string[] {
  const hidden = hiddenFields(principal, type)
  return principal.isSuperAdmin ? hidden : [...hidden, ...(MASKS[type]?.readonly ?? [])]
}

function strip(resource: Resource, fields: readonly string[]): Resource {
  const shown = Object.entries(resource).filter(([name]) => !fields.includes(name))
  return Object.fromEntries(shown) as Resource
}

export function keep(
  next: Resource,
  stored: Resource | undefined,
  fields: readonly string[],
): Resource {
  if (fields.length === 0) return next
  const kept = Object.entries(stored ?? {}).filter(([name]) => fields.includes(name))
  return { ...strip(next, fields), ...Object.fromEntries(kept) }
}

function isService(principal: Principal): boolean {
  return principal.isSuperAdmin && principal.membershipId === undefined
}

// Secrets of a Subscription are masked for everyone but its author and project admins.

const MASK = '***'

export function masked(
  resource: Resource,
  principal: Principal,
  author: string | undefined,
): Resource {
  if (!hasMasks(resource.resourceType, principal, author)) return resource
  const { extension, channel } = resource
  return {
    ...resource,
    ...(Array.isArray(extension) ? { extension: extension.map(maskedSecret) } : {}),
    ...(isObject(channel) && Array.isArray(channel.header)
      ? { channel: { ...channel, header: channel.header.map(() => MASK) } }
      : {}),
  }
}

/** True when a version may hold secrets that this Principal must not see. */
export function hasMasks(type: string, principal: Principal, author: string | undefined): boolean {
  if (type !== SUBSCRIPTION || principal.isProjectAdmin) return false
  return principal.profile === undefined || principal.profile !== author
}

/** Errors: 400. The writer becomes the author, so a mask cannot stand for the stored value. */
export function rejectMasks({ resourceType, extension, channel }: Resource): void {
  if (resourceType !== SUBSCRIPTION) return
  const header = isObject(channel) ? channel.header : undefined
  if (Array.isArray(header) && header.includes(MASK))
    throw hiddenValue('Subscription.channel.header')
  const secrets = Array.isArray(extension) ? extension.filter(isSecret) : []
  if (secrets.some(({ valueString }) => valueString === MASK)) {
    throw hiddenValue('Subscription.extension')
  }
}

export function subscriptionSecrets({
  extension,
  channel,
}: Resource): Readonly<Record<string, unknown>> {
  const secrets = Array.isArray(extension) ? extension.filter(isSecret) : []
  const header = isObject(channel) ? channel.header : undefined
  return {
    ...(header === undefined ? {} : { 'channel.header': header }),
    ...(secrets.length === 0 ? {} : { extension: secrets }),
  }
}

function hiddenValue(path: string) {
  return badRequest(`${MASK} is a masked value: send a new secret or omit it`, path)
}

function maskedSecret(item: unknown): unknown {
  return isSecret(item) ? { ...item, valueString: MASK } : item
}

function isSecret(item: unknown): item is Record<string, unknown> {
  return isObject(item) && SECRETS.has(item.url)
}

/* Cuts elements out of stored JSON text without parsing it, except elements of which a part is hidden. */

/** Needs JSON without white space. Errors: SyntaxError. */
export function removeJsonPaths(type: string, text: string, paths: readonly string[]): string {
  const members: string[] = []
  eachMember(text, (name, at, start, end) => {
    const left = cutBelow(type, paths, name, () => parseJson(text.slice(start, end)))
    if (left === 'all') members.push(text.slice(at, end))
    else if (left !== undefined) members.push(`"${name}":${JSON.stringify(left)}`)
  })
  return `{${members.join(',')}}`
}

/** Errors: SyntaxError. */
export function readMembers(
  text: string,
  isWanted: (name: string) => boolean,
): Record<string, unknown> {
  const members: Record<string, unknown> = {}
  eachMember(text, (name, _at, start, end) => {
    if (isWanted(name)) members[name] = parseJson(text.slice(start, end))
  })
  return members
}

const SECRET_EXTENSION = /secret$/i
const NONE: readonly string[] = []

export function secretPaths(type: string): readonly string[] {
  return MASKS[type]?.secrets ?? NONE
}

export function hasSecretExtensions(type: string): boolean {
  return MASKS[type]?.secrets !== undefined
}

/** Returns the resource for evaluators, without secret elements and extensions. */
export function withoutSecrets(resource: Resource): Resource {
  const paths = MASKS[resource.resourceType]?.secrets
  if (paths === undefined) return resource
  return withoutSecretExtensions(withoutPaths(resource, paths))
}

/** Returns the resource as the Principal may see it, always without secrets. */
export function withoutHidden(principal: Principal, resource: Resource): Resource {
  const hidden = hiddenFields(principal, resource.resourceType)
  return withoutSecrets(withoutPaths(resource, hidden))
}

export function withoutSecretExtensions(resource: Resource): Resource {
  const { extension, ...rest } = resource
  if (!Array.isArray(extension)) return resource
  const kept = extension.filter((item) => !hasSecretName(item))
  return (kept.length === 0 ? rest : { ...rest, extension: kept }) as Resource
}

function hasSecretName(item: unknown): boolean {
  return isObject(item) && typeof item.url === 'string' && SECRET_EXTENSION.test(item.url)
}
