/** Index rows from the content and the platform meta of a resource. */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Meta, Reference, Resource } from '../../fhir/resource.ts'
import type { ParameterSubset } from '../index/index-plan.ts'
import { deriveIndexes, type IndexRows } from '../index/indexes.ts'
import { projectKey, type StoreContext } from './context.ts'

interface IndexChoice {
  readonly parameters: OwnParameters | undefined
  readonly only?: ParameterSubset | undefined
}

export function indexRows(
  store: Pick<StoreContext, 'keys' | 'warn'>,
  project: number,
  resource: Resource,
  { parameters, only }: IndexChoice,
): IndexRows {
  const rows = deriveIndexes(store.keys, project, resource, { own: parameters, only })
  for (const parameter of rows.failed) store.warn(parameter)
  const holders = metaAccounts(resource.meta) ?? []
  const isFiled = REGISTRY_TYPES.has(resource.resourceType)
  if (holders.length === 0 && !isFiled) return rows
  const held = new Set(rows.keys)
  const accounts = holders
    .flatMap((account) => account.reference ?? [])
    .map((reference) => store.keys.compartment(project, reference))
    .filter((key) => !held.has(key))
  const own = isFiled
    ? [projectKey(store.keys, resource.resourceType, resource.meta?.project ?? '')]
    : []
  return {
    ...rows,
    nref: rows.nref + accounts.length,
    keys: [
      ...rows.keys.slice(0, rows.nref),
      ...new Set(accounts),
      ...rows.keys.slice(rows.nref),
      ...own,
    ],
  }
}

export function metaAccounts(meta: Meta | undefined): readonly Reference[] | undefined {
  return meta?.accounts ?? (meta?.account && [meta.account])
}
