/** The output of an operation. https://hl7.org/fhir/R4/operations.html#response */

import { readPreferences } from './negotiate.ts'
import type { OperationCall } from './operation.ts'
import { jsonReply } from './reply.ts'
import type { FhirReply, Interaction } from './request.ts'

/** `[name, value member, value]`; entries without a value are left out. */
export type Output = readonly [name: string, member: string, value: unknown]

export function parametersReply(outputs: readonly Output[]): FhirReply {
  const all = outputs.flatMap(parameter)
  // Neither lists nor objects may be empty: https://hl7.org/fhir/R4/json.html
  const body = all.length === 0 ? {} : { parameter: all }
  return jsonReply(200, { resourceType: 'Parameters', ...body })
}

/** One element of `Parameters.parameter`, or none for an undefined value. */
export function parameter([name, member, value]: Output): object[] {
  return value === undefined ? [] : [{ name, [member]: value }]
}

/** The same request as an interaction, for operations that answer with resources. Errors: 406. */
export function interactionOf({ services, principal, request }: OperationCall): Interaction {
  return { services, principal, request, preferences: readPreferences(request) }
}
