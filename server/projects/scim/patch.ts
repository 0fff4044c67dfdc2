/** PatchOp of SCIM, on a SCIM user. https://datatracker.ietf.org/doc/html/rfc7644#section-3.5.2 */
import { isObject } from '../../../shared/fhir/resource.ts'
import { scimError } from './user.ts'

type Values = Record<string, unknown>

const OPERATIONS = ['add', 'replace', 'remove']
/** The attributes that are kept here, as a path spells them. */
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

/** The user after the operations; none of them is passed over. Errors: 400. */
export function patchScimUser(current: Values, body: unknown): Values {
  const operations = isObject(body) ? (body.Operations ?? body.operations) : undefined
  if (!Array.isArray(operations)) throw scimError('invalidSyntax', 'Operations must be a list')
  return operations.reduce<Values>(apply, current)
}

function apply(user: Values, operation: unknown): Values {
  if (!isObject(operation)) throw scimError('invalidSyntax', 'An operation must be an object')
  const op = String(operation.op).toLowerCase()
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

/** Errors: 400 for an attribute that is not kept, cannot be changed or cannot be removed. */
function set(user: Values, path: string, value: unknown): Values {
  const [, attribute = '', filter, rest = ''] =
    /^([^[\]]*)(?:\[([^\]]*)\])?(.*)$/.exec(path.replace(SCHEMA, '')) ?? []
  const [first = '', second] = PATHS.get(`${attribute}${rest}`.toLowerCase()) ?? []
  const shown = path.slice(0, 100)
  if (READ_ONLY.has(attribute.split('.', 1)[0] ?? '')) {
    throw scimError('mutability', `${shown} cannot be changed`, shown)
  }
  if (first === '' || (filter !== undefined && first !== 'emails')) {
    throw scimError('invalidPath', `There is no attribute ${shown} here`, shown)
  }
  if (filter !== undefined && !isOfAddress(filter, user)) {
    throw scimError('noTarget', `No address is as ${shown} says`, shown)
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

/** The parts of a name that are not given stay. */
function nameWith(name: unknown, part: string | undefined, value: unknown): unknown {
  const parts = isObject(name) ? name : {}
  if (part !== undefined) return { ...parts, [part]: value }
  if (!isObject(value)) return value
  const given = Object.entries(value).map(([key, item]) => {
    const known = PATHS.get(`name.${key}`.toLowerCase())?.[1]
    if (known !== undefined) return [known, item]
    throw scimError('invalidPath', `There is no attribute name.${key.slice(0, 100)} here`, 'name')
  })
  return { ...parts, ...Object.fromEntries(given) }
}

const CONDITION = /^\s*(type|primary|value)\s+eq\s+("[^"]*"|true|false)\s*$/i

/** One address is kept: the primary one, of work. */
function isOfAddress(filter: string, { emails }: Values): boolean {
  const [, attribute = '', literal = ''] = CONDITION.exec(filter) ?? []
  if (attribute === '') throw scimError('invalidPath', `Invalid filter: ${filter.slice(0, 100)}`)
  const wanted = literal.replaceAll('"', '').toLowerCase()
  const [address] = Array.isArray(emails) ? emails.filter(isObject) : []
  const known = { type: 'work', primary: true, value: address?.value }
  return String(known[attribute.toLowerCase() as keyof typeof known]).toLowerCase() === wanted
}
