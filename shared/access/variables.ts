/** `%name` in a policy: what a membership says it stands for. */

import type { OwnParameters } from '../fhir/definitions-data.ts'
import { isObject, parseReference } from '../fhir/resource.ts'
import { escapeValue } from '../query/values.ts'

export interface Variables {
  /** Id of the Project, for `_project`; undefined: any. */
  readonly projectId: string | undefined
  /** Search parameters of that Project's own, which criteria may name. */
  readonly own?: OwnParameters | undefined
  /** By name, or `name.id`, without the percent sign. */
  readonly values: { get(name: string): string | undefined }
}

const VARIABLE = /%([A-Za-z_][A-Za-z0-9_-]*)(\.id(?![A-Za-z0-9_-]))?/g

/** `profile` and `patient` are references; a parameter named `patient` is taken in place of the latter. */
export function variablesOf(
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
  for (const parameter of Array.isArray(parameters) ? parameters.filter(isObject) : []) {
    const { name, valueReference, valueString } = parameter
    const reference = isObject(valueReference) ? valueReference.reference : undefined
    const text = reference ?? valueString
    if (typeof name === 'string' && typeof text === 'string') add(name, text)
  }
  add('profile', profile)
  return { projectId, values }
}

/** The value of one search parameter with its variables filled in. Throws for one that has no value. */
export function fillValue(text: string, { values }: Variables): string {
  return fill(text, values, (value) => encodeURIComponent(escapeValue(value)))
}

/** A reference of a policy that may be a variable. Throws for one that has no value. */
export function fillText(text: string, { values }: Variables): string {
  return fill(text, values, (value) => value)
}

function fill(text: string, values: Variables['values'], write: (value: string) => string): string {
  return text.replace(VARIABLE, (whole, name: string, id: string | undefined) => {
    const value = values.get(id === undefined ? name : `${name}.id`)
    if (value !== undefined) return write(value)
    // `%C3` is a byte in the percent-encoding of a query.
    if (/^%[0-9A-Fa-f]{2}/.test(whole)) return whole
    throw new Error(`%${name}${id ?? ''} has no value`)
  })
}
