/** Replies as values. */
import type { HttpError } from '../errors.ts'
import type { OperationOutcome } from '../fhir/outcome.ts'
import type { FhirReply } from './handle.ts'

export const FHIR_JSON = 'application/fhir+json; charset=utf-8'

export function jsonReply(
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return {
    status,
    headers: { 'Content-Type': FHIR_JSON, ...headers },
    body: JSON.stringify(body),
  }
}

export function outcomeReply(
  status: number,
  outcome: OperationOutcome,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return jsonReply(status, outcome, headers)
}

export function failureReply(error: HttpError): FhirReply {
  return jsonReply(error.status, error.outcome, error.headers)
}
