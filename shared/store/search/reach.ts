/** Which tests ask the same of every row, so that one plan serves whatever is looked for. */
import type { Test } from './row-test.ts'

/** How far a test looks: at the row itself, or at rows beside it, each found by one key or id that the row holds. */
export type Reach = 'row' | 'beside'

/** Undefined: it reads whatever its values lead to. */
export function reachOf(test: Test): Reach | undefined {
  if (test.kind === 'keys' || test.kind === 'date') return 'row'
  if (test.kind === 'ids') return test.isSteady ? 'beside' : undefined
  return test.reach
}

/** Of tests together. */
export function farthest(tests: readonly Test[]): Reach | undefined {
  const all = tests.map(reachOf)
  if (all.includes(undefined)) return undefined
  return all.includes('beside') ? 'beside' : 'row'
}
