/**
 * Links between the entries of one bundle: `urn:uuid:…` and `urn:oid:…`, wherever they stand in a
 * string, and absolute addresses of entries that get a new id.
 * https://hl7.org/fhir/R4/http.html#trules
 */

import { randomUUIDv7 } from 'node:crypto'
import { mapStrings } from '../../fhir/json.ts'
import { isObject } from '../../fhir/resource.ts'
import { criteriaKey, type Matches } from '../conditional-references.ts'
import type { EntryPlan } from './entries.ts'

/** fullUrl of an entry → `Type/id` it stands for. */
export type Identities = Map<string, string>

/** The resource or patch with every link replaced; the same value when there is none. */
export function rewrite<T>(content: T, identities: Identities): T {
  if (identities.size === 0) return content
  return mapStrings(content, (text, name) => rewriteText(text, identities, name))
}

const URN =
  /urn(?::|%3A)uuid(?::|%3A)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|urn(?::|%3A)oid(?::|%3A)[0-2](?:\.\d+)+/gi

function rewriteText(text: string, identities: Identities, name: string): string {
  if (name === 'reference') {
    const target = identities.get(text)
    if (target !== undefined) return target
  }
  if (!/urn(?::|%3A)/i.test(text)) return text
  return text.replace(URN, (urn) => identities.get(urnKey(urn)) ?? urn)
}

/** One spelling of a urn: percent signs decoded, hexadecimal digits in lower case. */
export function urnKey(urn: string): string {
  return urn.replaceAll(/%3A/gi, ':').toLowerCase()
}

/*
 * Conditional references to what their own bundle makes. They are resolved after everything else is done, so they
 * may mean an entry with the same criteria, or one that carries the identifier they ask for.
 * https://hl7.org/fhir/R4/http.html#trules
 */

/** The resources that entries create, as `Type/id`, by the criteria that find them. */
type Made = ReadonlyMap<string, readonly string[]>

/** Gives ids to what the plans create, so that references are known beforehand. */
export function planMade(
  plans: readonly EntryPlan[],
  matches: Matches,
): { readonly plans: readonly EntryPlan[]; readonly made: Made } {
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
function typeMade({ entry, key, condition }: EntryPlan, matches: Matches): string | undefined {
  const { route, resource } = entry
  if (route.kind !== 'create' && route.kind !== 'conditional-update') return undefined
  if (route.kind === 'conditional-update' && resource?.id !== undefined) return undefined
  if (condition === undefined) return route.type
  const found = matches.get(key)
  const isMissing = found?.status === 'fulfilled' && found.value.versions.length === 0
  return isMissing ? route.type : undefined
}

function identifierKeys(type: string, { entry }: EntryPlan): string[] {
  const identifier = entry.resource?.identifier
  if (!Array.isArray(identifier)) return []
  return identifier.filter(isObject).flatMap(({ system, value }) => {
    if (typeof value !== 'string') return []
    const tokens = typeof system === 'string' ? [`${system}|${value}`, value] : [`|${value}`, value]
    return tokens.map((token) => criteriaKey(type, new URLSearchParams({ identifier: token })))
  })
}
