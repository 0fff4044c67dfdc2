/** Checks whether a write is allowed, before its version is prepared. */
import { randomUUIDv7 } from 'node:crypto'
import type { AccessDecision } from '../../access/decisions/decide-in-sql.ts'
import { fieldsNotCreated, hiddenFields, keep } from '../../access/fields/fields.ts'
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { badRequest } from '../../core/errors.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Resource } from '../../fhir/resource.ts'
import {
  isLegalId,
  normalId,
  requireAllowed,
  type StoreContext,
  type WriteAttempt,
} from '../rows/context.ts'
import { readOwnParameters } from '../rows/custom-parameters.ts'
import { REGISTRY_PROJECT } from '../rows/tenants.ts'
import type { WriteOptions } from '../rows/version.ts'
import { inheritedPatients } from './accounts.ts'
import { hasNamedGrant } from './guards.ts'

export interface AuthorizedCreate {
  readonly store: StoreContext
  readonly principal: Principal
  readonly options: WriteOptions
  readonly resource: Resource
  readonly id: string
  readonly project: number
  readonly projectId: string
  readonly own: OwnParameters | undefined
  readonly heirOf: readonly string[]
}

/** Errors: 400, 403. */
export async function authorizeCreate(
  store: StoreContext,
  principal: Principal,
  resource: Resource,
  options: WriteOptions,
): Promise<AuthorizedCreate> {
  const { resourceType: type } = resource
  requireAllowed(principal, type, 'create')
  const rule = store.rules.get(type)
  rule?.checkForm?.(resource)
  const id = options.keepId && resource.id !== undefined ? givenId(resource.id) : randomUUIDv7()
  const allowed = keep(resource, undefined, fieldsNotCreated(principal, type))
  const kept = rule?.file?.(allowed) ?? allowed
  const isNew = options.keepId !== true
  const attempt = { store, principal, interaction: 'create', id, isNew, before: undefined } as const
  await checkAttempt({ ...attempt, sent: resource, kept })
  const { project, projectId } = await targetProject(store, principal, kept, id)
  const own = await readOwnParameters(store.ownParameters, store.connection, principal, project)
  rule?.checkParameters?.(resource, own)
  const admission = { store, principal, project, before: undefined, after: kept, own }
  const admitted = rule?.admit === undefined ? kept : await rule.admit(admission)
  const heirOf = inheritedPatients(store, principal, kept)
  return { store, principal, options, resource: admitted, id, project, projectId, own, heirOf }
}

/** A super admin names the Project in `meta`. */
async function targetProject(
  store: StoreContext,
  principal: Principal,
  resource: Resource,
  id: string,
): Promise<{ project: number; projectId: string }> {
  const { resourceType: type } = resource
  const named = principal.isSuperAdmin ? resource.meta?.project : undefined
  const isProject = store.rules.get(type)?.isProject
  const projectId = isProject ? id : (named ?? principal.project.id)
  if (REGISTRY_TYPES.has(type)) return { project: REGISTRY_PROJECT, projectId }
  if (projectId === principal.project.id) return { project: principal.project.number, projectId }
  const project = await store.tenants.projectNumber(
    store.connection,
    store.keys.rowId('Project', projectId),
  )
  if (project === undefined) throw badRequest('No such Project', `${type}.meta.project`)
  return { project, projectId }
}

/** Runs the write rule of the type. The service itself (no membership) is trusted. Errors: 400, 403. */
export async function checkAttempt(
  attempt: Omit<WriteAttempt, 'meant' | 'isNamed'>,
  ruling?: AccessDecision,
): Promise<void> {
  const { store, principal, interaction, sent, kept } = attempt
  const { resourceType: type } = sent
  const rule = store.rules.get(type)
  if (rule?.check === undefined || principal.membershipId === undefined) return
  const isNamed =
    interaction === 'create'
      ? hasNamedGrant(principal, type, interaction)
      : ruling !== undefined && ruling !== 'all' && ruling.isNamed
  const unseen = hiddenFields(principal, type).filter((name) => name in sent)
  await rule.check({ ...attempt, meant: keep(kept, sent, unseen), isNamed })
}

/** Errors: 400. */
export function givenId(id: string): string {
  if (!isLegalId(id)) throw badRequest('Incorrect resource ID')
  return normalId(id)
}
