/**
 * Elements that no policy can show, and those only the service itself changes. Hidden ones are left
 * out of every answer and kept as stored on every write. What a policy hides is field-paths.ts's.
 */

import { badRequest } from '../../errors.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import type { Principal } from '../principal.ts'
import { SECRETS, SUBSCRIPTION } from '../subscription.ts'

interface Masks {
  /** Never in any answer. */
  readonly always?: readonly string[]
  /** Shown to super admins only. */
  readonly superAdmin?: readonly string[]
  /** Shown to project admins and super admins only. */
  readonly admin?: readonly string[]
  /** Changed by super admins only. */
  readonly readonly?: readonly string[]
  /** Changed by nobody once it is written. */
  readonly fixed?: readonly string[]
}

const MASKS: Readonly<Record<string, Masks>> = {
  User: {
    always: ['passwordHash', 'mfaSecret', 'provenEmail'],
    readonly: ['email', 'emailVerified', 'mfaEnrolled', 'project'],
  },
  Login: { always: ['code', 'cookie', 'browser', 'refreshSecret'] },
  JsonWebKey: { always: ['d', 'p', 'q', 'dp', 'dq', 'qi', 'k'] },
  Project: {
    superAdmin: ['superAdmin', 'systemSecret', 'strictMode'],
    readonly: ['features', 'link', 'systemSetting', 'owner'],
  },
  ProjectMembership: { fixed: ['project', 'user'] },
  Bot: { readonly: ['system'] },
  ClientApplication: { admin: ['secret', 'retiringSecret', 'identityProvider'] },
}

/** Nothing is hidden from the service's own work. */
export function hiddenFields(principal: Principal, type: string): readonly string[] {
  const masks = MASKS[type]
  if (masks === undefined || isService(principal)) return []
  return [
    ...(masks.always ?? []),
    ...(principal.isSuperAdmin ? [] : (masks.superAdmin ?? [])),
    ...(principal.isSuperAdmin || principal.isProjectAdmin ? [] : (masks.admin ?? [])),
  ]
}

/** Elements a change by this Principal leaves as they are stored: hidden, read-only and fixed ones. */
export function keptFields(principal: Principal, type: string): readonly string[] {
  const fixed = isService(principal) ? [] : (MASKS[type]?.fixed ?? [])
  return [...fieldsNotCreated(principal, type), ...fixed]
}

/** Elements that a new resource does not get from this Principal: hidden and read-only ones. */
export function fieldsNotCreated(principal: Principal, type: string): readonly string[] {
  const hidden = hiddenFields(principal, type)
  return principal.isSuperAdmin ? hidden : [...hidden, ...(MASKS[type]?.readonly ?? [])]
}

export function strip(resource: Resource, fields: readonly string[]): Resource {
  const shown = Object.entries(resource).filter(([name]) => !fields.includes(name))
  // Safe: `resourceType` is never among the fields.
  return Object.fromEntries(shown) as Resource
}

/** `next` with `fields` as in `stored`, absent ones included. */
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

// * Secrets of a Subscription: its author and project admins see them, others only that they
// are there.

const MASK = '***'

/** `author` is that of the version. */
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

/** True when versions of the type may hold secrets of their author. */
export function isMasked(type: string): boolean {
  return type === SUBSCRIPTION
}

/** True when a version may hold what is not for this Principal. */
export function hasMasks(type: string, principal: Principal, author: string | undefined): boolean {
  if (!isMasked(type) || principal.isProjectAdmin) return false
  return principal.profile === undefined || principal.profile !== author
}

/**
 * Refuses masks in a write: the writer becomes the author, who sees all of the version, so a mask cannot stand
 * for the stored value. Errors: 400.
 */
export function refuseMasks({ resourceType, extension, channel }: Resource): void {
  if (!isMasked(resourceType)) return
  const header = isObject(channel) ? channel.header : undefined
  if (Array.isArray(header) && header.includes(MASK))
    throw hiddenValue('Subscription.channel.header')
  const secrets = Array.isArray(extension) ? extension.filter(isSecret) : []
  if (secrets.some(({ valueString }) => valueString === MASK)) {
    throw hiddenValue('Subscription.extension')
  }
}

/** Element path → value, of what a Subscription keeps secret. */
export function secretsOf({ extension, channel }: Resource): Readonly<Record<string, unknown>> {
  const secrets = Array.isArray(extension) ? extension.filter(isSecret) : []
  const header = isObject(channel) ? channel.header : undefined
  return {
    ...(header === undefined ? {} : { 'channel.header': header }),
    ...(secrets.length === 0 ? {} : { extension: secrets }),
  }
}

function hiddenValue(path: string) {
  return badRequest(`${MASK} stands for a secret; say another one or leave it out`, path)
}

function maskedSecret(item: unknown): unknown {
  return isSecret(item) ? { ...item, valueString: MASK } : item
}

function isSecret(item: unknown): item is Record<string, unknown> {
  return isObject(item) && SECRETS.has(item.url)
}
