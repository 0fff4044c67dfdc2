/** Items that a List refers to and has marked as deleted. https://hl7.org/fhir/R4/list.html#List.entry.deleted */
import { isObject } from '../../fhir/resource.ts'
import { targetOf } from '../../fhir/values.ts'
import type { Derivation } from './derivation.ts'

/** An item that stands in another entry, too, is still a member by that one. */
export function removedItems(resource: unknown, into: Derivation): void {
  const entries = isObject(resource) && Array.isArray(resource.entry) ? resource.entry : []
  const kept = new Set<string>()
  const removed = new Set<string>()
  for (const entry of entries) {
    const literal = targetOf('Reference', entry?.item)?.literal
    if (literal !== undefined) (entry.deleted === true ? removed : kept).add(literal)
  }
  for (const literal of removed.difference(kept)) into.removed(literal)
}
