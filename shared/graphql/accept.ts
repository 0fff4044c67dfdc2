/** Which of the three forms of an answer a caller wants. */
import { notAcceptable } from '../errors.ts'

/** `fhir`: failures before execution are OperationOutcomes, as FHIR clients expect. */
export type Form = 'graphql' | 'json' | 'fhir'

/** Errors: 406. */
export function formOf(accept: string | undefined): Form {
  if (accept === undefined || accept.trim() === '') return 'fhir'
  const ranges = accept
    .toLowerCase()
    .split(',')
    .filter((range) => !/;\s*q=0(\.0*)?\s*($|;)/.test(range))
    .map((range) => (range.split(';')[0] ?? '').trim())
  if (ranges.includes('application/graphql-response+json')) return 'graphql'
  if (ranges.includes('application/fhir+json')) return 'fhir'
  if (ranges.includes('application/json')) return 'json'
  if (ranges.some((range) => ['*/*', 'application/*', 'text/json'].includes(range))) return 'fhir'
  throw notAcceptable('Only JSON is available: application/json, application/graphql-response+json')
}
