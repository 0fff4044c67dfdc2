/** `fixed[x]` and `pattern[x]`. https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.pattern_x_ */
import { HttpError } from '../../core/errors.ts'
import { toNumber } from '../../fhir/json.ts'
import { asArray, isObject } from '../../fhir/resource.ts'
import { convert, parseDate, UCUM } from '../../fhir/values.ts'
import type { Variables } from '../../fhirpath/members.ts'
import { type Invariant, tenantInvariant } from '../invariants.ts'
import {
  type Item,
  MANY_STEPS,
  parseMax,
  type Run,
  rangeText,
  type Spend,
  type Test,
} from '../profile-run.ts'
import type { Property, Report } from '../shapes.ts'
import type { ElementNode, ProfileElement } from './tree.ts'

/** Compiles a test of the element's fixed values and patterns, if any. */
export function compilePattern(element: ProfileElement | undefined): Test | undefined {
  const tests = Object.entries(element ?? {}).flatMap(([name, expected]): Test[] => {
    if (/^fixed[A-Z]/.test(name)) return [(value, { spend }) => isFixed(value, expected, spend)]
    if (/^pattern[A-Z]/.test(name))
      return [(value, { spend }) => hasPattern(value, expected, spend)]
    return []
  })
  if (tests.length < 2) return tests[0]
  return (value, run) => tests.every((test) => test(value, run))
}

function isFixed(value: unknown, expected: unknown, spend: Spend): boolean {
  spend()
  if (Array.isArray(expected)) {
    if (!Array.isArray(value) || value.length !== expected.length) return false
    return expected.every((item, index) => isFixed(value[index], item, spend))
  }
  const number = toNumber(expected)
  if (number !== undefined) return toNumber(value) === number
  if (!isObject(expected)) return value === expected
  if (!isObject(value)) return false
  const names = Object.keys(expected)
  return (
    names.length === Object.keys(value).length &&
    names.every((name) => Object.hasOwn(value, name) && isFixed(value[name], expected[name], spend))
  )
}

/** Tests that the value contains all that is expected. */
function hasPattern(value: unknown, expected: unknown, spend: Spend): boolean {
  spend()
  if (Array.isArray(expected)) {
    if (!Array.isArray(value)) return false
    return expected.every((item) => value.some((found) => hasPattern(found, item, spend)))
  }
  const number = toNumber(expected)
  if (number !== undefined) return toNumber(value) === number
  if (!isObject(expected)) return value === expected
  if (!isObject(value)) return false
  return Object.keys(expected).every(
    (name) => Object.hasOwn(value, name) && hasPattern(value[name], expected[name], spend),
  )
}

interface Range {
  readonly min: number
  readonly max: number
}

/** Returns undefined when the profile does not narrow the type. */
export function profileCardinality(
  { element }: ElementNode,
  property: Property,
): Range | undefined {
  const min = element?.min ?? 0
  const max = parseMax(element?.max) ?? property.max
  return min > property.min || max < property.max ? { min, max } : undefined
}

export function checkCount(count: number, range: Range | undefined, label: string, run: Run): void {
  if (range === undefined || (count >= range.min && count <= range.max)) return
  const text =
    count === 0
      ? 'Missing required property'
      : `Invalid number of values: expected ${rangeText(range.min, range.max)}, but found ${count}`
  run.faults.rule(text, label)
}

/** Returns the values of an element; for primitives, including values with only extensions. */
export function propertyItems(
  parent: Record<string, unknown>,
  property: Property,
): readonly Item[] {
  const value = parent[property.name]
  const sibling = property.check === undefined ? undefined : parent[`_${property.name}`]
  if (!property.isArray) {
    if (value === undefined && sibling === undefined) return []
    return [{ value: value ?? null, property, index: undefined, sibling }]
  }
  const values = asArray(value)
  const siblings = asArray(sibling)
  return Array.from({ length: Math.max(values.length, siblings.length) }, (_, index) => ({
    value: values[index] ?? null,
    property,
    index,
    sibling: siblings[index],
  }))
}

export function compileLimits(
  element: ProfileElement | undefined,
): ((value: unknown) => string | undefined) | undefined {
  const { maxLength } = element ?? {}
  const least = limitNamed(element, 'minValue')
  const most = limitNamed(element, 'maxValue')
  if (maxLength === undefined && least === undefined && most === undefined) return undefined
  return (value) => {
    if (maxLength !== undefined && typeof value === 'string' && [...value].length > maxLength) {
      return `Value is longer than ${maxLength} characters`
    }
    if (isBelow(value, least)) return `Value is below the minimum ${limitText(least)}`
    return isBelow(most, value) ? `Value is above the maximum ${limitText(most)}` : undefined
  }
}

function limitNamed(element: ProfileElement | undefined, name: string): unknown {
  const members: Readonly<Record<string, unknown>> = { ...element }
  const found = Object.keys(members).find((key) => key.startsWith(name))
  return found === undefined ? undefined : members[found]
}

/** Returns false for incomparable values: other units, overlapping dates. */
function isBelow(a: unknown, b: unknown): boolean {
  const [first, second] = [toNumber(a), toNumber(b)]
  if (first !== undefined && second !== undefined) return first < second
  if (typeof a === 'string' && typeof b === 'string') return isEarlier(a, b)
  if (!isObject(a) || !isObject(b)) return false
  return isSameUnit(a, b) ? isBelow(a.value, b.value) : isBelow(valueIn(a, b), b.value)
}

/** Converts a UCUM quantity to the unit of another. */
function valueIn(quantity: Members, { system, code }: Members): number | undefined {
  const value = toNumber(quantity.value)
  if (value === undefined || system !== UCUM || quantity.system !== UCUM) return undefined
  return convert(value, String(quantity.code), String(code))
}

type Members = Readonly<Record<string, unknown>>

const TIME = /^\d\d:\d\d:\d\d/

function isEarlier(a: string, b: string): boolean {
  if (TIME.test(a) && TIME.test(b)) return a < b
  const [first, second] = [parseDate(a), parseDate(b)]
  return first !== undefined && second !== undefined && first.high <= second.low
}

function isSameUnit(a: Members, b: Members): boolean {
  if (a.code !== undefined || b.code !== undefined) {
    return a.code === b.code && a.system === b.system
  }
  return a.unit === b.unit
}

function limitText(limit: unknown): string {
  if (!isObject(limit)) return String(limit)
  return [limit.value, limit.unit ?? limit.code].filter((part) => part !== undefined).join(' ')
}

export function profileInvariants(
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

/** Reports an invalid invariant as a warning: it is an error of the profile, not of the resource. */
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
