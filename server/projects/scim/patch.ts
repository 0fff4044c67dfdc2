/** PatchOp of SCIM, on a SCIM user. https://datatracker.ietf.org/doc/html/rfc7644#section-3.5.2 */
import { badRequest } from '../../../shared/errors.ts'
import { isObject } from '../../../shared/fhir/resource.ts'

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
