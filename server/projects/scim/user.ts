/** SCIM users: a membership and its User as one resource. https://datatracker.ietf.org/doc/html/rfc7643#section-4.1 */

import { HttpError, issue, outcome } from '../../../shared/core/errors.ts'
import {
  isObject,
  parseReference,
  type Resource,
  referenceIn,
} from '../../../shared/fhir/resource.ts'

const USER_SCHEMA = 'urn:ietf:params:scim:schemas:core:2.0:User'

/** The part of a SCIM user that is stored; undefined: not given. */
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

/** 400 that SCIM clients tell apart by its type. */
export function scimError(type: ScimType, text: string, attribute?: string): HttpError {
  const { details, ...found } = issue('error', 'invalid', text, { expression: attribute })
  const typed = { ...found, details: { ...details, coding: [{ code: type }] } }
  return new HttpError(400, outcome(undefined, typed))
}

/** An identity provider may send the words instead of the values. */
function parseScimBoolean(value: unknown): boolean | undefined {
  if (value === undefined || value === null) return undefined
  const text = String(value).toLowerCase()
  if (text === 'true' || text === 'false') return text === 'true'
  throw scimError('invalidValue', 'active must be true or false', 'active')
}

function parseScimString(value: unknown, name: string): string | undefined {
  if (value === undefined || value === null || value === '') return undefined
  if (typeof value === 'string') return value
  throw scimError('invalidValue', `${name} must be a string`, name)
}

/** Attributes of the schema that are not kept are passed over: the answer shows what is. Errors: 400. */
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

/** Names of attributes are the same in any case: https://datatracker.ietf.org/doc/html/rfc7643#section-2.1 */
function inLowerCase(attributes: object): Readonly<Record<string, unknown>> {
  const members = Object.entries(attributes).map(([name, value]) => [name.toLowerCase(), value])
  return Object.fromEntries(members)
}

/** The primary address, else the first. */
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

/** The first name of a profile, which is the Project's own. */
export function profileName(profile: Resource | undefined): ScimName {
  const [name] = Array.isArray(profile?.name) ? profile.name.filter(isObject) : []
  const given = Array.isArray(name?.given) ? name.given.join(' ') : undefined
  return { givenName: given, familyName: name?.family }
}

/** The profile under this name: its first one, without the text, which would contradict it. */
export function withProfileName(profile: Resource, { givenName, familyName }: ScimName): Resource {
  const [first, ...others] = Array.isArray(profile.name) ? profile.name : []
  const { text: _, ...kept } = isObject(first) ? first : {}
  const name = {
    ...kept,
    ...(givenName === profileName(profile).givenName ? {} : { given: [givenName] }),
    ...(familyName === undefined ? {} : { family: familyName }),
  }
  return { ...profile, name: [name, ...others] }
}

/** The SCIM user that a membership stands for; its id is the membership's. */
export function toScimUser(membership: Resource, user: Resource, name: ScimName, baseUrl: string) {
  const { id = '', externalId, active, meta } = membership
  const { email } = user
  return {
    schemas: [USER_SCHEMA],
    id,
    ...(externalId === undefined ? {} : { externalId }),
    userName: scimUserName(membership, user),
    name,
    ...(email === undefined ? {} : { emails: [{ value: email, type: 'work', primary: true }] }),
    active: active !== false,
    userType: parseReference(referenceIn(membership.profile))?.type,
    meta: {
      resourceType: 'User',
      lastModified: meta?.lastUpdated,
      version: `W/"${meta?.versionId}"`,
      location: `${baseUrl}scim/v2/Users/${id}`,
    },
  }
}

function scimUserName(membership: Resource, user: Resource): unknown {
  return membership.userName ?? user.email ?? membership.externalId ?? membership.id
}
