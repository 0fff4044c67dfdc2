/**
 * Checks whether a write is allowed, before its version is prepared: by policy, by the rule of its type, and guarded
 * elements (access/guarded/elements.ts). Finds the accounts of a new resource.
 */

import { randomUUIDv7 } from 'node:crypto'
import type { AccessDecision } from '../../access/decisions/decide-in-sql.ts'
import { fieldsNotCreated, hiddenFields, keep } from '../../access/fields/fields.ts'
import { authorsChanges, guardedChanges } from '../../access/guarded/elements.ts'
import { hasAllRights } from '../../access/guarded/rights.ts'
import { grantsFor, REGISTRY_TYPES } from '../../access/policy.ts'
import { type Principal, SYSTEM_PROJECT_NUMBER } from '../../access/principal.ts'
import { badRequest, forbiddenByPlatform } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Meta, Reference, Resource } from '../../fhir/resource.ts'
import { patientCompartments } from '../index/indexes.ts'
import {
  type Admission,
  isLegalId,
  metaAccounts,
  normalId,
  readRow,
  requireAllowed,
  type StoreContext,
  type WriteAttempt,
} from '../rows/context.ts'
import { readOwnParameters } from '../rows/custom-parameters.ts'
import { parseVersion, toVersion } from '../rows/rows.ts'
import { HOLDS_ACCOUNTS } from '../rows/side-rows.ts'
import type { WriteOptions } from '../rows/version.ts'
import type { Write } from '../rows/write-rows.ts'

export interface AuthorizedCreate {
  readonly store: StoreContext
  readonly principal: Principal
  readonly options: WriteOptions
  readonly resource: Resource
  readonly id: string
  readonly project: number
  readonly projectId: string
  readonly own: OwnParameters | undefined
  readonly inheritsFrom: readonly string[]
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
  const id = options.keepId && resource.id !== undefined ? givenId(resource.id) : randomUUIDv7()
  const allowed = keep(resource, undefined, fieldsNotCreated(principal, type))
  const kept = store.rules.get(type)?.file?.(allowed) ?? allowed
  const { project, projectId } = await targetProject(store, principal, kept, id)
  const own = await readOwnParameters(store.ownParameters, store.connection, principal, project)
  const isNew = options.keepId !== true
  const attempt = { store, principal, interaction: 'create', id, isNew, before: undefined } as const
  const admitted = await applyRule({ ...attempt, sent: resource, kept }, { project, own })
  const inheritsFrom = inheritedPatients(store, principal, kept)
  return {
    store,
    principal,
    options,
    resource: admitted,
    id,
    project,
    projectId,
    own,
    inheritsFrom,
  }
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
  if (REGISTRY_TYPES.has(type)) return { project: SYSTEM_PROJECT_NUMBER, projectId }
  if (projectId === principal.project.id) return { project: principal.project.number, projectId }
  const project = await store.projectNumber(
    store.connection,
    store.keys.rowId('Project', projectId),
  )
  if (project === undefined) throw badRequest('No such Project', `${type}.meta.project`)
  return { project, projectId }
}

type FiledAttempt = Omit<WriteAttempt, 'meant' | 'isNamed'>

/** Runs the write rule of the type on a filed resource and returns the resource to store. Errors: 400, 403, 422. */
export async function applyRule(
  attempt: FiledAttempt,
  { project, own }: Pick<Admission, 'project' | 'own'>,
  decision?: AccessDecision,
): Promise<Resource> {
  const { store, principal, before, sent, kept } = attempt
  const rule = store.rules.get(sent.resourceType)
  rule?.checkForm?.(sent)
  rule?.checkParameters?.(sent, own)
  await checkAttempt(attempt, decision)
  if (rule?.admit === undefined) return kept
  return rule.admit({ store, principal, project, before, after: kept, own })
}

/** The service itself (no membership) is trusted. Errors: 400, 403. */
async function checkAttempt(attempt: FiledAttempt, decision?: AccessDecision): Promise<void> {
  const { store, principal, interaction, before, sent, kept } = attempt
  const { resourceType: type } = sent
  const rule = store.rules.get(type)
  requireNoLimits(principal, type)
  if (rule?.check === undefined || principal.membershipId === undefined) return
  const isNamed =
    interaction === 'create'
      ? hasNamedGrant(principal, type, interaction)
      : decision !== undefined && decision !== 'all' && decision.isNamed
  const unseen = hiddenFields(principal, type).filter((name) => name in sent)
  const meant = keep(kept, sent, unseen)
  // Hidden elements count as changed: otherwise an equal value would confirm a guess.
  await rule.check({
    ...attempt,
    before: before && keep(before, undefined, unseen),
    meant,
    isNamed,
  })
}

/** Another program or membership would not have the limits. */
const LIMITS_ARE_IN = new Set(['Bot', 'ClientApplication', 'Project', 'ProjectMembership'])

/** Keeps a Bot from extending its own secrets and hosts. Errors: 403. */
export function requireNoLimits({ declared }: Principal, type: string): void {
  if (declared === undefined || !LIMITS_ARE_IN.has(type)) return
  throw forbiddenByPlatform(
    `A Bot that is limited to the secrets and hosts it names may not write a ${type}`,
  )
}

/** Errors: 400. */
export function givenId(id: string): string {
  if (!isLegalId(id)) throw badRequest('Incorrect resource ID')
  return normalId(id)
}

/*
 * Accounts of a new resource: from its creator's policy and its patients. Few patients hold any, so creates do not
 * read them first: the writing statement rejects rows of patients with accounts, then the create is prepared again.
 */

const PATIENT = 'Patient'
/** Above this, holders are found first: a Group may name thousands of patients. */
const MANY_PATIENTS = 20

export function accountsGiven(principal: Principal, type: string): readonly Reference[] {
  const account = grantsFor(principal, type, 'create')?.find((grant) => grant.account !== undefined)
  return account?.account === undefined ? [] : [{ reference: account.account }]
}

/** Empty if the sender may name accounts and does. */
function inheritedPatients(
  { keys }: Pick<StoreContext, 'keys'>,
  principal: Principal,
  resource: Resource,
): readonly string[] {
  if (resource.resourceType === PATIENT) return []
  if (principal.isProjectAdmin && metaAccounts(resource.meta) !== undefined) return []
  return patientCompartments(resource).map((reference) =>
    keys.rowId(PATIENT, reference.slice(PATIENT.length + 1)),
  )
}

/** Concurrent reads share a statement. */
export async function inheritedAccounts(
  store: StoreContext,
  project: number,
  patients: readonly string[],
): Promise<readonly Reference[]> {
  const found: Reference[] = []
  // Sequential: a transaction allows each piece one row at a time.
  for (const id of await holdersAmong(store, project, patients))
    found.push(...(await patientAccounts(store, project, id)))
  return distinctAccounts(found)
}

/** One statement for many. */
async function holdersAmong(
  { connection }: StoreContext,
  project: number,
  patients: readonly string[],
): Promise<readonly string[]> {
  if (patients.length <= MANY_PATIENTS) return patients
  const rows = await connection.query<{ id: string }>({
    name: 'account-holders',
    text: `select x.id::text from unnest($2::uuid[]) with ordinality as x(id, n)
      where exists (select 1 from version v
        where v.project = $1 and v.id = x.id and ${HOLDS_ACCOUNTS}) order by x.n`,
    values: [project, patients],
  })
  return rows.map(({ id }) => id)
}

async function patientAccounts(
  store: StoreContext,
  project: number,
  id: string,
): Promise<readonly Reference[]> {
  const key = { project, type: typeNumber(PATIENT), id, metaPrefix: '', everywhere: false }
  const row = await store.fetch(key)
  if (row === undefined || row.content === null) return []
  const accounts = metaAccounts(JSON.parse(`{${row.meta_ext}}`) as Meta) ?? []
  if (accounts.length > 0) store.holders.set(id, true)
  return accounts
}

/** True for a write from which others in its transaction may inherit. */
export function setsPatientAccounts({ type, metaExtension }: Write): boolean {
  return type === typeNumber(PATIENT) && metaExtension.includes('"accounts":')
}

export function distinctAccounts(accounts: readonly Reference[]): readonly Reference[] {
  return [...new Map(accounts.map((item) => [item.reference, item])).values()]
}

/** Accounts of a restored resource, as if it were new. */
export async function newAccounts(
  store: StoreContext,
  principal: Principal,
  project: number,
  resource: Resource,
): Promise<readonly Reference[]> {
  const patients = inheritedPatients(store, principal, resource)
  const inherited = await inheritedAccounts(store, project, patients)
  return distinctAccounts([...accountsGiven(principal, resource.resourceType), ...inherited])
}

/** Checks a write and returns the changed guarded paths. Errors: 403. */
export function checkGuarded({
  principal,
  before,
  meant,
  isNamed,
}: WriteAttempt): readonly string[] {
  const { resourceType: type } = meant
  const isOwn = before === undefined || before.meta?.author?.reference === principal.profile
  // Secrets of another author count as changed: otherwise equal ones would confirm a guess.
  const guesses = isOwn || principal.isProjectAdmin ? [] : authorsChanges(undefined, meant)
  const changes = [...guesses, ...guardedChanges(before, meant)]
  if (changes.length === 0) return changes
  const free = isOwn ? authorsChanges(before, meant) : []
  const path = changes.find((one) => !free.includes(one))
  if (path !== undefined && !principal.isProjectAdmin && !isNamed) throw notGuarded(type, path)
  if (changes.includes('identityProvider')) requireProviderRight(principal, type)
  return changes
}

/** Errors: 403. */
export async function checkGuardedDeletion(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  if (mayWriteGuarded(principal, type, 'delete')) return
  const stored = await readStored(store, principal, type, id)
  if (stored === undefined) return
  const free = authorsChanges(undefined, stored)
  const path = guardedChanges(undefined, stored).find((one) => !free.includes(one))
  if (path !== undefined) throw notGuarded(type, path)
}

export function mayWriteGuarded(
  principal: Principal,
  type: string,
  interaction: 'create' | 'update' | 'delete',
): boolean {
  return principal.isProjectAdmin || hasNamedGrant(principal, type, interaction)
}

function hasNamedGrant(
  principal: Principal,
  type: string,
  interaction: 'create' | 'update' | 'delete',
): boolean {
  return grantsFor(principal, type, interaction)?.some(({ isNamed }) => isNamed) ?? false
}

export async function readStored(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<Resource | undefined> {
  const row = await readRow(store, principal, type, id)
  return row === undefined || row.content === null ? undefined : parseVersion(toVersion(row))
}

function notGuarded(type: string, path: string) {
  const reason = `is for project administrators, and for policies with an entry for ${type}`
  return forbiddenByPlatform(`${type}.${path} ${reason}`, `${type}.${path}`)
}

/** A provider acts for every member, so its author needs all rights. Errors: 403. */
export function requireProviderRight(principal: Principal, type: string): void {
  if (hasAllRights(principal)) return
  const reason = 'Only administrators may set up an identity provider'
  throw forbiddenByPlatform(reason, `${type}.identityProvider`)
}
