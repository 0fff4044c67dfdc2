/**
 * Secrets of a Subscription: its author and project admins see them, others only that they
 * are there.
 */
import { badRequest } from '../../errors.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import type { Principal } from '../principal.ts'
import { SECRETS, SUBSCRIPTION } from '../subscription.ts'

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
 * Who writes a version is its author and sees all of it: so what is masked cannot be kept by writing the
 * mask. Errors: 400.
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
