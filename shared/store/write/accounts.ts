/**
 * Accounts of a new resource: from its creator's policy and its patients. Few patients hold any, so creates do not
 * read them first: the writing statement rejects rows of patients with accounts, then the create is prepared again.
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
/** Above this, holders are found first: a Group may name thousands of patients. */
const MANY_PATIENTS = 20

export function accountsGiven(principal: Principal, type: string): readonly Reference[] {
  const account = grantsFor(principal, type, 'create')?.find((grant) => grant.account !== undefined)
  return account?.account === undefined ? [] : [{ reference: account.account }]
}

/** Empty if the sender may name accounts and does. */
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
