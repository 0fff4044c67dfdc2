/** Derives index rows from resources, for writes, in-memory policy checks and Subscriptions. */
import { searchable } from '../../access/fields/fields.ts'
import { tooCostly } from '../../core/errors.ts'
import { COMPARTMENTS, type Compartment } from '../../fhir/definitions.ts'
import type { OwnParameter, OwnParameters } from '../../fhir/definitions-data.ts'
import type { Resource } from '../../fhir/resource.ts'
import { timestamp } from '../../fhir/values.ts'
import { Derivation } from './derivation.ts'
import { getIndexPlan, type IndexPlan, type ParameterSubset } from './index-plan.ts'
import type { CodeRow, Keys, RangeRow, StringRow } from './keys.ts'

export interface IndexRows {
  /** `keys[0]` is the self key; `keys[0..nref)` are self, references and compartments. No duplicates. */
  readonly keys: readonly bigint[]
  readonly nref: number
  /** PostgreSQL timestamptz text (`infinity` allowed); both or none. */
  readonly dateLow: string | undefined
  readonly dateHigh: string | undefined
  readonly strings: readonly StringRow[]
  readonly ranges: readonly RangeRow[]
  readonly codes: readonly CodeRow[]
  readonly units: readonly string[]
  /** Parameters of the Project whose expressions failed: they have no rows. */
  readonly failed: readonly OwnParameter[]
}

/** `nref` is a smallint column. */
const MAX_REFERENCES = 32_767
/** A string has up to four: itself, its sound, its exact value, and the one of `name` or `address`. */
const MAX_ROWS = 200_000

interface DeriveChoice {
  readonly own?: OwnParameters | undefined
  readonly only?: ParameterSubset | undefined
}

/** The resource needs its id; its secrets are not indexed. Errors: 400 too-costly above 32,767 references. */
export function deriveIndexes(
  keys: Keys,
  project: number,
  whole: Resource,
  { own, only }: DeriveChoice = {},
): IndexRows {
  const resource = searchable(whole)
  const plan = getIndexPlan(resource.resourceType, own, only)
  const derived = new Derivation(keys, project, plan, resource)
  runPlan(plan, resource, derived)
  const nref = derived.references.size
  const size = nref + derived.others.size
  if (nref > MAX_REFERENCES) throw tooCostly(`A resource may hold ${MAX_REFERENCES} references`)
  if (size + derived.strings.length + derived.ranges.length > MAX_ROWS) {
    throw tooCostly(`A resource may hold ${MAX_ROWS} searchable values`)
  }
  const { low, high } = derived
  const hasDate = low !== undefined && high !== undefined
  return {
    keys: [...derived.references, ...derived.others],
    nref,
    dateLow: hasDate ? timestamp(low) : undefined,
    dateHigh: hasDate ? timestamp(high) : undefined,
    strings: derived.strings,
    ranges: derived.ranges,
    codes: derived.codes,
    units: [...derived.units],
    failed: derived.failed,
  }
}

/** Returns `Patient/<id>` of every patient compartment of the resource, itself included. */
export function patientCompartments(resource: Resource): readonly string[] {
  return resourceCompartments('Patient', resource)
}

export function resourceCompartments(
  compartment: Compartment,
  resource: Resource,
): readonly string[] {
  const plan = getIndexPlan(resource.resourceType)
  const found = new Set<string>()
  if (resource.resourceType === compartment && resource.id !== undefined) {
    found.add(`${compartment}/${resource.id}`)
  }
  for (const walk of plan.compartments[COMPARTMENTS.indexOf(compartment)] ?? []) {
    walk(resource, found)
  }
  return [...found]
}

function runPlan(plan: IndexPlan, resource: Resource, derived: Derivation): void {
  for (const name in resource) {
    const walks = plan.roots.get(name)
    if (walks !== undefined) for (const walk of walks) walk(resource, derived)
  }
  for (const walk of plan.whole) walk(resource, derived)
  derived.finish(plan.parameters)
}
