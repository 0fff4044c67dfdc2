/** `fixed[x]` and `pattern[x]`. https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.pattern_x_ */
import { numberOf } from '../../fhir/json.ts'
import { isObject } from '../../fhir/resource.ts'
import type { Spend } from './meter.ts'
import type { Test } from './run.ts'
import type { ProfileElement } from './tree.ts'

/** Whether a value is as the element demands; undefined when it demands nothing. */
export function patternOf(element: ProfileElement | undefined): Test | undefined {
  const tests = Object.entries(element ?? {}).flatMap(([name, expected]): Test[] => {
    if (/^fixed[A-Z]/.test(name)) return [(value, { spend }) => isFixed(value, expected, spend)]
    if (/^pattern[A-Z]/.test(name))
      return [(value, { spend }) => hasPattern(value, expected, spend)]
    return []
  })
  if (tests.length < 2) return tests[0]
  return (value, run) => tests.every((test) => test(value, run))
}

/** Equal in every part. */
function isFixed(value: unknown, expected: unknown, spend: Spend): boolean {
  spend()
  if (Array.isArray(expected)) {
    if (!Array.isArray(value) || value.length !== expected.length) return false
    return expected.every((item, index) => isFixed(value[index], item, spend))
  }
  const number = numberOf(expected)
  if (number !== undefined) return numberOf(value) === number
  if (!isObject(expected)) return value === expected
  if (!isObject(value)) return false
  const names = Object.keys(expected)
  return (
    names.length === Object.keys(value).length &&
    names.every((name) => Object.hasOwn(value, name) && isFixed(value[name], expected[name], spend))
  )
}

/** Has what is expected, and maybe more. */
function hasPattern(value: unknown, expected: unknown, spend: Spend): boolean {
  spend()
  if (Array.isArray(expected)) {
    if (!Array.isArray(value)) return false
    return expected.every((item) => value.some((found) => hasPattern(found, item, spend)))
  }
  const number = numberOf(expected)
  if (number !== undefined) return numberOf(value) === number
  if (!isObject(expected)) return value === expected
  if (!isObject(value)) return false
  return Object.keys(expected).every(
    (name) => Object.hasOwn(value, name) && hasPattern(value[name], expected[name], spend),
  )
}
