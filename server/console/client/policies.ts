/** The draft of a policy: its JSON text, its entries, and criteria as rows of a form. */
import { badRequest, isObject, OperationOutcomeError } from '@medplum/core'
import type { AccessPolicy, AccessPolicyResource } from '@medplum/fhirtypes'
import { fill, texts } from '../texts/texts.ts'

const words = texts.policies

export interface Condition {
  readonly parameter: string
  readonly value: string
}

export function policyText(policy: AccessPolicy): string {
  return JSON.stringify(policy, null, 2)
}

/** Errors: text that is not a JSON object, or whose `resource` is not a list of objects. */
export function parsePolicy(text: string): AccessPolicy {
  let policy: unknown
  try {
    policy = JSON.parse(text)
  } catch (error) {
    const problem = error instanceof Error ? error.message : ''
    throw new OperationOutcomeError(badRequest(fill(words.invalid, { problem })))
  }
  const entries = isObject(policy) ? (policy.resource ?? []) : undefined
  if (!Array.isArray(entries) || !entries.every(isObject)) {
    throw new OperationOutcomeError(badRequest(words.noPolicy))
  }
  // The service checks the elements.
  return policy as unknown as AccessPolicy
}

/** Errors: as `parsePolicy`, and a missing name. */
export function completePolicy(text: string): AccessPolicy {
  const policy = parsePolicy(text)
  if (typeof policy.name !== 'string' || policy.name.trim() === '') {
    throw new OperationOutcomeError(badRequest(words.nameMissing, 'AccessPolicy.name'))
  }
  return policy
}

/** The characters that have a meaning in a query; the service decodes them. Others stay as they are written. */
const ESCAPES = [
  ['&', '%26'],
  ['#', '%23'],
  ['+', '%2B'],
  [' ', '%20'],
] as const

export function splitCriteria(criteria = ''): readonly Condition[] {
  const query = criteria.slice(criteria.indexOf('?') + 1)
  if (query === '' || !criteria.includes('?')) return []
  return query.split('&').map((pair) => {
    const [parameter = '', value = ''] = pair.split(/=(.*)/s)
    const plain = ESCAPES.reduce((text, [sign, code]) => text.replaceAll(code, sign), value)
    return { parameter, value: plain }
  })
}

/** Returns undefined without conditions. */
export function joinCriteria(type: string, conditions: readonly Condition[]): string | undefined {
  if (conditions.length === 0) return undefined
  const pairs = conditions.map(({ parameter, value }) => {
    const escaped = ESCAPES.reduce((text, [sign, code]) => text.replaceAll(sign, code), value)
    return `${parameter}=${escaped}`
  })
  return `${type}?${pairs.join('&')}`
}

/** Sets elements of an entry; undefined and empty lists remove them. */
export function withElements(
  entry: AccessPolicyResource,
  change: { readonly [N in keyof AccessPolicyResource]?: AccessPolicyResource[N] | undefined },
): AccessPolicyResource {
  const given = Object.entries({ ...entry, ...change }).filter(
    ([, value]) => value !== undefined && !(Array.isArray(value) && value.length === 0),
  )
  return { resourceType: entry.resourceType, ...Object.fromEntries(given) }
}

/** A new type has other elements and parameters. */
export function withType(entry: AccessPolicyResource, resourceType: string): AccessPolicyResource {
  const none = { criteria: undefined, hiddenFields: undefined, readonlyFields: undefined }
  return withElements(entry, { ...none, resourceType })
}

const BUILT_IN = ['profile', 'patient']
const VARIABLE = /%([A-Za-z_][A-Za-z0-9_-]*)/g

/** Returns the names of the parameters that members give to the policy, in order. */
export function policyParameters({ resource = [], compartment }: AccessPolicy): readonly string[] {
  const used = [
    compartment?.reference,
    ...resource.flatMap(({ criteria, compartment: inside, writeConstraint = [] }) => [
      criteria,
      inside?.reference,
      ...writeConstraint.map(({ expression }) => expression),
    ]),
  ]
  const names = used.flatMap((text = '') =>
    [...text.matchAll(VARIABLE)].map(([, name = '']) => name),
  )
  // `%2C` is a byte, and so is `%C3`.
  const own = names.filter((name) => !BUILT_IN.includes(name) && !/^[0-9A-F]{2}$/.test(name))
  return [...new Set(own.filter((name) => !ENVIRONMENT.test(name)))]
}

/** Variables that FHIRPath sets in write constraints. */
const ENVIRONMENT = /^(before|after|resource|rootResource|context|ucum|sct|loinc|vs-.*|ext-.*)$/

export interface ParameterUse {
  readonly type: string
  readonly parameter: string
}

/** Returns the type and search parameter whose value a parameter of the policy is; undefined if it is in no criteria. */
export function parameterUse(
  { resource = [] }: AccessPolicy,
  name: string,
): ParameterUse | undefined {
  for (const { resourceType = '', criteria } of resource) {
    for (const { parameter, value } of splitCriteria(criteria)) {
      const names = [...value.matchAll(VARIABLE)].map(([, one]) => one)
      if (names.includes(name)) return searchedParameter(resourceType, parameter)
    }
  }
  return undefined
}

/** `subject:Patient.organization` searches Patient by organization, `_has:A:b:c` searches A by c. */
function searchedParameter(type: string, chain: string): ParameterUse | undefined {
  const steps = chain.split('.')
  const last = steps.pop() ?? ''
  if (last.startsWith('_has:')) {
    const [, other = '', , parameter = ''] = last.split(':')
    return { type: other, parameter }
  }
  const owner = steps.length === 0 ? type : steps.at(-1)?.split(':')[1]
  return owner === undefined ? undefined : { type: owner, parameter: last.replace(/:.*/, '') }
}
