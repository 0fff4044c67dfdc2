/**
 * The accounts that a new resource is given: that of its creator's policy, and those of the patients it
 * is about. Few patients hold any, so a create does not ask for them: the writing statement refuses what
 * belongs to a patient with accounts, and the create is prepared again with these. Patients found so
 * are known from then on and asked for before the first attempt.
 */
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { Meta, Reference, Resource } from '../../fhir/resource.ts'
import { patientCompartments } from '../index/indexes.ts'
import type { StoreContext } from '../rows/context.ts'
import { metaAccounts } from '../rows/index-rows.ts'
import type { Write } from '../rows/write-rows.ts'

const PATIENT = 'Patient'
/** A Group may name thousands, of whom few hold accounts: those are found first. */
const MANY_PATIENTS = 20

/** By the policy of its creator. */
export function accountsGiven(principal: Principal, type: string): readonly Reference[] {
  const account = grantsFor(principal, type, 'create')?.find((grant) => grant.account !== undefined)
  return account?.account === undefined ? [] : [{ reference: account.account }]
}

/** Row ids of the patients that a new resource inherits from; none where its sender may name accounts and does. */
export function inheritedPatients(
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

/** As they are now, in the order of the patients. Reads that are asked for together share a statement. */
export async function inheritedAccounts(
  store: StoreContext,
  project: number,
  patients: readonly string[],
): Promise<readonly Reference[]> {
  const found: Reference[] = []
  // One after the other: a transaction gives each of its pieces one row at a time.
  for (const id of await holdersAmong(store, project, patients))
    found.push(...(await patientAccounts(store, project, id)))
  return distinctAccounts(found)
}

/** Finds patients that hold accounts, or did once. One statement for many. */
async function holdersAmong(
  { connection }: StoreContext,
  project: number,
  patients: readonly string[],
): Promise<readonly string[]> {
  if (patients.length <= MANY_PATIENTS) return patients
  const rows = await connection.query<{ id: string }>({
    name: 'account-holders',
    text: `select x.id::text from unnest($2::uuid[]) with ordinality as x(id, n)
      where exists (select 1 from version v where v.project = $1 and v.type = 112 and v.id = x.id
        and v.meta_ext like '%"accounts":%') order by x.n`,
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
  if (accounts.length > 0) store.holders.add(id)
  return accounts
}

/** True for a write that others of its transaction may have to inherit from. */
export function setsPatientAccounts({ type, metaExtension }: Write): boolean {
  return type === typeNumber(PATIENT) && metaExtension.includes('"accounts":')
}

export function distinctAccounts(accounts: readonly Reference[]): readonly Reference[] {
  return [...new Map(accounts.map((item) => [item.reference, item])).values()]
}

/** The accounts of a resource that comes back after its deletion, as if it were new. */
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
