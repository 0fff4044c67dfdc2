/**
 * Compiles AccessPolicy resources to Rules and checks policies. An unreadable entry, or one without its parameters,
 * grants nothing.
 */
import { invalid, issue } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { asArray, isObject, parseReference, type Resource } from '../fhir/resource.ts'
import { compileTenant } from '../fhirpath/custom.ts'
import { fillText, parseCriteria, policyVariables, type Variables } from './criteria.ts'
import {
  type Grant,
  INTERACTIONS,
  type Interaction,
  plainGrant,
  READONLY,
  type Rules,
  type WriteConstraint,
} from './grant.ts'
import { checkPath } from './paths.ts'
import { compileIpRule } from './principal.ts'

/** Readable under every policy unless an entry names the type. */
const ALWAYS_READABLE = ['SearchParameter', 'StructureDefinition']

export interface Access {
  readonly policy: Resource
  readonly variables: Variables
}

interface CompiledPolicy {
  readonly rules: Rules
  /** One sentence per entry that grants nothing, for the log. */
  readonly warnings: readonly string[]
}

export function compilePolicies(items: readonly Access[]): CompiledPolicy {
  const grants: Grant[] = []
  const warnings: string[] = []
  const named = new Set<unknown>()
  for (const { policy, variables } of items) {
    for (const [index, entry] of asArray(policy.resource).entries()) {
      const source = `AccessPolicy/${policy.id} entry ${index}`
      if (isObject(entry)) named.add(entry.resourceType)
      try {
        grants.push(compileEntry(entry, policy, variables, source))
      } catch (error) {
        const reason = error instanceof Error ? error.message : 'it cannot be read'
        warnings.push(`${source} grants nothing: ${reason}`)
      }
    }
  }
  for (const type of ALWAYS_READABLE) {
    if (!named.has(type)) grants.push(plainGrant(type, READONLY, 'always'))
  }
  return { rules: { grants }, warnings }
}

function compileEntry(
  entry: unknown,
  policy: Resource,
  variables: Variables,
  source: string,
): Grant {
  if (!isObject(entry) || typeof entry.resourceType !== 'string') {
    throw new Error('resourceType is missing')
  }
  const { resourceType: type, criteria, compartment } = entry
  if (type !== '*' && !isResourceType(type)) throw new Error('resourceType is unknown')
  const text = optionalString(criteria, 'criteria')
  const inside = referenceIn(compartment, 'compartment', variables)
  return {
    source,
    type,
    interactions: new Set(readInteractions(entry)),
    criteria: [
      ...(text === undefined ? [] : parseCriteria(type, text, variables)),
      ...(inside === undefined ? [] : [{ kind: 'compartment', reference: inside } as const]),
    ],
    criteriaTexts: [
      ...(text === undefined ? [] : [fillText(text, variables)]),
      ...(inside === undefined ? [] : [inside]),
    ],
    hidden: readPaths(type, entry.hiddenFields),
    readonly: readPaths(type, entry.readonlyFields),
    constraints: optionalArray(entry.writeConstraint).map((item) =>
      compileConstraint(type, item, variables),
    ),
    account: referenceIn(policy.compartment, 'compartment', variables),
    isNamed: type !== '*',
  }
}

function readInteractions(entry: Record<string, unknown>): readonly Interaction[] {
  const { interaction } = entry
  if (interaction === undefined) return entry.readonly === true ? READONLY : INTERACTIONS
  const named = optionalArray(interaction)
  const known = INTERACTIONS.filter((item) => named.includes(item))
  if (known.length < new Set(named).size) throw new Error('interaction is unknown')
  return known
}

function optionalString(value: unknown, name: string): string | undefined {
  if (value === undefined || typeof value === 'string') return value
  throw new Error(`${name} must be a string`)
}

function referenceIn(value: unknown, name: string, variables: Variables): string | undefined {
  if (value === undefined) return undefined
  const reference = isObject(value) ? value.reference : undefined
  if (typeof reference === 'string') return fillText(reference, variables)
  throw new Error(`${name} must be a reference`)
}

function optionalArray(value: unknown): readonly unknown[] {
  if (value === undefined) return []
  if (Array.isArray(value)) return value
  throw new Error('expected a list of values')
}

function readPaths(type: string, value: unknown): readonly string[] {
  return optionalArray(value).map((path) => {
    if (typeof path !== 'string') throw new Error('element paths must be strings')
    return checkPath(type, path)
  })
}

/** Names with a meaning in FHIRPath or in the write itself. */
const ENVIRONMENT = /^(before|after|resource|rootResource|context|ucum|sct|loinc|vs-.*|ext-.*)$/

function compileConstraint(
  type: string,
  constraint: unknown,
  { values }: Variables,
): WriteConstraint {
  if (!isObject(constraint) || constraint.language !== 'text/fhirpath') {
    throw new Error('writeConstraint must be in text/fhirpath')
  }
  const { expression, name } = constraint
  if (typeof expression !== 'string') throw new Error('writeConstraint needs an expression')
  const variables: Record<string, string> = {}
  const bound = expression.replace(
    /%([A-Za-z_][A-Za-z0-9_]*)(\.id\b)?/g,
    (whole, word: string, id: string | undefined) => {
      if (ENVIRONMENT.test(word)) return whole
      const value = values.get(id === undefined ? word : `${word}.id`)
      if (value === undefined) throw new Error(`%${word}${id ?? ''} has no value`)
      const key = id === undefined ? word : `${word}_id`
      variables[key] = value
      return `%${key}`
    },
  )
  const run = compileTenant(bound, type === '*' ? undefined : type)
  return { name: typeof name === 'string' ? name : undefined, run, variables }
}

/** Trial values: the real ones are known only when a membership names the policy. One of them must fit. */
const PLACEHOLDERS = ['Patient/1', '2000-01-01', '1']

/** Errors: 400 naming the entries. */
export function checkPolicy(policy: Resource, own: OwnParameters | undefined): void {
  const issues = asArray(policy.resource).flatMap((entry, i) => {
    const problem = findProblem(entry, policy, own)
    const path = `AccessPolicy.resource[${i}]`
    return problem === undefined ? [] : [issue('error', 'invalid', problem, { expression: path })]
  })
  const addresses = asArray(policy.ipAccessRule).flatMap((rule: unknown, i) => {
    const value = isObject(rule) ? rule.value : undefined
    if (typeof value === 'string' && compileIpRule(value.trim()) !== undefined) return []
    const text = 'value must be *, an address, a block or the beginning of addresses'
    return [
      issue('error', 'invalid', text, { expression: `AccessPolicy.ipAccessRule[${i}].value` }),
    ]
  })
  if (issues.length + addresses.length > 0) throw invalid([...issues, ...addresses])
}

function findProblem(
  entry: unknown,
  policy: Resource,
  own: OwnParameters | undefined,
): string | undefined {
  if (isObject(entry) && entry.readonly === true && writes(entry.interaction)) {
    return 'readonly contradicts an interaction that writes; leave one of them out'
  }
  for (const part of splitCriteria(entry)) {
    const problem = problemWith(part, policy, own)
    if (problem !== undefined) return problem
  }
  return undefined
}

function writes(interaction: unknown): boolean {
  return asArray(interaction).some((one) => !READONLY.some((read) => read === one))
}

/** Splits criteria into parameters, because a value that fits one variable may not fit another. */
function splitCriteria(entry: unknown): readonly unknown[] {
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

const ofPatient = [
  { resourceType: 'Patient', readonly: true, criteria: 'Patient?_id=%patient.id' },
  { resourceType: 'Binary', interaction: ['read'] },
  { resourceType: '*', readonly: true, criteria: '*?_compartment=%patient' },
]

const POLICIES: Readonly<Record<string, Resource>> = {
  Patient: { resourceType: 'AccessPolicy', id: 'built-in-patient', resource: ofPatient },
  RelatedPerson: {
    resourceType: 'AccessPolicy',
    id: 'built-in-related-person',
    resource: [
      { resourceType: 'RelatedPerson', readonly: true, criteria: 'RelatedPerson?_id=%profile.id' },
      ...ofPatient,
    ],
  },
}

/** Returns the built-in access of patients and related persons to the patient's data; undefined: unrestricted. */
export function builtInAccess(projectId: string, profile: Resource): Access | undefined {
  const policy = POLICIES[profile.resourceType]
  if (policy === undefined) return undefined
  const reference = `${profile.resourceType}/${profile.id}`
  return { policy, variables: policyVariables(projectId, reference, profilePatient(profile), []) }
}

export function profilePatient(profile: Resource): string | undefined {
  if (profile.resourceType === 'Patient') return `Patient/${profile.id}`
  if (profile.resourceType !== 'RelatedPerson') return `${profile.resourceType}/${profile.id}`
  // RelatedPerson.patient is mandatory.
  const { patient } = profile as { patient?: { reference?: string } }
  return parseReference(patient?.reference)?.type === 'Patient' ? patient?.reference : undefined
}
