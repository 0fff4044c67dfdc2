/** SCIM users: a membership and its User as one resource. https://datatracker.ietf.org/doc/html/rfc7643#section-4.1 */

import { badRequest } from '../../../shared/errors.ts'
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

/** An identity provider may send the words instead of the values. */
function flagOf(value: unknown): boolean | undefined {
  if (value === undefined || value === null) return undefined
  const text = String(value).toLowerCase()
  if (text !== 'true' && text !== 'false') throw badRequest('active must be true or false')
  return text === 'true'
}

function textOf(value: unknown, name: string): string | undefined {
  if (value === undefined || value === null || value === '') return undefined
  if (typeof value === 'string') return value
  throw badRequest(`${name} must be a string`)
}

/** Other attributes are passed over. Errors: 400. */
export function readScimUser(body: unknown): ScimUser {
  if (!isObject(body)) throw badRequest('Content must be a SCIM user')
  const name = isObject(body.name) ? body.name : {}
  return {
    userName: textOf(body.userName, 'userName'),
    externalId: textOf(body.externalId, 'externalId'),
    givenName: textOf(name.givenName, 'name.givenName'),
    familyName: textOf(name.familyName, 'name.familyName'),
    email: emailOf(body.emails)?.toLowerCase(),
    active: flagOf(body.active),
    userType: textOf(body.userType, 'userType'),
  }
}

/** The primary address, else the first. */
function emailOf(emails: unknown): string | undefined {
  if (emails === undefined || emails === null) return undefined
  if (!Array.isArray(emails) || !emails.every(isObject)) {
    throw badRequest('emails must be a list of addresses')
  }
  const chosen = emails.find(({ primary }) => primary === true) ?? emails[0]
  return textOf(chosen?.value, 'emails.value')?.trim()
}

export interface ScimName {
  readonly givenName: unknown
  readonly familyName: unknown
}

export function nameOf({ firstName, lastName }: Resource): ScimName {
  return { givenName: firstName, familyName: lastName }
}

/** The first name of a profile, which is the Project's own. */
export function profileName(profile: Resource | undefined): ScimName {
  const [name] = Array.isArray(profile?.name) ? profile.name.filter(isObject) : []
  const given = Array.isArray(name?.given) ? name.given.join(' ') : undefined
  return { givenName: given, familyName: name?.family }
}

/** The SCIM user that a membership stands for; its id is the membership's. */
export function scimUserOf(membership: Resource, user: Resource, name: ScimName, baseUrl: string) {
  const { id = '', externalId, active, meta } = membership
  const { email } = user
  return {
    schemas: [USER_SCHEMA],
    id,
    ...(externalId === undefined ? {} : { externalId }),
    userName: userNameOf(membership, user),
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

function userNameOf(membership: Resource, user: Resource): unknown {
  return membership.userName ?? user.email ?? membership.externalId ?? membership.id
}

/** PatchOp of SCIM, on a SCIM user. https://datatracker.ietf.org/doc/html/rfc7644#section-3.5.2 */
type Values = Record<string, unknown>

const OPERATIONS = ['add', 'replace', 'remove']
/** The attributes that are kept here, as a path spells them; other ones are passed over. */
const PATHS: Readonly<Record<string, readonly string[]>> = {
  active: ['active'],
  username: ['userName'],
  externalid: ['externalId'],
  name: ['name'],
  'name.givenname': ['name', 'givenName'],
  'name.familyname': ['name', 'familyName'],
  emails: ['emails'],
  'emails.value': ['emails', 'value'],
}

/** Errors: 400. */
export function patchScimUser(current: Values, body: unknown): Values {
  const operations = isObject(body) ? (body.Operations ?? body.operations) : undefined
  if (!Array.isArray(operations)) throw badRequest('Operations must be a list')
  return operations.reduce<Values>(apply, current)
}

function apply(user: Values, operation: unknown): Values {
  if (!isObject(operation)) throw badRequest('An operation must be an object')
  const op = String(operation.op).toLowerCase()
  if (!OPERATIONS.includes(op)) throw badRequest('op must be add, replace or remove')
  const { path, value } = operation
  if (path === undefined) {
    if (op === 'remove' || !isObject(value)) throw badRequest('An operation needs a path')
    return Object.entries(value).reduce((next, [name, item]) => set(next, name, item), user)
  }
  if (typeof path !== 'string') throw badRequest('path must be a string')
  if (op !== 'remove' && value === undefined) throw badRequest('An operation needs a value')
  return set(user, path, op === 'remove' ? undefined : value)
}

/** `emails[type eq "work"].value` is the one address that is kept. */
function set(user: Values, path: string, value: unknown): Values {
  const plain = path.replace(/^urn:ietf:params:scim:schemas:core:2\.0:User:/, '')
  const steps = PATHS[plain.replace(/\[[^\]]*\]/, '').toLowerCase()]
  const [first, second] = steps ?? []
  if (first === undefined) return user
  if (first === 'emails') {
    const emails = second === undefined ? value : [{ value, primary: true }]
    return { ...user, emails: value === undefined ? undefined : emails }
  }
  if (second === undefined) return { ...user, [first]: value }
  const inner = isObject(user[first]) ? user[first] : {}
  return { ...user, [first]: { ...inner, [second]: value } }
}
