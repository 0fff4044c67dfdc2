/** Which tests ask the same of every row, so that one plan serves whatever is looked for. */
import type { Reach, Test } from './test.ts'

/** Undefined: it reads whatever its values lead to. */
export function reachOf(test: Test): Reach | undefined {
  if (test.kind === 'keys' || test.kind === 'date') return 'row'
  if (test.kind === 'ids') return test.isSteady ? 'beside' : undefined
  return test.reach
}

/** True when it is read by the same indexes whatever it looks for. */
export function isSteady(test: Test): boolean {
  if ((test.kind === 'ids' || test.kind === 'join') && test.isSteady === true) return true
  return reachOf(test) !== undefined
}

/** The widest scope of several tests. */
export function farthest(tests: readonly Test[]): Reach | undefined {
  const all = tests.map(reachOf)
  if (all.includes(undefined)) return undefined
  return all.includes('beside') ? 'beside' : 'row'
}
