/** A new resource: ruled on as it would be stored, and written by one statement. */
import { randomUUIDv7 } from 'node:crypto'
import { hiddenBy } from '../../access/decisions/decide.ts'
import type { AccessDecision } from '../../access/decisions/decide-in-sql.ts'
import { decideCreate, decideWritten } from '../../access/decisions/decide-write.ts'
import { fieldsNotCreated, keep } from '../../access/fields/fields.ts'
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { badRequest, conflict } from '../../errors.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Reference, Resource } from '../../fhir/resource.ts'
import { ownParametersOf } from '../index/custom-parameters.ts'
import { shownTo } from '../read/redact.ts'
import { allow, type Store } from '../rows/context.ts'
import { REGISTRY_PROJECT } from '../rows/tenants.ts'
import type { WriteOptions, WriteResult } from '../rows/version.ts'
import {
  accountsGiven,
  distinctAccounts,
  InheritsAccounts,
  inheritedAccounts,
  patientsOf,
  ruleOnHeir,
} from './accounts.ts'
import { givenId, isTaken, resultOf, submit } from './coalesce.ts'
import { checkAttempt } from './guards.ts'
import { type Prepared, prepare } from './prepare.ts'

/** Errors: 400, 403, 409. Two statements more where it inherits accounts that nobody here knew of. */
export async function create(
  store: Store,
  principal: Principal,
  resource: Resource,
  options: WriteOptions = {},
): Promise<WriteResult> {
  const { resourceType: type } = resource
  const { id, project, heirOf, decide } = await draft(store, principal, resource, options)
  const write = async ({ prepared, decision }: Decided) => {
    const written = await submit(store, type, prepared)
    if (written === undefined) throw new Error('An insert wrote no row')
    const governing = await decideWritten(store, principal, 'create', {
      prepared,
      decided: decision,
      stored: undefined,
    })
    return shownTo(
      principal,
      resultOf(store, { type, id, statement: prepared, lastUpdated: written, outcome: 'created' }),
      hiddenBy(governing),
    )
  }
  try {
    return await write(await ruleOnHeir(store, project, heirOf, decide)).catch(
      async (error: unknown) => {
        if (!(error instanceof InheritsAccounts)) throw error
        return await write(decide(await inheritedAccounts(store, project, heirOf)))
      },
    )
  } catch (error) {
    throw isTaken(error) ? conflict(`${type}/${id} exists already`) : error
  }
}

/** A new resource as far as it is known without the accounts that it may inherit. */
export interface Draft {
  readonly id: string
  readonly project: number
  /** Search parameters of that Project's own. */
  readonly own: OwnParameters | undefined
  /** Row ids of patients that it may inherit accounts from. */
  readonly heirOf: readonly string[]
  /** `inherited` undefined: where one of these holds accounts, the writing statement refuses it. Errors: 403. */
  readonly decide: (inherited: readonly Reference[] | undefined) => Decided
}

interface Decided {
  readonly prepared: Prepared
  readonly decision: AccessDecision
}

/** Errors: 400, 403. */
export async function draft(
  store: Store,
  principal: Principal,
  resource: Resource,
  options: WriteOptions,
): Promise<Draft> {
  const { resourceType: type } = resource
  allow(principal, type, 'create')
  const rule = store.rules.get(type)
  rule?.checkForm?.(resource)
  const id = options.keepId && resource.id !== undefined ? givenId(resource.id) : randomUUIDv7()
  const allowed = keep(resource, undefined, fieldsNotCreated(principal, type))
  const kept = rule?.file?.(allowed) ?? allowed
  const isNew = options.keepId !== true
  const attempt = { store, principal, interaction: 'create', id, isNew, before: undefined } as const
  await checkAttempt({ ...attempt, sent: resource, kept })
  const { project, projectId } = await projectOf(store, principal, kept, id)
  const own = await ownParametersOf(store.ownParameters, store.connection, principal, project)
  rule?.checkParameters?.(resource, own)
  const admission = { store, principal, project, before: undefined, after: kept, own }
  const admitted = rule?.admit === undefined ? kept : await rule.admit(admission)
  const heirOf = patientsOf(store, principal, kept)
  const given = accountsGiven(principal, type)
  const start = { kind: 'insert', ver: 1, after: undefined, project, projectId, id, own } as const
  const decide: Draft['decide'] = (inherited) => {
    const accounts = distinctAccounts([...given, ...(inherited ?? [])])
    const place = { ...start, accounts, ...(inherited === undefined ? { heirOf } : {}) }
    return decideCreate(store, principal, admitted, (next) =>
      prepare({ store, principal, resource: next, place, stored: undefined, options }),
    )
  }
  return { id, project, own, heirOf, decide }
}

/** The Project a new resource goes to: the Principal's, or the one a super admin names in `meta`. */
async function projectOf(
  store: Store,
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
  const project = await store.tenants.numberOf(
    store.connection,
    store.keys.rowId('Project', projectId),
  )
  if (project === undefined) throw badRequest('No such Project', `${type}.meta.project`)
  return { project, projectId }
}
