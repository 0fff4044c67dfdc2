/** Three-valued logic, `undefined` is the empty collection: https://hl7.org/fhirpath/N1/#boolean-logic */

import { isObject } from '../fhir/resource.ts'
import type { Expression } from './parse.ts'
import { NO_VALUE, NOT_PLAIN } from './values.ts'

/** The values of an invariant's variables. */
export interface Variables {
  /** The element that the invariant belongs to. */
  readonly context: unknown
  /** `%resource`: the innermost resource around it. */
  readonly resource: unknown
  readonly rootResource: unknown
}

export type Truth = (focus: unknown, variables: Variables) => boolean | undefined

export type Evaluate = (focus: unknown, variables: Variables) => readonly unknown[]

/** A compiled part of an expression. */
export interface Compiled {
  readonly evaluate: Evaluate
  /** Types that its values may have; undefined: any resource. */
  readonly types: readonly string[] | undefined
}

type Connect = (left: Truth, right: Truth) => Truth

/** Operators between two truths; the right one is not evaluated when the left one decides. */
export const LOGIC: ReadonlyMap<string, Connect> = new Map<string, Connect>([
  [
    'and',
    (left, right) => (focus, variables) => {
      const a = left(focus, variables)
      if (a === false) return false
      const b = right(focus, variables)
      return b === false ? false : a && b
    },
  ],
  ['or', (left, right) => either(left, right, (a) => a)],
  ['implies', (left, right) => either(left, right, (a) => (a === undefined ? undefined : !a))],
  [
    'xor',
    (left, right) => (focus, variables) => {
      const a = left(focus, variables)
      const b = right(focus, variables)
      return a === undefined || b === undefined ? undefined : a !== b
    },
  ],
])

function either(
  left: Truth,
  right: Truth,
  ofLeft: (a: boolean | undefined) => boolean | undefined,
): Truth {
  return (focus, variables) => {
    const a = ofLeft(left(focus, variables))
    if (a === true) return true
    const b = right(focus, variables)
    return b === true ? true : a === undefined ? undefined : b
  }
}

/** https://hl7.org/fhirpath/N1/#singleton-evaluation-of-collections */
export function singleton(found: readonly unknown[]): boolean | undefined {
  if (found.length === 0) return undefined
  if (found.length > 1) throw NOT_PLAIN
  return typeof found[0] === 'boolean' ? found[0] : true
}

/** Functions without arguments that say something about a collection. */
export const TESTS: ReadonlyMap<string, (found: readonly unknown[]) => boolean> = new Map([
  ['exists', (found: readonly unknown[]) => found.length > 0],
  ['empty', (found: readonly unknown[]) => found.length === 0],
  [
    'hasValue',
    (found: readonly unknown[]) =>
      found.length === 1 && found[0] !== NO_VALUE && !isObject(found[0]),
  ],
  ['isDistinct', isDistinct],
  ['allFalse', (found: readonly unknown[]) => found.every((item) => item === false)],
])

/** An element without a value is equal to nothing. */
function isDistinct(found: readonly unknown[]): boolean {
  const values = found.filter((item) => item !== NO_VALUE)
  for (const item of values) if (typeof item !== 'string') throw NOT_PLAIN
  return new Set(values).size === values.length
}

/** True for a path that begins at a variable: it does not depend on the focus. */
export function isConstant(expression: Expression): boolean {
  if (expression.kind === 'variable') return expression.name !== 'this'
  return expression.kind === 'member' && expression.of !== undefined && isConstant(expression.of)
}

/** Answers the same list as long as the variables are the same. */
export function onceFor(evaluate: Evaluate): Evaluate {
  let known: { variables: Variables; found: readonly unknown[] } | undefined
  return (focus, variables) => {
    if (known?.variables !== variables) known = { variables, found: evaluate(focus, variables) }
    return known.found
  }
}
