/** SCIM users of the caller's Project. https://datatracker.ietf.org/doc/html/rfc7644#section-3 */
import {
  type Principal,
  servicePrincipal,
  systemPrincipal,
} from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { badRequest, forbidden, notFound, preconditionFailed } from '../../../shared/core/errors.ts'
import { type Resource, referenceTo, targetIn } from '../../../shared/fhir/resource.ts'
import type { Session } from '../../../shared/identity/principals.ts'
import { notifyOldAddress } from '../../../shared/operations/projects/update-email.ts'
import { defaultPolicy } from '../../../shared/projects/default-policies.ts'
import { inviteMember, sessionUser } from '../../../shared/projects/enrol.ts'
import { defined, EMAIL_ADDRESS } from '../../../shared/projects/fields.ts'
import { PROFILE_TYPES } from '../../../shared/projects/invitation.ts'
import { newEmailChanges, requireUnlessLimited } from '../../../shared/projects/ownership.ts'
import { projectOfUser } from '../../../shared/projects/users.ts'
import { recordChange } from '../../../shared/request/admin-audit.ts'
import { fhirBases } from '../../../shared/request/reply.ts'
import type { Services } from '../../../shared/request/services.ts'
import { parseSearch } from '../../../shared/search/language/search.ts'
import { escapeValue } from '../../../shared/search/language/values.ts'
import type { Transaction } from '../../../shared/store/repository.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { WriteOptions } from '../../../shared/store/rows/version.ts'
import { readMember, removeMember } from '../admin/members.ts'
import {
  patchScimUser,
  profileName,
  readScimUser,
  type ScimName,
  type ScimUser,
  scimError,
  toScimName,
  toScimUser,
  withProfileName,
} from './user.ts'

const TYPE = 'ProjectMembership'
const HUMANS = 'ClientApplication,Bot'
const MOST = 1000
const FILTER = /^\s*(userName|externalId|emails\.value|emails)\s+eq\s+("(?:[^"\\]|\\.)*")\s*$/i

export interface ScimCall {
  readonly services: Services
  readonly caller: Principal
  readonly session: Session
  /** The versions that a change may replace; undefined: any. */
  readonly ifMatch: string | undefined
}

/** A member, its user, and its name in this Project. */
interface Person {
  readonly membership: Resource
  readonly user: Resource
  readonly profile: Resource | undefined
  readonly name: ScimName
}

/** Errors: 403. */
function requireAdmin({ caller }: ScimCall): void {
  if (!caller.isProjectAdmin) throw forbidden()
}

/** Returns a page of members by `filter`, `startIndex` (from 1) and `count`. Errors: 400, 403. */
export async function listUsers(call: ScimCall, query: URLSearchParams) {
  requireAdmin(call)
  requireUnlessLimited(call.caller, [TYPE, 'search'])
  const startIndex = Math.max(1, readWhole(query, 'startIndex') ?? 1)
  const count = Math.min(readWhole(query, 'count') ?? 100, MOST)
  const filter = query.get('filter')
  const { people, total } =
    filter === null
      ? await searchMembers(call, { _count: String(count), _offset: String(startIndex - 1) })
      : await filtered(call, filter, startIndex, count)
  return {
    schemas: ['urn:ietf:params:scim:api:messages:2.0:ListResponse'],
    totalResults: total,
    startIndex,
    itemsPerPage: people.length,
    Resources: people.map((person) => shown(call, person)),
  }
}

/** Errors: 400, 403, 409. */
export async function createUser(call: ScimCall, body: unknown) {
  const { services, caller, session } = call
  requireAdmin(call)
  const user = readScimUser(body)
  const { userName, externalId, givenName, familyName, userType = 'Practitioner', active } = user
  if (!PROFILE_TYPES.some((type) => type === userType)) {
    throw badRequest(`userType must be one of ${PROFILE_TYPES.join(', ')}`, 'userType')
  }
  if (userType === 'Patient' && defaultPolicy(session.project, userType, false) === undefined) {
    throw badRequest('Project has no default policy for patients', 'userType')
  }
  const { membership } = await inviteMember(services, caller, {
    user: sessionUser(session),
    projectId: caller.project.id,
    body: {
      resourceType: userType,
      firstName: givenName,
      lastName: familyName,
      email: user.email,
      sendEmail: false,
      membership: { userName, externalId, active },
    },
  })
  return shown(call, await loadPerson(call, parseVersion(membership)))
}

/** Errors: 403, 404. */
export async function readUser(call: ScimCall, id: string) {
  return shown(call, await read(call, id))
}

/** Errors: 400, 403, 404, 409, 412. */
export async function replaceUser(call: ScimCall, id: string, body: unknown) {
  return await write(call, await readToChange(call, id), readScimUser(body))
}

/** Errors: 400, 403, 404, 409, 412. */
export async function patchUser(call: ScimCall, id: string, body: unknown) {
  const person = await readToChange(call, id)
  const { externalId, userName } = person.membership
  // The shown user has substitutes for missing fields; the patch applies to the stored ones.
  const current = { ...shown(call, person), externalId, userName }
  return await write(call, person, readScimUser(patchScimUser(current, body)))
}

/** Removes only the membership. Errors: 400 for the owner, 403, 404, 412. */
export async function removeUser(call: ScimCall, id: string): Promise<void> {
  const { membership } = await readToChange(call, id)
  const { services, caller } = call
  const path = { projectId: caller.project.id, id }
  await removeMember(services, caller, path, versionRead(call, membership))
}

/** Errors: 403, 404, and 412 if `If-Match` does not name the version of the user. */
async function readToChange(call: ScimCall, id: string): Promise<Person> {
  const person = await read(call, id)
  const opaque = (tag: string) => tag.trim().replace(/^W\//, '')
  const { version } = shown(call, person).meta
  const isNamed = call.ifMatch?.split(',').some((tag) => opaque(tag) === opaque(version)) ?? true
  if (!isNamed) throw preconditionFailed()
  return person
}

/** With `If-Match`, a write may replace only the version that was compared. */
function versionRead({ ifMatch }: ScimCall, { meta }: Resource): WriteOptions {
  return ifMatch === undefined ? {} : { ifMatch: [Number(meta?.versionId)] }
}

async function read(call: ScimCall, id: string): Promise<Person> {
  requireAdmin(call)
  const { services, caller } = call
  const found = await readMember(services, caller, { projectId: caller.project.id, id })
  const membership = parseVersion(found)
  const type = targetIn(membership.profile)?.type ?? ''
  if (HUMANS.split(',').includes(type)) throw notFound()
  return await loadPerson(call, membership)
}

/**
 * Writes only attributes that differ from those read, so that concurrent changes of others stay. The name goes
 * to the profile, and to a User of the Project. A server-scoped User belongs to its owner: its address cannot change
 * here, and its name in other Projects stays.
 */
async function write(call: ScimCall, person: Person, next: ScimUser) {
  const { services, caller } = call
  const { membership, user, profile } = person
  requireUnlessLimited(caller, [TYPE, 'update'], ['User', 'update'])
  const isOwn = projectOfUser(user) === caller.project.id
  const { givenName, familyName, userName, externalId, active } = next
  const names = changesTo({ ...person.name }, defined({ givenName, familyName }))
  const isRenamed = Object.keys(names).length > 0
  requireMutable(person, next, isOwn)
  if (!isOwn && profile === undefined && isRenamed) {
    throw scimError('mutability', 'The profile with the name has been deleted', 'name')
  }
  const stored = { ...membership, active: membership.active !== false }
  const changes = changesTo(stored, { userName, externalId, active: active ?? stored.active })
  const changed = await services.repository.transaction(async (inside) => {
    const written = isOwn ? await writeUser(inside, call, user, { names, email: next.email }) : user
    const renamed =
      profile && isRenamed
        ? await inside.patch(
            caller,
            resourceId(profile),
            (current) =>
              withProfileName(
                current,
                isOwn ? toScimName(written) : { ...profileName(current), ...names },
              ),
            versionRead(call, profile),
          )
        : undefined
    const result = await inside.patch(
      { ...caller, rules: undefined },
      resourceId(membership),
      (current) => withValues(current, changes),
      versionRead(call, membership),
    )
    await recordChange(inside, caller, {
      project: caller.project,
      interaction: 'update',
      target: referenceTo(membership),
    })
    const named = renamed === undefined ? profile : parseVersion(renamed)
    const name = isOwn ? toScimName(written) : profileName(named)
    return { membership: parseVersion(result), user: written, name }
  })
  return shown(call, changed)
}

/** Errors: 400 for another type, an invalid address, or a new one of a server scoped User. */
function requireMutable({ membership, user }: Person, next: ScimUser, isOwn: boolean): void {
  const { email, userType } = next
  if (email !== undefined && email !== user.email) {
    if (!isOwn) {
      const text = 'The e-mail address of a server scoped user cannot be changed'
      throw scimError('mutability', text, 'emails')
    }
    if (!EMAIL_ADDRESS.test(email)) {
      throw scimError('invalidValue', 'emails.value must be an e-mail address', 'emails.value')
    }
  }
  if (userType !== undefined && userType !== targetIn(membership.profile)?.type) {
    throw scimError('mutability', 'userType is the type of the profile, which stays', 'userType')
  }
}

type Values = Readonly<Record<string, unknown>>

function changesTo(before: Values, next: Values): Values {
  return Object.fromEntries(Object.entries(next).filter(([name, value]) => value !== before[name]))
}

function resourceId({ resourceType, id = '' }: Resource) {
  return { type: resourceType, id }
}

async function writeUser(
  inside: Transaction,
  call: ScimCall,
  user: Resource,
  { names, email }: { readonly names: Values; readonly email: string | undefined },
): Promise<Resource> {
  const { services, caller } = call
  const isNew = email !== undefined && email !== user.email
  const changes = defined({ firstName: names.givenName, lastName: names.familyName })
  const written = await inside.patch(
    servicePrincipal(SYSTEM_PROJECT, caller),
    resourceId(user),
    (current) =>
      withValues(current, isNew ? { ...changes, ...newEmailChanges(current, email) } : changes),
    versionRead(call, user),
  )
  if (isNew)
    await notifyOldAddress(inside, services.config, { projectId: caller.project.id, user, email })
  return parseVersion(written)
}

function withValues(resource: Resource, values: Values): Resource {
  const members = Object.entries({ ...resource, ...values })
  // Safe: `resourceType` is never among the values.
  return Object.fromEntries(members.filter(([, value]) => value !== undefined)) as Resource
}

async function filtered(call: ScimCall, filter: string, startIndex: number, count: number) {
  const [, attribute = '', quoted = ''] = FILTER.exec(filter) ?? []
  if (attribute === '') throw badRequest(`Invalid filter: ${filter.slice(0, 100)}`)
  const text = parseLiteral(quoted)
  const value = escapeValue(text)
  const byEmail = () => searchMembers(call, { 'user:User.email:exact': value.toLowerCase() })
  const found =
    attribute.toLowerCase() === 'externalid'
      ? (await searchMembers(call, { 'external-id:exact': value })).people
      : attribute.toLowerCase() === 'username'
        ? [
            ...(await namedPeople(call, text)),
            // Members without a user name are found by e-mail address.
            ...(await byEmail()).people.filter(({ membership }) => !membership.userName),
          ]
        : (await byEmail()).people
  return { people: found.slice(startIndex - 1, startIndex - 1 + count), total: found.length }
}

/** Parses a JSON string: RFC 7644 §3.4.2.2. Errors: 400. */
function parseLiteral(quoted: string): string {
  try {
    const text = String(JSON.parse(quoted))
    if (!text.includes('\0')) return text
  } catch {
    // The error is thrown below.
  }
  throw badRequest(`Invalid string in the filter: ${quoted.slice(0, 100)}`)
}

const MOST_NAMESAKES = '1000'

/** User names are case-insensitive: RFC 7643 §4.1.1. */
async function namedPeople(call: ScimCall, name: string): Promise<readonly Person[]> {
  const terms = { 'user-name': escapeValue(name), _count: MOST_NAMESAKES }
  const { people } = await searchMembers(call, terms)
  const wanted = name.toLowerCase()
  return people.filter(({ membership }) => String(membership.userName).toLowerCase() === wanted)
}

async function searchMembers(call: ScimCall, terms: Readonly<Record<string, string>>) {
  const { services, caller } = call
  const query = new URLSearchParams({
    project: `Project/${caller.project.id}`,
    'profile-type:not': HUMANS,
    _sort: '_lastUpdated',
    _total: 'accurate',
    ...terms,
  })
  // A project admin does not see server-scoped users, but may know the members' addresses.
  const service = systemPrincipal(caller.project)
  const request = parseSearch(TYPE, query, { fhirUrls: fhirBases(services, caller.project.id) })
  const page = await services.repository.search(service, request)
  const people = await loadPeople(call, page.versions.map(parseVersion))
  return { people, total: page.total ?? people.length }
}

async function loadPerson(call: ScimCall, membership: Resource): Promise<Person> {
  const [person] = await loadPeople(call, [membership])
  if (person === undefined) throw notFound()
  return person
}

async function loadPeople(
  { services, caller }: ScimCall,
  memberships: readonly Resource[],
): Promise<Person[]> {
  if (memberships.length === 0) return []
  const read = async (reader: Principal, references: readonly unknown[]) => {
    const asked = references.map((reference) => targetIn(reference) ?? { type: 'User', id: '-' })
    const found = await services.repository.readMany(reader, asked)
    return found.map((version) =>
      version?.content === undefined ? undefined : parseVersion(version),
    )
  }
  const [users, profiles] = await Promise.all([
    read(
      servicePrincipal(SYSTEM_PROJECT, caller),
      memberships.map(({ user }) => user),
    ),
    // Another Project may have a profile with the same id.
    read(
      systemPrincipal(caller.project, 'project'),
      memberships.map(({ profile }) => profile),
    ),
  ])
  return memberships.map((membership, i) => {
    const user = users[i] ?? { resourceType: 'User' }
    const profile = profiles[i]
    // A Project must not learn the other names of a server-scoped User.
    const isOwn = projectOfUser(user) === caller.project.id
    return { membership, user, profile, name: isOwn ? toScimName(user) : profileName(profile) }
  })
}

function shown({ services }: ScimCall, { membership, user, name }: Omit<Person, 'profile'>) {
  return toScimUser(membership, user, name, services.config.baseUrl)
}

function readWhole(query: URLSearchParams, name: string): number | undefined {
  const text = query.get(name)
  if (text === null || text === '') return undefined
  if (!/^-?\d{1,9}$/.test(text)) throw badRequest(`${name} must be a whole number`)
  return Math.max(0, Number(text))
}
