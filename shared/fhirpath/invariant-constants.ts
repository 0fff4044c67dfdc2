/** Parts of an invariant that are the same for every item of a list. */
import type { Variables } from './invariant-logic.ts'
import type { Expression } from './parse.ts'

export type Evaluate = (focus: unknown, variables: Variables) => readonly unknown[]

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
