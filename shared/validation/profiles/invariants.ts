/** The constraints that a profile adds to its type. https://hl7.org/fhir/R4/conformance-rules.html#constraints */
import { HttpError } from '../../errors.ts'
import type { Variables } from '../../fhirpath/logic.ts'
import { type Invariant, tenantInvariant } from '../invariants.ts'
import type { Report } from '../report.ts'
import { MANY_STEPS } from './meter.ts'
import type { Run } from './run.ts'
import type { ElementNode } from './tree.ts'

/** Those that the type does not have already. */
export function invariantsOf(
  { element }: ElementNode,
  type: string,
  known: readonly Invariant[],
): readonly Invariant[] {
  return (element?.constraint ?? [])
    .filter(({ key, severity, expression }) => {
      const isNew = known.every((invariant) => invariant.key !== key)
      return severity === 'error' && expression !== undefined && isNew && !UNIVERSAL_KEYS.has(key)
    })
    .map((constraint) => tenantInvariant(constraint, type))
}

/** Repeated on every element of a snapshot. */
const UNIVERSAL_KEYS = new Set([
  'ele-1',
  'ext-1',
  'dom-3',
  'ref-1',
  'txt-1',
  'txt-2',
  'org-1',
  'sdf-19',
])

export function checkInvariants(
  invariants: readonly Invariant[],
  value: unknown,
  { resource, root, faults, spend }: Run,
): void {
  if (invariants.length === 0) return
  const variables = { context: value, resource, rootResource: root }
  for (const invariant of invariants) {
    const { text, expression } = invariant
    const isMet = evaluate(invariant, value, variables, faults)
    if (!isMet) faults.rule(text, undefined, 'invariant', JSON.stringify({ fhirpath: expression }))
    spend(MANY_STEPS)
  }
}

/** An invariant that is no FHIRPath says nothing about the resource, but its author should know. */
function evaluate(
  { key, holds }: Invariant,
  value: unknown,
  variables: Variables,
  faults: Report,
): boolean {
  try {
    return holds(value, variables)
  } catch (error) {
    if (!(error instanceof HttpError) || error.outcome.issue[0]?.code === 'too-costly') throw error
    faults.add('warning', 'processing', `Constraint ${key}: ${error.message}`)
    return true
  }
}
