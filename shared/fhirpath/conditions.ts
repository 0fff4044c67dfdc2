/** Conditions and computed values of search expressions, as closures. */
import { truth, values } from './closures.ts'
import type { Variables } from './members.ts'
import type { Expression } from './parse.ts'
import { NOT_PLAIN } from './values.ts'

/** True for an element of `type` that fulfils a condition of a search expression. Throws as `compileValues`. */
export function compileCondition(
  expression: Expression,
  type: string,
): (focus: unknown) => boolean {
  const isTrue = truth(expression, { ...SEARCH, types: [type], isStart: false })
  return (focus) => {
    try {
      return isTrue(focus, NO_VARIABLES) === true
    } catch (error) {
      if (error === NOT_PLAIN) return false
      throw error
    }
  }
}

const SEARCH = { isTenants: true, isInner: true, isSearch: true }

/**
 * The values that a part of a search expression has for an element of `type`; none where it is not certain. Throws
 * NOT_PLAIN for what closures cannot do, UnknownElement for a name that the type has not.
 */
export function compileValues(
  expression: Expression,
  type: string,
): (focus: unknown) => readonly unknown[] {
  const { evaluate } = values(expression, { ...SEARCH, types: [type], isStart: true })
  return (focus) => {
    try {
      return evaluate(focus, NO_VARIABLES)
    } catch (error) {
      if (error === NOT_PLAIN) return []
      throw error
    }
  }
}

const NO_VARIABLES: Variables = { context: undefined, resource: undefined, rootResource: undefined }
