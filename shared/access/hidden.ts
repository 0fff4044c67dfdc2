/** Search parameters that read hidden elements. */
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { pathsRead } from '../search/language/parameter-paths.ts'
import type { Grant } from './grant.ts'
import { overlaps } from './paths.ts'

/** True if a parameter reads an element that the grant hides, or is unknown. */
export function hidesAny(
  { hidden }: Pick<Grant, 'hidden'>,
  type: string,
  codes: readonly string[],
  own: OwnParameters | undefined,
): boolean {
  if (hidden.length === 0) return false
  return codes.some((code) => {
    const paths = pathsRead(type, code, own)
    return paths?.some((path) => hidden.some((one) => overlaps(type, path, one))) ?? true
  })
}
