/** SCIM users: a membership and its User as one resource. https://datatracker.ietf.org/doc/html/rfc7643#section-4.1 */

import { hash } from 'node:crypto'
import { HttpError, issue, outcome } from '../../../shared/core/errors.ts'
import {
  asArray,
  isObject,
  type Resource,
  targetIn,
  toObjects,
} from '../../../shared/fhir/resource.ts'

const USER_SCHEMA = 'urn:ietf:params:scim:schemas:core:2.0:User'

/** The stored part of a SCIM user; undefined means not given. */
export interface ScimUser {
  readonly userName: string | undefined
  readonly externalId: string | undefined
  readonly givenName: string | undefined
  readonly familyName: string | undefined
  /** In lower case. */
  readonly email: string | undefined
  readonly active: boolean | undefined
  readonly userType: string | undefined
}

/** https://datatracker.ietf.org/doc/html/rfc7644#section-3.12, table 9. */
type ScimType = 'invalidPath' | 'invalidSyntax' | 'invalidValue' | 'mutability' | 'noTarget'

/** Creates a 400 with a SCIM error type, by which clients distinguish errors. */
export function scimError(type: ScimType, text: string, attribute?: string): HttpError {
  const { details, ...found } = issue('error', 'invalid', text, { expression: attribute })
  const typed = { ...found, details: { ...details, coding: [{ code: type }] } }
  return new HttpError(400, outcome(undefined, typed))
}

/** Identity providers may send strings instead of booleans. */
function parseScimBoolean(value: unknown): boolean | undefined {
  if (value === undefined || value === null) return undefined
  const text = typeof value === 'string' ? value.toLowerCase() : JSON.stringify(value)
  if (text === 'true' || text === 'false') return text === 'true'
  throw scimError('invalidValue', 'active must be true or false', 'active')
}

function parseScimString(value: unknown, name: string): string | undefined {
  if (value === undefined || value === null || value === '') return undefined
  if (typeof value === 'string') return value
  throw scimError('invalidValue', `${name} must be a string`, name)
}

/** Ignores attributes of the schema that are not stored; the reply shows the stored ones. Errors: 400. */
export function readScimUser(body: unknown): ScimUser {
  if (!isObject(body)) throw scimError('invalidSyntax', 'Content must be a SCIM user')
  const user = inLowerCase(body)
  if (user.name !== undefined && user.name !== null && !isObject(user.name)) {
    throw scimError('invalidValue', 'name must be an object', 'name')
  }
  const name = isObject(user.name) ? inLowerCase(user.name) : {}
  return {
    userName: parseScimString(user.username, 'userName'),
    externalId: parseScimString(user.externalid, 'externalId'),
    givenName: parseScimString(name.givenname, 'name.givenName'),
    familyName: parseScimString(name.familyname, 'name.familyName'),
    email: primaryEmail(user.emails)?.toLowerCase(),
    active: parseScimBoolean(user.active),
    userType: parseScimString(user.usertype, 'userType'),
  }
}

/** Attribute names are case-insensitive: https://datatracker.ietf.org/doc/html/rfc7643#section-2.1 */
function inLowerCase(attributes: object): Readonly<Record<string, unknown>> {
  const members = Object.entries(attributes).map(([name, value]) => [name.toLowerCase(), value])
  return Object.fromEntries(members)
}

function primaryEmail(emails: unknown): string | undefined {
  if (emails === undefined || emails === null) return undefined
  if (!Array.isArray(emails) || !emails.every(isObject)) {
    throw scimError('invalidValue', 'emails must be a list of addresses', 'emails')
  }
  const addresses = emails.map(inLowerCase)
  const chosen = addresses.find(({ primary }) => primary === true) ?? addresses[0]
  return parseScimString(chosen?.value, 'emails.value')?.trim()
}

export interface ScimName {
  readonly givenName: unknown
  readonly familyName: unknown
}

export function toScimName({ firstName, lastName }: Resource): ScimName {
  return { givenName: firstName, familyName: lastName }
}

/** Returns the first name of a profile, which belongs to the Project. */
export function profileName(profile: Resource | undefined): ScimName {
  const [name] = toObjects(profile?.name)
  const given = Array.isArray(name?.given) ? name.given.join(' ') : undefined
  return { givenName: given, familyName: name?.family }
}

/** Returns the profile with this as its first name, without `text`, which would contradict it. */
export function withProfileName(profile: Resource, { givenName, familyName }: ScimName): Resource {
  const [first, ...others] = asArray(profile.name)
  const { text: _, ...kept } = isObject(first) ? first : {}
  const name = {
    ...kept,
    ...(givenName === profileName(profile).givenName ? {} : { given: [givenName] }),
    ...(familyName === undefined ? {} : { family: familyName }),
  }
  return { ...profile, name: [name, ...others] }
}

/**
 * Converts a membership to its SCIM user; the ids are equal. The version is a hash of the attributes, because a change of
 * the name or the address writes the profile or the User, and no version of the membership.
 */
export function toScimUser(membership: Resource, user: Resource, name: ScimName, baseUrl: string) {
  const { id = '', externalId, active, meta } = membership
  const { email } = user
  const attributes = {
    schemas: [USER_SCHEMA],
    id,
    ...(externalId === undefined ? {} : { externalId }),
    userName: scimUserName(membership, user),
    name,
    ...(email === undefined ? {} : { emails: [{ value: email, type: 'work', primary: true }] }),
    active: active !== false,
    userType: targetIn(membership.profile)?.type,
  }
  return {
    ...attributes,
    meta: {
      resourceType: 'User',
      lastModified: meta?.lastUpdated,
      version: `W/"${hash('sha256', JSON.stringify(attributes), 'base64url').slice(0, 22)}"`,
      location: `${baseUrl}scim/v2/Users/${id}`,
    },
  }
}

function scimUserName(membership: Resource, user: Resource): unknown {
  return membership.userName ?? user.email ?? membership.externalId ?? membership.id
}

// PatchOp, on a SCIM user. https://datatracker.ietf.org/doc/html/rfc7644#section-3.5.2

type Values = Record<string, unknown>

const OPERATIONS = ['add', 'replace', 'remove']
/** Stored attributes, as spelled in paths. */
const PATHS: ReadonlyMap<string, readonly string[]> = new Map([
  ['active', ['active']],
  ['username', ['userName']],
  ['externalid', ['externalId']],
  ['name', ['name']],
  ['name.givenname', ['name', 'givenName']],
  ['name.familyname', ['name', 'familyName']],
  ['emails', ['emails']],
  ['emails.value', ['emails', 'value']],
  ['usertype', ['userType']],
])
const REMOVABLE = new Set(['userName', 'externalId'])
const READ_ONLY = new Set(['id', 'meta', 'schemas', 'groups'])
const SCHEMA = /^urn:ietf:params:scim:schemas:core:2\.0:User:/i

/** Applies all operations to the user. Errors: 400. */
export function patchScimUser(current: Values, body: unknown): Values {
  const operations = isObject(body) ? (body.Operations ?? body.operations) : undefined
  if (!Array.isArray(operations)) throw scimError('invalidSyntax', 'Operations must be a list')
  return operations.reduce<Values>(apply, current)
}

function apply(user: Values, operation: unknown): Values {
  if (!isObject(operation)) throw scimError('invalidSyntax', 'An operation must be an object')
  const op = typeof operation.op === 'string' ? operation.op.toLowerCase() : ''
  if (!OPERATIONS.includes(op)) {
    throw scimError('invalidSyntax', 'op must be add, replace or remove')
  }
  const { path, value } = operation
  if (path === undefined) {
    if (op === 'remove') throw scimError('noTarget', 'A removal needs a path')
    if (!isObject(value)) throw scimError('invalidSyntax', 'An operation needs a path or an object')
    return Object.entries(value).reduce((next, [name, item]) => set(next, name, item), user)
  }
  if (typeof path !== 'string') throw scimError('invalidPath', 'path must be a string')
  if (op !== 'remove' && value === undefined) {
    throw scimError('invalidSyntax', 'An operation needs a value', path)
  }
  return set(user, path, op === 'remove' ? undefined : value)
}

/** Errors: 400 for an attribute that is not stored, read-only or required. */
function set(user: Values, path: string, value: unknown): Values {
  const [, attribute = '', filter, rest = ''] =
    /^([^[\]]*)(?:\[([^\]]*)\])?(.*)$/.exec(path.replace(SCHEMA, '')) ?? []
  const [first = '', second] = PATHS.get(`${attribute}${rest}`.toLowerCase()) ?? []
  const shown = path.slice(0, 100)
  if (READ_ONLY.has(attribute.split('.', 1)[0] ?? '')) {
    throw scimError('mutability', `${shown} cannot be changed`, shown)
  }
  if (first === '' || (filter !== undefined && first !== 'emails')) {
    throw scimError('invalidPath', `Unknown attribute ${shown}`, shown)
  }
  if (filter !== undefined && !isOfAddress(filter, user)) {
    throw scimError('noTarget', `No address matches ${shown}`, shown)
  }
  if (value === undefined && !REMOVABLE.has(first)) {
    throw scimError('mutability', `${shown} cannot be removed`, shown)
  }
  if (first === 'emails' && second !== undefined) {
    return { ...user, emails: [{ value, primary: true }] }
  }
  if (first === 'name') return { ...user, name: nameWith(user.name, second, value) }
  return { ...user, [first]: value }
}

/** Keeps the other parts of the name. */
function nameWith(name: unknown, part: string | undefined, value: unknown): unknown {
  const parts = isObject(name) ? name : {}
  if (part !== undefined) return { ...parts, [part]: value }
  if (!isObject(value)) return value
  const given = Object.entries(value).map(([key, item]) => {
    const known = PATHS.get(`name.${key}`.toLowerCase())?.[1]
    if (known !== undefined) return [known, item]
    throw scimError('invalidPath', `Unknown attribute name.${key.slice(0, 100)}`, 'name')
  })
  return { ...parts, ...Object.fromEntries(given) }
}

const CONDITION = /^\s*(type|primary|value)\s+eq\s+("[^"]*"|true|false)\s*$/i

/** Only one address is stored: the primary one, of type work. */
function isOfAddress(filter: string, { emails }: Values): boolean {
  const [, attribute = '', literal = ''] = CONDITION.exec(filter) ?? []
  if (attribute === '') throw scimError('invalidPath', `Invalid filter: ${filter.slice(0, 100)}`)
  const wanted = literal.replaceAll('"', '').toLowerCase()
  const [address] = toObjects(emails)
  const known = { type: 'work', primary: true, value: address?.value }
  return String(known[attribute.toLowerCase() as keyof typeof known]).toLowerCase() === wanted
}
