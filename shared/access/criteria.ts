/** Parses the criteria of a policy entry after its variables are filled in. */
import { COMPARTMENTS } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { isObject, parseReference, toObjects } from '../fhir/resource.ts'
import { parseSearch } from '../search/language/search.ts'
import {
  CODE_LIST_MODIFIERS,
  type Criterion,
  isCondition,
} from '../search/language/search-request.ts'
import { escapeValue, unescapeValue } from '../search/language/values.ts'
import { REGISTRY_TYPES } from './policy.ts'

/** Parameters of every type, and so the only ones for `*`. */
const COMMON = new Set([
  '_id',
  '_compartment',
  '_tag',
  '_security',
  '_profile',
  '_project',
  '_lastUpdated',
])
/** Has these parameters and no others that matter. */
export const ANY_TYPE = 'Basic'

export function parseCriteria(
  type: string,
  text: string,
  variables: Variables,
): readonly Criterion[] {
  if (!text.startsWith(`${type}?`)) throw new Error(`criteria must start with "${type}?"`)
  const pairs = text.slice(type.length + 1).split('&')
  return pairs.flatMap((pair) => readPair(type, pair, variables))
}

/** Errors: also for a pair that restricts nothing, since it would grant the whole type. */
function readPair(type: string, pair: string, variables: Variables): readonly Criterion[] {
  const equals = pair.indexOf('=')
  if (equals < 1) throw new Error(`"${pair}" must be a search parameter with a value`)
  const name = pair.slice(0, equals)
  if (type === '*' && !COMMON.has(name.replace(/:.*/, ''))) {
    throw new Error(`criteria of * may not use ${name}`)
  }
  const query = `${name}=${fillValue(pair.slice(equals + 1), variables)}`
  const { conditions, includes } = parseSearch(type === '*' ? ANY_TYPE : type, query, {
    // Full-text search needs a stored row.
    own: variables.own && { ...variables.own, fullText: undefined },
  })
  const [criterion] = conditions
  if (criterion === undefined || includes.length > 0) {
    throw new Error(`"${name}" does not select resources`)
  }
  refuseUnasked(type, criterion)
  if (!isCondition(criterion)) return [criterion]
  const { code, values, modifier } = criterion
  if (code === '_project') {
    const ids = values.map((value) => unescapeValue(value).replace(/^Project\//, ''))
    const { projectId } = variables
    if (projectId === undefined || ids.includes(projectId)) return []
    throw new Error('_project names another Project')
  }
  if (code !== '_compartment') return [criterion]
  if (modifier !== undefined) throw new Error('_compartment has no modifiers')
  const inside = values.flatMap((value) => compartmentCriteria(unescapeValue(value)))
  return [inside.length === 1 && inside[0] ? inside[0] : { kind: 'or', criteria: inside }]
}

/** Rejects criteria that need ValueSets or have no SQL, because they would grant nothing. */
function refuseUnasked(type: string, criterion: Criterion): void {
  if (isCondition(criterion)) {
    const { code, modifier } = criterion
    if (criterion.type === 'token' && modifier !== undefined && CODE_LIST_MODIFIERS.has(modifier)) {
      throw new Error(`criteria may not use ${code}:${modifier}`)
    }
    return
  }
  switch (criterion.kind) {
    case 'chain':
    case 'has': {
      const isApart = (other: string) => REGISTRY_TYPES.has(other) !== REGISTRY_TYPES.has(type)
      if (criterion.ends.every((end) => isApart(end.type))) {
        throw new Error(`criteria cannot join ${type} and ${criterion.ends[0]?.type}`)
      }
      for (const end of criterion.ends) refuseUnasked(end.type, end.criterion)
      return
    }
    case 'and':
    case 'or':
      for (const part of criterion.criteria) refuseUnasked(type, part)
      return
    case 'not':
      refuseUnasked(type, criterion.criterion)
      return
    case 'compartment':
      return
    default:
      criterion satisfies never
  }
}

/** A bare id may belong to any compartment. */
function compartmentCriteria(value: string): readonly Criterion[] {
  const names = value.includes('/') ? [value] : COMPARTMENTS.map((kind) => `${kind}/${value}`)
  return names.map((reference) => ({ kind: 'compartment', reference }))
}

export interface Variables {
  readonly projectId: string | undefined
  readonly own?: OwnParameters | undefined
  /** By name, or `name.id`, without the percent sign. */
  readonly values: { get(name: string): string | undefined }
}

const VARIABLE = /%([A-Za-z_][A-Za-z0-9_-]*)(\.id(?![A-Za-z0-9_-]))?/g

/** `profile` and `patient` are references; a parameter named `patient` overrides the latter. */
export function policyVariables(
  projectId: string,
  profile: string,
  patient: string | undefined,
  parameters: unknown,
): Variables {
  const values = new Map<string, string>()
  const add = (name: string, text: string | undefined) => {
    if (text === undefined || text === '') return
    values.set(name, text)
    const id = parseReference(text)?.id
    if (id !== undefined) values.set(`${name}.id`, id)
    else values.delete(`${name}.id`)
  }
  add('patient', patient)
  for (const parameter of toObjects(parameters)) {
    const { name, valueReference, valueString } = parameter
    const reference = isObject(valueReference) ? valueReference.reference : undefined
    const text = reference ?? valueString
    if (typeof name === 'string' && typeof text === 'string') add(name, text)
  }
  add('profile', profile)
  return { projectId, values }
}

/** Fills the variables into the value of one search parameter. Throws when one has no value. */
function fillValue(text: string, { values }: Variables): string {
  return fill(text, values, (value) => encodeURIComponent(escapeValue(value)))
}

/** Fills the variable in a reference of a policy. Throws when it has no value. */
export function fillText(text: string, { values }: Variables): string {
  return fill(text, values, (value) => value)
}

function fill(text: string, values: Variables['values'], write: (value: string) => string): string {
  return text.replace(VARIABLE, (whole, name: string, id: string | undefined) => {
    const value = values.get(id === undefined ? name : `${name}.id`)
    if (value !== undefined) return write(value)
    // `%C3` is a percent-encoded byte of a query.
    if (/^%[0-9A-Fa-f]{2}/.test(whole)) return whole
    throw new Error(`%${name}${id ?? ''} has no value`)
  })
}
