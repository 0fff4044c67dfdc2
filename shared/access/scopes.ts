/**
 * SMART scopes narrow the rights of a membership, they never widen them.
 * https://hl7.org/fhir/smart-app-launch/scopes-and-launch-context.html
 */

import { isResourceType } from '../fhir/definitions.ts'
import { parseReference, type Reference, toObjects } from '../fhir/resource.ts'
import { isCondition, listLeaves, testedCodes } from '../search/language/search-request.ts'
import { ANY_TYPE, parseCriteria } from './criteria.ts'
import {
  AREA_WORDS,
  AREAS,
  type Area,
  type Grant,
  INTERACTIONS,
  type Interaction,
  plainGrant,
  type Rules,
} from './grant.ts'
import { hidesAny } from './hidden.ts'
import { type Principal, profileReference } from './principal.ts'

const PLAIN_SCOPES = new Set([
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
const OWN = new Set(Object.values(AREA_WORDS))
const SMART =
  /^(patient|user|system)\/([A-Z][A-Za-z]+|\*)\.(read|write|\*|(?=[cruds])c?r?u?d?s?)(\?\S+)?$/
/** A misspelt word was meant to narrow, so it is kept and grants nothing. */
const NEARLY_SMART = /^(patient|user|system)\//i
const NOTHING: SmartScope = {
  context: 'user',
  type: '',
  interactions: new Set(),
  criteria: undefined,
}
const LETTERS: Readonly<Record<string, readonly Interaction[]>> = {
  c: ['create'],
  r: ['read', 'vread', 'history'],
  u: ['update'],
  d: ['delete'],
  s: ['search', 'history'],
}
const VERSION_1: Readonly<Record<string, string>> = { read: 'rs', write: 'cud', '*': 'cruds' }

export interface SmartScope {
  readonly context: 'patient' | 'user' | 'system'
  /** A resource type or `*`; empty when unreadable. */
  readonly type: string
  readonly interactions: ReadonlySet<Interaction>
  readonly criteria: string | undefined
}

export function smartScopes(scope: string): readonly SmartScope[] {
  return scope.split(' ').flatMap((word) => {
    const match = SMART.exec(word)
    if (match === null) return NEARLY_SMART.test(word) ? [NOTHING] : []
    const [, context, type = '', access = '', criteria] = match
    const letters = [...(VERSION_1[access] ?? access)]
    return [
      {
        context: context as SmartScope['context'],
        type,
        interactions: new Set(letters.flatMap((letter) => LETTERS[letter] ?? [])),
        criteria: criteria?.slice(1),
      },
    ]
  })
}

/** Areas of a scope: all without SMART words, since it narrows nothing; otherwise those it names. */
function scopeAreas(scope: string): readonly Area[] {
  if (smartScopes(scope).length === 0) return AREAS
  const words = new Set(scope.split(' '))
  return AREAS.filter((area) => words.has(AREA_WORDS[area]))
}

/**
 * True when `asked` grants no more than `granted`. Unknown words do not count; dropping the SMART words would widen a
 * scope.
 */
export function isWithin(asked: string, granted: string): boolean {
  if (smartScopes(granted).length > 0 && smartScopes(asked).length === 0) return false
  const words = new Set(granted.split(' '))
  return grantedScope(asked)
    .split(' ')
    .every((word) => word === '' || words.has(word))
}

/** True for a requested word, or a SMART word that grants no more than a requested one. */
export function isWordWithin(word: string, asked: string): boolean {
  if (asked.split(' ').includes(word)) return true
  const [own] = smartScopes(word)
  if (own === undefined || own.type === '' || own.interactions.size === 0) return false
  return smartScopes(asked).some(
    ({ context, type, interactions, criteria }) =>
      context === own.context &&
      (type === '*' || type === own.type) &&
      own.interactions.isSubsetOf(interactions) &&
      (criteria === undefined || criteria === own.criteria),
  )
}

export function grantedScope(asked: string): string {
  const words = asked.split(/\s+/).filter(isKnown)
  return [...new Set(words)].join(' ')
}

function isKnown(word: string): boolean {
  return PLAIN_SCOPES.has(word) || OWN.has(word) || NEARLY_SMART.test(word)
}

/** Applies a scope to a Principal: rules, areas and admin rights. Never widens. */
export function narrowed<P extends Principal>(principal: P, scope: string, patient?: string): P {
  const areas = scopeAreas(scope).filter((area) => principal.areas.includes(area))
  const mayAdminister = areas.includes('administration')
  return {
    ...principal,
    scope,
    areas,
    patient,
    rules: narrowRules(principal.rules, scope, patient, principal.profile),
    isSuperAdmin: principal.isSuperAdmin && mayAdminister,
    isProjectAdmin: principal.isProjectAdmin && mayAdminister,
  }
}

/**
 * Without SMART words the rules stay. `patient`: id of the Patient in context, without which patient scopes grant
 * nothing.
 */
export function narrowRules(
  rules: Rules | undefined,
  scope: string,
  patient?: string,
  profile?: string,
): Rules | undefined {
  const words = smartScopes(scope)
  if (words.length === 0) return rules
  const scoped = [
    ...words.flatMap((word) => scopeGrant(word, patient) ?? []),
    ...ownProfile(scope, profile),
  ]
  const narrowed = rules === undefined ? scoped : intersection(rules.grants, scoped)
  return {
    grants: narrowed,
    scoped: rules?.scoped === undefined ? scoped : intersection(rules.scoped, scoped),
  }
}

/**
 * The order, fields and constraints are those of `grants`. Entries of a type come first: a scope turns an entry of `*`
 * into one of the scope's type, which must not precede those.
 */
function intersection(grants: readonly Grant[], others: readonly Grant[]): readonly Grant[] {
  const ofType = grants.filter(({ type }) => type !== '*')
  const ofAll = grants.filter(({ type }) => type === '*')
  const usable = others.filter((other) => !grants.some((grant) => testsHidden(grant, other)))
  return [...ofType, ...ofAll].flatMap((grant) =>
    usable.flatMap((other) => both(grant, other) ?? []),
  )
}

/** The caller writes the criteria of a scope: as in a search, they must not test hidden elements. */
function testsHidden({ type, hidden }: Grant, other: Grant): boolean {
  if (type !== other.type && type !== '*' && other.type !== '*') return false
  const [named = ANY_TYPE] = [type, other.type].filter((one) => one !== '*')
  const conditions = other.criteria.flatMap(listLeaves).filter(isCondition)
  const codes = conditions.flatMap((one) => testedCodes(named, one))
  return hidesAny({ hidden }, named, codes, undefined)
}

function both(a: Grant, b: Grant): Grant | undefined {
  if (a.type !== b.type && a.type !== '*' && b.type !== '*') return undefined
  const interactions = a.interactions.intersection(b.interactions)
  if (interactions.size === 0) return undefined
  return {
    source: `${a.source}, ${b.source}`,
    type: a.type === '*' ? b.type : a.type,
    interactions,
    criteria: [...a.criteria, ...b.criteria],
    criteriaTexts: [...a.criteriaTexts, ...b.criteriaTexts],
    hidden: [...a.hidden, ...b.hidden],
    readonly: [...a.readonly, ...b.readonly],
    constraints: [...a.constraints, ...b.constraints],
    account: a.account,
    isNamed: a.isNamed,
  }
}

/** "openid fhirUser: permission to retrieve information about the current logged-in user." */
function ownProfile(scope: string, profile: string | undefined): readonly Grant[] {
  const words = new Set(scope.split(' '))
  const own = parseReference(profile)
  if (own === undefined || !words.has('openid') || !words.has('fhirUser')) return []
  const text = `${own.type}?_id=${own.id}`
  const criteria = parseCriteria(own.type, text, { projectId: undefined, values: new Map() })
  return [
    {
      ...plainGrant(own.type, ['read', 'vread'], 'scope of fhirUser'),
      criteria,
      criteriaTexts: [text],
    },
  ]
}

function scopeGrant(word: SmartScope, patient: string | undefined): Grant | undefined {
  const { context, type, interactions, criteria } = word
  if (type !== '*' && !isResourceType(type)) return undefined
  if (context === 'patient' && patient === undefined) return undefined
  const allowed = INTERACTIONS.filter((item) => interactions.has(item))
  const plain = plainGrant(type, allowed, `scope of ${context}/${type}`)
  const inside =
    context === 'patient' ? [{ kind: 'compartment', reference: `Patient/${patient}` } as const] : []
  if (criteria === undefined) return { ...plain, criteria: inside }
  const text = `${type}?${criteria}`
  try {
    const named = parseCriteria(type, text, { projectId: undefined, values: new Map() })
    // Joins test resources that the caller may not read; a compartment tests every reference of a type.
    if (named.flatMap(listLeaves).some((leaf) => !isCondition(leaf))) return undefined
    return { ...plain, criteria: [...named, ...inside], criteriaTexts: [text] }
  } catch {
    // Unreadable criteria might have narrowed it.
    return undefined
  }
}

/**
 * The scope of a request, kept in `meta.author` of a Subscription or on an AsyncJob, which outlive it. Only the
 * service writes either.
 */
type Scope = Pick<Principal, 'scope' | 'patient'>

const SCOPE = 'https://medplum.com/fhir/StructureDefinition/author-scope'
const PATIENT = 'https://medplum.com/fhir/StructureDefinition/author-patient'
const PROJECT = 'https://medplum.com/fhir/StructureDefinition/author-project'

export function scopeExtension(principal: Principal): { readonly extension?: readonly object[] } {
  if (principal.rules?.scoped === undefined) return {}
  const { scope, patient } = principal
  const context = patient === undefined ? [] : [{ url: PATIENT, valueString: patient }]
  return { extension: [{ url: SCOPE, valueString: scope }, ...context] }
}

/** Names the Project of a super admin, since another Project may have a profile with the same id. */
export function scopedAuthor(principal: Principal): Reference {
  const { isSuperAdmin, project } = principal
  const home = isSuperAdmin ? [{ url: PROJECT, valueString: project.id }] : []
  const extension = [...(scopeExtension(principal).extension ?? []), ...home]
  return { ...profileReference(principal), ...(extension.length === 0 ? {} : { extension }) }
}

interface Extended {
  readonly extension?: unknown
}

export function scopeIn(element: Extended | undefined): Scope | undefined {
  const scope = extensionText(element, SCOPE)
  return scope === undefined ? undefined : { scope, patient: extensionText(element, PATIENT) }
}

/** Returns the Project of an author from another Project than that of the resource. */
export function authorProject(author: Extended | undefined): string | undefined {
  return extensionText(author, PROJECT)
}

function extensionText(element: Extended | undefined, url: string): string | undefined {
  const value = toObjects(element?.extension).find((item) => item.url === url)?.valueString
  return typeof value === 'string' ? value : undefined
}
