/** `writeConstraint` of a policy entry: FHIRPath that must be true of a create or update. */
import { forbiddenBecause } from '../errors.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Grant } from './grant.ts'

/** Exactly one `true` lets the write through; a failing evaluation does not. Errors: 403. */
export function checkConstraints(
  { constraints, source }: Pick<Grant, 'constraints' | 'source'>,
  before: Resource | undefined,
  after: Resource,
): void {
  for (const { name, run, variables } of constraints) {
    if (!holds(() => run(after, { ...variables, before: before ?? [], after }))) {
      throw forbiddenBecause(name, `writeConstraint of ${source}`)
    }
  }
}

function holds(evaluate: () => readonly unknown[]): boolean {
  try {
    const result = evaluate()
    return result.length === 1 && result[0] === true
  } catch {
    return false
  }
}
