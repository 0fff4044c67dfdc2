/**
 * SMART scopes narrow what a membership may do, they never widen it.
 * https://hl7.org/fhir/smart-app-launch/scopes-and-launch-context.html
 */
import type { Interaction, Rules } from './policy.ts'

const PLAIN = new Set([
  'openid',
  'profile',
  'email',
  'phone',
  'address',
  'fhirUser',
  'launch',
  'launch/patient',
  'launch/encounter',
  'offline',
  'offline_access',
  'online_access',
])
const SMART =
  /^(patient|user|system)\/([A-Z][A-Za-z]+|\*)\.(read|write|\*|(?=[cruds])c?r?u?d?s?)(\?\S+)?$/
const LETTERS: Readonly<Record<string, readonly Interaction[]>> = {
  c: ['create'],
  r: ['read', 'vread', 'history'],
  u: ['update'],
  d: ['delete'],
  s: ['search', 'history'],
}
const VERSION_1: Readonly<Record<string, string>> = { read: 'rs', write: 'cud', '*': 'cruds' }

/** One SMART word of a scope, read. */
export interface SmartScope {
  readonly context: 'patient' | 'user' | 'system'
  /** A resource type or `*`. */
  readonly type: string
  readonly interactions: ReadonlySet<Interaction>
  /** Search that narrows the word further, without its question mark. */
  readonly criteria: string | undefined
}

/** Empty: the scope narrows nothing. */
export function smartScopes(scope: string): readonly SmartScope[] {
  return scope.split(' ').flatMap((word) => {
    const match = SMART.exec(word)
    if (match === null) return []
    const [, context, type = '', access = '', criteria] = match
    const letters = [...(VERSION_1[access] ?? access)]
    return [
      {
        // The pattern allows these three alone.
        context: context as SmartScope['context'],
        type,
        interactions: new Set(letters.flatMap((letter) => LETTERS[letter] ?? [])),
        criteria: criteria?.slice(1),
      },
    ]
  })
}

/** True when no word of `asked` is missing in `granted`; words we do not know do not count. */
export function isWithin(asked: string, granted: string): boolean {
  const words = new Set(granted.split(' '))
  return grantedScope(asked)
    .split(' ')
    .every((word) => word === '' || words.has(word))
}

/** Keeps the words we know, in their order; unknown ones are no error. */
export function grantedScope(asked: string): string {
  const words = asked.split(/\s+/).filter((word) => PLAIN.has(word) || SMART.test(word))
  return [...new Set(words)].join(' ')
}

/** `rules` undefined is unrestricted; a scope without SMART words leaves them as they are. */
export function narrowRules(rules: Rules | undefined, scope: string): Rules | undefined {
  const words = smartScopes(scope)
  return words.length === 0 ? rules : intersection(rules, scopeRules(words))
}

/** Patient context and criteria cannot be judged in this version, so such a scope grants nothing. */
function scopeRules(words: readonly SmartScope[]): Map<string, Set<Interaction>> {
  const granted = new Map<string, Set<Interaction>>()
  for (const { context, type, interactions, criteria } of words) {
    if (context === 'patient' || criteria !== undefined) continue
    const set = granted.get(type) ?? new Set()
    for (const interaction of interactions) set.add(interaction)
    granted.set(type, set)
  }
  return granted
}

function intersection(rules: Rules | undefined, scoped: Map<string, Set<Interaction>>): Rules {
  const types = new Set([...(rules?.keys() ?? []), ...scoped.keys()])
  const result = new Map<string, ReadonlySet<Interaction>>()
  for (const type of types) {
    const byScope = new Set([...(scoped.get(type) ?? []), ...(scoped.get('*') ?? [])])
    const byRules = rules?.get(type) ?? rules?.get('*') ?? new Set<Interaction>()
    result.set(type, rules === undefined ? byScope : byScope.intersection(byRules))
  }
  return result
}
