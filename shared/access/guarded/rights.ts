/** Compares the rights of writers, callers and programs. */
import { botLabels } from '../../fhir/bot-labels.ts'
import type { Resource } from '../../fhir/resource.ts'
import { type Grant, INTERACTIONS, plainGrant } from '../grant.ts'
import { REGISTRY_TYPES } from '../policy.ts'
import type { Principal } from '../principal.ts'
import { grantsMoreByName, guardedChanges, isGuardedType, isSame } from './elements.ts'

export function runsAsCaller(bot: Resource | undefined): boolean {
  return bot?.runAsUser === true
}

/** True when a write changes a Bot's code, also under a label, or the source for the next deployment. */
export function changesCode(before: Resource | undefined, after: Resource): boolean {
  const changed = ['executableCode', 'code', 'sourceCode'].some(
    (name) => !isSame(before?.[name], after[name]),
  )
  return changed || !isSame(before ? botLabels(before) : [], botLabels(after))
}

/** Returns a guarded path that a program without the right to it changed in another caller's write. */
export function changedBeyondRights(
  program: Principal,
  sent: Resource,
  next: Resource,
): string | undefined {
  if (hasAllRights(program)) return undefined
  const { resourceType: type } = next
  if (isGuardedType(type)) return isSame(sent, next) ? undefined : type
  const [path] = guardedChanges(sent, next)
  if (path !== undefined) return `${type}.${path}`
  return type === 'Bot' && changesCode(sent, next) ? 'Bot.executableCode' : undefined
}

export function hasAllRights({ isSuperAdmin, isProjectAdmin, rules }: Principal): boolean {
  return isSuperAdmin ? rules === undefined : isProjectAdmin
}

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
    // Registry entries have no effect for members.
    ({ type }) => program.isSuperAdmin || !REGISTRY_TYPES.has(type),
  )
  if (signature(own) === signature(wanted)) return false
  return !wanted.every((grant) => isCovered(own, grant))
}

/** True when one grant allows as much, and no earlier one allows less. */
function isCovered(own: readonly Grant[], wanted: Grant): boolean {
  const near = own.filter(({ type }) => isNear(type, wanted.type))
  return (
    near.some((grant) => gives(grant, wanted)) && near.every((grant) => isNoStricter(grant, wanted))
  )
}

function isNear(a: string, b: string): boolean {
  return a === b || b === '*' || (a === '*' && !REGISTRY_TYPES.has(b))
}

function gives(grant: Grant, wanted: Grant): boolean {
  if (grant.type !== wanted.type && grant.type !== '*') return false
  const isMore = wanted.isNamed && !grant.isNamed && grantsMoreByName(wanted.type)
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
  const described = grants.map(({ interactions, constraints, ...rest }) => ({
    ...rest,
    interactions: [...interactions].sort(),
    constraints: constraints.map(({ name, variables }) => ({ name, variables })),
  }))
  return JSON.stringify(described)
}
