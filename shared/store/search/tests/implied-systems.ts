/** Elements without a place for a system, and which one is meant all the same. */

import { elementsOf } from '../../../fhir/definitions.ts'
import { pathsRead } from '../../../query/parameter-paths.ts'
import type { TokenValue } from '../../../query/values.ts'
import { publishedCodes } from '../../../validation/bindings.ts'
import { plannedParameter } from '../../index/index-plan.ts'
import type { Scene } from './row-test.ts'

/** Types of elements whose codes have no system of their own. */
export const BARE: ReadonlySet<string> = new Set(['code', 'boolean', 'string', 'id'])

/**
 * The system of a code is that of the value set it is bound to, or none is named.
 * https://hl7.org/fhir/R4/search.html#token
 */
export function isImplied(
  { type, own }: Scene,
  code: string,
  { system, code: value }: TokenValue,
): boolean {
  if (system === undefined || value === undefined) return false
  const types = plannedParameter(type, code, own)?.types ?? []
  if (types.length === 0 || !types.every((one) => BARE.has(one))) return false
  if (system === '') return true
  const paths = pathsRead(type, code, own) ?? []
  return elementsOf(type).some(
    ({ path, binding = '' }) =>
      paths.includes(path) && publishedCodes(binding)?.has(system, value) === true,
  )
}
