/**
 * Conditional references to what their own bundle makes. They are resolved after everything else is done, so they
 * may mean an entry with the same criteria, or one that carries the identifier they ask for.
 * https://hl7.org/fhir/R4/http.html#trules
 */
import { randomUUIDv7 } from 'node:crypto'
import { isObject } from '../../fhir/resource.ts'
import { criteriaKey, type Matches } from '../conditional-references.ts'
import type { Plan } from './plan.ts'

/** The resources that entries create, as `Type/id`, by the criteria that find them. */
export type Made = ReadonlyMap<string, readonly string[]>

/** Gives ids to what the plans create, so that references are known beforehand. */
export function planMade(
  plans: readonly Plan[],
  matches: Matches,
): { readonly plans: readonly Plan[]; readonly made: Made } {
  const made = new Map<string, string[]>()
  if (plans.every(({ references }) => references.length === 0)) return { plans, made }
  const twins = new Set<string>()
  const named = plans.map((plan) => {
    const type = typeMade(plan, matches)
    if (type === undefined || twins.has(plan.key)) return plan
    const { key, id = randomUUIDv7() } = plan
    if (key !== '') twins.add(key)
    for (const found of new Set([key, ...identifierKeys(type, plan)])) {
      made.set(found, [...(made.get(found) ?? []), `${type}/${id}`])
    }
    return { ...plan, id }
  })
  return { plans: named, made }
}

/** Undefined for entries that make nothing, or something under an id that they name. */
function typeMade({ entry, key, condition }: Plan, matches: Matches): string | undefined {
  const { route, resource } = entry
  if (route.kind !== 'create' && route.kind !== 'conditional-update') return undefined
  if (route.kind === 'conditional-update' && resource?.id !== undefined) return undefined
  if (condition === undefined) return route.type
  const found = matches.get(key)
  const isMissing = found?.status === 'fulfilled' && found.value.versions.length === 0
  return isMissing ? route.type : undefined
}

function identifierKeys(type: string, { entry }: Plan): string[] {
  const identifier = entry.resource?.identifier
  if (!Array.isArray(identifier)) return []
  return identifier.filter(isObject).flatMap(({ system, value }) => {
    if (typeof value !== 'string') return []
    const tokens = typeof system === 'string' ? [`${system}|${value}`, value] : [`|${value}`, value]
    return tokens.map((token) => criteriaKey(type, new URLSearchParams({ identifier: token })))
  })
}
