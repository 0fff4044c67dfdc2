/**
 * Elements by which clients and people are recognised, and those that decide with whose rights code runs. A
 * policy's `*`, and no policy at all, do not include them: they are for project administrators, and for members
 * whose policy has an entry that names the type. Types of the registry (policy.ts) are for administrators anyway,
 * and AccessPolicy and SmartAppLaunch as a whole need an entry that names them. Secrets are listed here, too: no
 * export holds them.
 */
import { isSameJson } from '../../fhir/json.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import { plainGrant } from '../compile.ts'
import { secretsOf } from '../fields/fields.ts'
import { type Grant, INTERACTIONS } from '../grant.ts'
import { NAMED_TO_WRITE, REGISTRY_TYPES } from '../policy.ts'
import type { Principal } from '../principal.ts'

/** Element path → value, of what is guarded. */
type Parts = Readonly<Record<string, unknown>>

export const GUARDED: Readonly<Record<string, (resource: Resource) => Parts>> = {
  Bot: ({ runAsUser, system }) => ({ runAsUser, system }),
  // All but what it is called: a new element is guarded until somebody says otherwise.
  ClientApplication: ({ name: _name, description: _description, ...rest }) => withoutBase(rest),
  DomainConfiguration: ({ identityProvider }) => ({ identityProvider }),
  Subscription: secretsOf,
  // Its options are limits that administrators set.
  UserConfiguration: ({ option }) => ({ option }),
}

const BASE = ['resourceType', 'id', 'meta', 'implicitRules', 'language', 'text', 'contained']

function withoutBase(elements: Readonly<Record<string, unknown>>): Parts {
  return Object.fromEntries(Object.entries(elements).filter(([name]) => !BASE.includes(name)))
}

/** True when an entry that names the type gives more than one for `*`. */
function isNamingMore(type: string): boolean {
  return GUARDED[type] !== undefined || NAMED_TO_WRITE.has(type)
}

/** Paths of guarded elements that differ. `before` undefined: all that are there. */
export function guardedChanges(before: Resource | undefined, after: Resource): readonly string[] {
  const partsOf = GUARDED[after.resourceType]
  if (partsOf === undefined) return []
  const [old, next] = [before === undefined ? {} : partsOf(before), partsOf(after)]
  const names = new Set([...Object.keys(old), ...Object.keys(next)])
  return [...names].filter((name) => !isSame(old[name], next[name]))
}

function isSame(a: unknown, b: unknown): boolean {
  return a === b || isSameJson(JSON.stringify(a) ?? 'null', JSON.stringify(b) ?? 'null')
}

/** Code that runs for whoever starts it. */
export function runsAsCaller(bot: Resource | undefined): boolean {
  return bot?.runAsUser === true
}

/** True when a write changes what a Bot runs. */
export function changesCode(before: Resource | undefined, after: Resource): boolean {
  return ['executableCode', 'code'].some((name) => !isSame(before?.[name], after[name]))
}

/** A guarded path that a program has changed in what somebody else is about to write, without the right to. */
export function changedBeyondRights(
  program: Principal,
  sent: Resource,
  next: Resource,
): string | undefined {
  if (hasAllRights(program)) return undefined
  const { resourceType: type } = next
  if (NAMED_TO_WRITE.has(type)) return isSame(sent, next) ? undefined : type
  const [path] = guardedChanges(sent, next)
  if (path !== undefined) return `${type}.${path}`
  return type === 'Bot' && changesCode(sent, next) ? 'Bot.executableCode' : undefined
}

/** No right in reach is missing: an administrator, or a super admin without a policy. */
export function hasAllRights({ isSuperAdmin, isProjectAdmin, rules }: Principal): boolean {
  return isSuperAdmin ? rules === undefined : isProjectAdmin
}

/** As far as rights of two members are compared. */
export type Rights = Pick<Principal, 'isSuperAdmin' | 'isProjectAdmin' | 'rules'> & {
  readonly project: { readonly id: string }
}

const WRITES = ['create', 'update', 'delete'] as const
const EVERYTHING: readonly Grant[] = [plainGrant('*', INTERACTIONS, 'no policy')]

export function outranks(program: Rights, writer: Rights): boolean {
  if (writer.isSuperAdmin && writer.rules === undefined) return false
  if (program.isSuperAdmin && !writer.isSuperAdmin) return true
  if (!writer.isSuperAdmin) {
    if (program.project.id !== writer.project.id) return true
    if (writer.isProjectAdmin) return false
  }
  if (program.isProjectAdmin && !(program.isSuperAdmin && program.rules !== undefined)) return true
  const own = writer.rules?.grants ?? EVERYTHING
  const wanted = (program.rules?.grants ?? EVERYTHING).filter(
    // Entries for the registry are worth nothing to members.
    ({ type }) => program.isSuperAdmin || !REGISTRY_TYPES.has(type),
  )
  if (signature(own) === signature(wanted)) return false
  return !wanted.every((grant) => isCovered(own, grant))
}

/** One of these gives as much, and none that may come before it gives less. */
function isCovered(own: readonly Grant[], wanted: Grant): boolean {
  const near = own.filter(({ type }) => isNear(type, wanted.type))
  return (
    near.some((grant) => gives(grant, wanted)) && near.every((grant) => isNoStricter(grant, wanted))
  )
}

/** Entries for both types may govern the same resource. */
function isNear(a: string, b: string): boolean {
  return a === b || b === '*' || (a === '*' && !REGISTRY_TYPES.has(b))
}

function gives(grant: Grant, wanted: Grant): boolean {
  if (grant.type !== wanted.type && grant.type !== '*') return false
  const isMore = wanted.isNamed && !grant.isNamed && isNamingMore(wanted.type)
  if (isMore && WRITES.some((item) => wanted.interactions.has(item))) return false
  const known = new Set(wanted.criteria.map((item) => JSON.stringify(item)))
  return (
    wanted.interactions.isSubsetOf(grant.interactions) &&
    grant.criteria.every((item) => known.has(JSON.stringify(item)))
  )
}

function isNoStricter({ hidden, readonly, constraints }: Grant, wanted: Grant): boolean {
  return (
    hidden.every((path) => wanted.hidden.includes(path)) &&
    readonly.every((path) => [...wanted.readonly, ...wanted.hidden].includes(path)) &&
    constraints.every((item) => wanted.constraints.includes(item))
  )
}

function signature(grants: readonly Grant[]): string {
  const said = grants.map(({ interactions, constraints, ...rest }) => ({
    ...rest,
    interactions: [...interactions].sort(),
    constraints: constraints.map(({ name, variables }) => ({ name, variables })),
  }))
  return JSON.stringify(said)
}

/**
 * Secrets that no export holds, whoever asks for it: a file outlives the rights of who made it, and is
 * passed on. Reads show some of them to admins (fields.ts).
 */
const PATHS: Readonly<Record<string, readonly string[]>> = {
  ClientApplication: ['secret', 'retiringSecret', 'identityProvider.clientSecret'],
  Project: ['secret', 'systemSecret', 'site.recaptchaSecretKey', 'site.googleClientSecret'],
  Subscription: ['channel.header'],
}
const SECRET_EXTENSION = /secret$/i

/** Element paths as a policy would hide them. */
export function secretPaths(type: string): readonly string[] {
  return PATHS[type] ?? []
}

/** True for a type whose extensions may hold secrets. */
export function hasSecretExtensions(type: string): boolean {
  return PATHS[type] !== undefined
}

export function withoutSecretExtensions(resource: Resource): Resource {
  const { extension, ...rest } = resource
  if (!Array.isArray(extension)) return resource
  const kept = extension.filter((item) => !isSecret(item))
  // Only a list was taken away.
  return (kept.length === 0 ? rest : { ...rest, extension: kept }) as Resource
}

function isSecret(item: unknown): boolean {
  return isObject(item) && typeof item.url === 'string' && SECRET_EXTENSION.test(item.url)
}
