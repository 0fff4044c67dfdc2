/**
 * Elements that the platform hides or protects under every policy: left out of responses, kept on writes. See also
 * paths.ts.
 */
import { badRequest } from '../../core/errors.ts'
import { typeElements } from '../../fhir/definitions.ts'
import { parseJson } from '../../fhir/json.ts'
import { eachMember, valueEnd } from '../../fhir/json-text.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import { cutBelow, wholeMembers, withoutPaths } from '../paths.ts'
import type { Principal } from '../principal.ts'
import { SECRETS, SUBSCRIPTION } from '../subscription.ts'
import { secretPaths, withoutSecretExtensions } from './secrets.ts'

interface Masks {
  /** Never shown. */
  readonly always?: readonly string[]
  /** Names in `always` that the service searches by: digests of random values. */
  readonly digests?: readonly string[]
  /** Shown to super admins only. */
  readonly superAdmin?: readonly string[]
  readonly admin?: readonly string[]
  readonly readonly?: readonly string[]
  /** Immutable once written. */
  readonly fixed?: readonly string[]
}

const MASKS: Readonly<Record<string, Masks>> = {
  User: {
    always: ['passwordHash', 'mfaSecret', 'provenEmail'],
    readonly: ['email', 'emailVerified', 'mfaEnrolled', 'project'],
  },
  Login: { always: ['code', 'cookie', 'browser', 'refreshSecret'], digests: ['code', 'cookie'] },
  JsonWebKey: { always: ['d', 'p', 'q', 'dp', 'dq', 'qi', 'k'] },
  Project: {
    superAdmin: ['superAdmin', 'systemSecret', 'strictMode'],
    readonly: ['features', 'link', 'systemSetting', 'owner'],
  },
  ProjectMembership: { fixed: ['project', 'user'] },
  Bot: { readonly: ['system'] },
  ClientApplication: { admin: ['secret', 'retiringSecret', 'identityProvider'] },
}

export function hasPlatformMasks(type: string): boolean {
  return MASKS[type] !== undefined || isMasked(type)
}

/** Returns the paths that no caller may search: secrets, and elements hidden from anyone. */
export function unsearchablePaths(type: string): readonly string[] {
  const known = unsearchable.get(type)
  if (known !== undefined) return known
  const { always = [], superAdmin = [], admin = [], digests = [] } = MASKS[type] ?? {}
  const masked = [...always, ...superAdmin, ...admin].filter((name) => !digests.includes(name))
  const paths = [...masked, ...secretPaths(type)]
  unsearchable.set(type, paths)
  return paths
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
  const key = `${type} ${level}`
  const known = hidden.get(key)
  if (known !== undefined) return known
  const made = [
    ...(masks.always ?? []),
    ...(level === 'superAdmin' ? [] : (masks.superAdmin ?? [])),
    ...(level === 'member' ? (masks.admin ?? []) : []),
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

export function strip(resource: Resource, fields: readonly string[]): Resource {
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

/** True when versions of the type may hold secrets of their author. */
function isMasked(type: string): boolean {
  return type === SUBSCRIPTION
}

/** True when a version may hold secrets that this Principal must not see. */
export function hasMasks(type: string, principal: Principal, author: string | undefined): boolean {
  if (!isMasked(type) || principal.isProjectAdmin) return false
  return principal.profile === undefined || principal.profile !== author
}

/** Errors: 400. The writer becomes the author, so a mask cannot stand for the stored value. */
export function rejectMasks({ resourceType, extension, channel }: Resource): void {
  if (!isMasked(resourceType)) return
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
  return badRequest(`${MASK} stands for a secret; say another one or leave it out`, path)
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
  const names = soughtNames(type, paths)
  const isPlain = names !== undefined && !text.includes('"contained":')
  return (isPlain ? withoutNames(text, names) : undefined) ?? withoutWalk(type, text, paths)
}

function withoutWalk(type: string, text: string, paths: readonly string[]): string {
  const members: string[] = []
  eachMember(text, (name, at, start, end) => {
    const left = cutBelow(type, paths, name, () => parseJson(text.slice(start, end)))
    if (left === 'all') members.push(text.slice(at, end))
    else if (left !== undefined) members.push(`"${name}":${JSON.stringify(left)}`)
  })
  return `{${members.join(',')}}`
}

/** Above this, a walk is cheaper than searching for each. */
const MAX_SOUGHT = 16
const sought = new WeakMap<readonly string[], Map<string, readonly string[] | undefined>>()

/** Names of wholly hidden elements; undefined when other members have the same names. */
function soughtNames(type: string, paths: readonly string[]): readonly string[] | undefined {
  const byType = sought.get(paths) ?? new Map<string, readonly string[] | undefined>()
  if (byType.has(type)) return byType.get(type)
  sought.set(paths, byType)
  const nested = nestedNames(type)
  const whole = wholeMembers(type, paths)?.flatMap((name) => [name, `_${name}`]) ?? []
  const isAlone = nested !== undefined && !whole.some((name) => nested.has(name))
  const isSought = isAlone && whole.length > 0 && whole.length <= MAX_SOUGHT
  byType.set(type, isSought ? whole : undefined)
  return byType.get(type)
}

/** Undefined when the text does not decide. Quotes in strings are escaped, so each match is a member. */
function withoutNames(text: string, names: readonly string[]): string | undefined {
  let left = text
  for (const name of names) {
    const key = `"${name}":`
    const at = left.indexOf(key)
    if (at < 0) continue
    // Never the first member, which is `resourceType`. A second match may be another member.
    if (left[at - 1] !== ',' || left.includes(key, at + 1)) return undefined
    const end = valueEnd(left, at + name.length + 3)
    left = left.slice(0, at - 1) + left.slice(end)
  }
  return left
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

/**
 * Collects the names in all types that an element below the root, or an extension, may have. Undefined for a type
 * that holds whole resources, as a Bundle does; the caller looks for `contained` ones.
 */
function nestedNames(type: string): ReadonlySet<string> | undefined {
  if (!known.has(type)) known.set(type, namesBelow(type))
  return known.get(type)
}

const known = new Map<string, ReadonlySet<string> | undefined>()

function namesBelow(type: string): ReadonlySet<string> | undefined {
  const names = new Set<string>()
  const seen = new Set<string>()
  const pending = ['Extension', 'Element']
  const take = (owner: string, isRoot: boolean) => {
    for (const { path, choice, types } of typeElements(owner)) {
      if (isRoot && path === 'contained') continue
      const name = path.slice(path.lastIndexOf('.') + 1)
      const forms = choice ? types.map(({ code }) => name + capital(code)) : [name]
      if (!isRoot || path.includes('.')) for (const form of forms) names.add(form)
      pending.push(...types.map(({ code }) => code))
    }
  }
  take(type, true)
  for (let owner = pending.pop(); owner !== undefined; owner = pending.pop()) {
    if (owner === 'Resource' || owner === 'DomainResource') return undefined
    if (seen.has(owner)) continue
    seen.add(owner)
    take(owner, false)
  }
  return names
}

function capital(code: string): string {
  return code.charAt(0).toUpperCase() + code.slice(1)
}
