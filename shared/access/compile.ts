/**
 * AccessPolicy resources → Rules. Grants only: entries add up. An entry that this version cannot
 * judge (criteria, compartment, field rules, write constraints) grants nothing.
 */
import { isObject, type Resource } from '../fhir/resource.ts'
import { type Interaction, REGISTRY_TYPES, type Rules } from './policy.ts'

const ALL: readonly Interaction[] = [
  'create',
  'read',
  'vread',
  'update',
  'delete',
  'search',
  'history',
]
const READONLY: readonly Interaction[] = ['read', 'vread', 'history', 'search']
/** Readable under every policy, unless it has entries for them. */
const ALWAYS_READABLE = ['SearchParameter', 'StructureDefinition']
const NOT_JUDGED = [
  'criteria',
  'compartment',
  'hiddenFields',
  'readonlyFields',
  'writeConstraint',
] as const

export interface CompiledPolicy {
  readonly rules: Rules
  /** One sentence an entry that grants nothing; for the log. */
  readonly warnings: readonly string[]
}

export function compilePolicies(policies: readonly Resource[]): CompiledPolicy {
  const granted = new Map<string, Set<Interaction>>()
  const warnings: string[] = []
  const named = new Set<unknown>()
  for (const policy of policies) {
    const entries = Array.isArray(policy.resource) ? policy.resource : []
    for (const [index, entry] of entries.entries()) {
      if (isObject(entry)) named.add(entry.resourceType)
      const problem = addEntry(granted, entry)
      if (problem !== undefined) {
        warnings.push(`AccessPolicy/${policy.id} entry ${index} grants nothing: ${problem}`)
      }
    }
  }
  for (const type of ALWAYS_READABLE) {
    if (!named.has(type)) granted.set(type, new Set(READONLY))
  }
  addWildcard(granted)
  return { rules: granted, warnings }
}

/** Adds what the entry grants; answers why it grants nothing. */
function addEntry(granted: Map<string, Set<Interaction>>, entry: unknown): string | undefined {
  if (!isObject(entry) || typeof entry.resourceType !== 'string') return 'it names no resourceType'
  const unjudged = NOT_JUDGED.find((name) => hasContent(entry[name]))
  if (unjudged !== undefined) return `${unjudged} is not supported`
  const interactions = interactionsOf(entry)
  if (interactions === undefined) return 'it names an unknown interaction'
  const set = granted.get(entry.resourceType) ?? new Set()
  for (const interaction of interactions) set.add(interaction)
  granted.set(entry.resourceType, set)
  return undefined
}

function hasContent(value: unknown): boolean {
  return Array.isArray(value) ? value.length > 0 : value !== undefined
}

function interactionsOf(entry: Record<string, unknown>): readonly Interaction[] | undefined {
  const { interaction } = entry
  if (interaction === undefined) return entry.readonly === true ? READONLY : ALL
  if (!Array.isArray(interaction)) return undefined
  const known = ALL.filter((item) => interaction.includes(item))
  return known.length === new Set(interaction).size ? known : undefined
}

/** An entry for `*` is an alternative to the one for the type; it never covers the registry. */
function addWildcard(granted: Map<string, Set<Interaction>>): void {
  const everywhere = granted.get('*')
  if (everywhere === undefined) return
  for (const [type, set] of granted) {
    if (REGISTRY_TYPES.has(type)) continue
    for (const interaction of everywhere) set.add(interaction)
  }
}
