/** Checks an AccessPolicy before it is stored; reports one issue for each entry at fault. */
import { invalid, issue } from '../errors.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import { compileEntry, entriesOf } from './compile.ts'
import { matcherOf } from './ip-rules.ts'
import type { Variables } from './variables.ts'

/** Values for variables, which are only known when a membership names the policy: one of these has to fit. */
const PLACEHOLDERS = ['Patient/1', '2000-01-01', '1']

/** Errors: 400 naming the entries. */
export function checkPolicy(policy: Resource, own: OwnParameters | undefined): void {
  const issues = entriesOf(policy).flatMap((entry, i) => {
    const problem = problemOf(entry, policy, own)
    const path = `AccessPolicy.resource[${i}]`
    return problem === undefined ? [] : [issue('error', 'invalid', problem, path)]
  })
  const rules = Array.isArray(policy.ipAccessRule) ? policy.ipAccessRule : []
  const addresses = rules.flatMap((rule: unknown, i) => {
    const value = isObject(rule) ? rule.value : undefined
    if (typeof value === 'string' && matcherOf(value.trim()) !== undefined) return []
    const text = 'value must be *, an address, a block or the beginning of addresses'
    return [issue('error', 'invalid', text, `AccessPolicy.ipAccessRule[${i}].value`)]
  })
  if (issues.length + addresses.length > 0) throw invalid([...issues, ...addresses])
}

function problemOf(
  entry: unknown,
  policy: Resource,
  own: OwnParameters | undefined,
): string | undefined {
  for (const part of partsOf(entry)) {
    const problem = problemWith(part, policy, own)
    if (problem !== undefined) return problem
  }
  return undefined
}

/** Each parameter of the criteria by itself: what fits the variable of one may not fit that of another. */
function partsOf(entry: unknown): readonly unknown[] {
  if (!isObject(entry) || typeof entry.criteria !== 'string') return [entry]
  const question = entry.criteria.indexOf('?') + 1
  const [start, query] = [entry.criteria.slice(0, question), entry.criteria.slice(question)]
  return query.split('&').map((pair) => ({ ...entry, criteria: start + pair }))
}

function problemWith(
  entry: unknown,
  policy: Resource,
  own: OwnParameters | undefined,
): string | undefined {
  let first: string | undefined
  for (const placeholder of PLACEHOLDERS) {
    const variables: Variables = { projectId: undefined, own, values: { get: () => placeholder } }
    try {
      compileEntry(entry, policy, variables, '')
      return undefined
    } catch (error) {
      first ??= error instanceof Error ? error.message : 'The entry cannot be read'
    }
  }
  return first
}
