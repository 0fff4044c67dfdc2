/** Whether a write would say what is stored already: it makes no version and no event then. */
import { isSameJson } from '../fhir/json.ts'
import { tailOf } from './content.ts'
import { isSameMeta, type Prepared } from './prepare.ts'
import type { Version } from './repository.ts'

/** Equal texts, or equal values whose keys came in another order (then the lengths agree). */
export function saysTheSame(live: Version, { write }: Prepared): boolean {
  if (write.unique !== undefined) return false
  const before = tailOf(live.content ?? '', live.type, live.id, live.ver)
  if (before.length !== write.tail.length) return false
  if (!isSameMeta(live.metaExtension, write.metaExtension)) return false
  if (before === write.tail) return true
  if (sumOf(before) !== sumOf(write.tail)) return false
  const asJson = (tail: string): string => `{"meta":{"_":"${tail}`
  return isSameJson(asJson(before), asJson(write.tail))
}

/** Keys in another order are the same characters in another order, which is cheaper to rule out. */
function sumOf(text: string): number {
  let sum = 0
  for (let i = 0; i < text.length; i++) sum += text.charCodeAt(i)
  return sum
}
