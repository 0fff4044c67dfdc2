/** Whether a write would say what is stored already: it makes no version and no event then. */
import { isSameJson, isSameValue } from '../../fhir/json.ts'
import type { Resource } from '../../fhir/resource.ts'
import { tailOf } from '../rows/content.ts'
import type { Version } from '../rows/version.ts'
import { isSameMeta, type Prepared } from './prepare.ts'

/**
 * Equal texts, or equal values whose keys came in another order (then the lengths agree). `stored` is
 * what `live` holds.
 */
export function saysTheSame(live: Version, stored: Resource, prepared: Prepared): boolean {
  const { write } = prepared
  if (write.unique !== undefined) return false
  const before = tailOf(live.content ?? '', live.type, live.id, live.ver)
  if (before.length !== write.tail.length) return false
  if (!isSameMeta(live.metaExtension, write.metaExtension)) return false
  if (before === write.tail) return true
  if (!hasSameElements(stored, prepared.resource)) return false
  const asJson = (tail: string): string => `{"meta":{"_":"${tail}`
  return isSameJson(asJson(before), asJson(write.tail))
}

/** Compares the elements other than `meta`; cheaper than to parse both texts. */
function hasSameElements(a: Resource, b: Resource): boolean {
  const { meta: _before, ...before } = a
  const { meta: _after, ...after } = b
  return isSameValue(before, after)
}
