/** Elements without a place for a system, and which one is meant all the same. */

import { elementsOf, valueSet } from '../../../fhir/definitions.ts'
import { urlOf } from '../../../fhir/resource.ts'
import { pathsRead } from '../../../query/parameter-paths.ts'
import type { TokenValue } from '../../../query/values.ts'
import { plannedParameter } from '../../index/index-plan.ts'
import type { Scene } from './row-test.ts'

/** Types of elements whose codes have no system of their own. */
export const BARE: ReadonlySet<string> = new Set(['code', 'boolean', 'string', 'id'])

/**
 * The system of a code is that of the value set it is bound to, or none is named.
 * https://hl7.org/fhir/R4/search.html#token
 */
export function isImplied(
  { type, own }: Place,
  code: string,
  { system, code: value }: TokenValue,
): boolean {
  if (system === undefined || value === undefined) return false
  const types = plannedParameter(type, code, own)?.types ?? []
  if (types.length === 0 || !types.every((one) => BARE.has(one))) return false
  if (system === '') return true
  return isBoundTo({ type, own }, code, system, value)
}

/** The codes of `system|` where elements have no place for the system but are bound to it. */
export function impliedCodes(
  { type, own }: Place,
  code: string,
  { system, code: value }: TokenValue,
): readonly string[] {
  if (!system || value !== undefined) return []
  const types = plannedParameter(type, code, own)?.types ?? []
  if (!types.every((one) => BARE.has(one))) return []
  return boundSets({ type, own }, code).flatMap((codes) => listed(codes, system))
}

/** True for a part of a composite that is a code bound to a value set with this system. */
export function isImpliedPart(place: Place, code: string, { system, code: value }: TokenValue) {
  if (!system || value === undefined) return false
  return isBoundTo(place, code, system, value)
}

function isBoundTo(place: Place, code: string, system: string, value: string): boolean {
  return boundSets(place, code).some((codes) => listed(codes, system).includes(value))
}

function listed(codes: Codes, system: string): readonly string[] {
  return Object.hasOwn(codes, system) ? (codes[system] ?? []) : []
}

type Place = Pick<Scene, 'type' | 'own'>

/** The codes by system of each `code` element that a parameter reads. */
function boundSets({ type, own }: Place, code: string): readonly Codes[] {
  const paths = pathsRead(type, code, own) ?? []
  return elementsOf(type)
    .filter(({ path, types }) => paths.includes(path) && types.some((one) => one.code === 'code'))
    .map(({ binding = '' }) => valueSet(urlOf(binding))?.systems)
    .filter((codes) => codes !== undefined)
}

type Codes = Readonly<Record<string, readonly string[]>>
