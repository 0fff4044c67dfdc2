/** Texts of the FHIR interactions, by method and path after `/fhir/R4`. */
import type { CallText, FieldTexts } from '../../shared/request/request.ts'

const SEARCH: FieldTexts = {
  _count: 'whole: Resources per page; default 20',
  _sort: 'text: Parameters to sort by, with a minus for the newest first',
  _include: 'text: Also resources that matches refer to, such as Observation:subject',
  _revinclude: 'text: Also resources that refer to matches, such as Observation:subject',
  _total: 'text: none, estimate or accurate',
  _elements: 'text: Only these elements',
  _summary: 'text: true, text, data, count or false',
}
const HISTORY: FieldTexts = {
  _count: 'whole: Versions per page',
  _since: 'text: Only versions since this time',
}
const PATIENT = {
  resourceType: 'Patient',
  name: [{ family: 'Chalmers', given: ['Peter'] }],
  birthDate: '1974-12-25',
}
const ALL_PARAMETERS =
  'All parameters of the type may be used; docs/reference/search-parameters.md lists them.'

export const interactionTexts: Readonly<Record<string, CallText>> = {
  'GET ': {
    summary: 'Search several types',
    query: { _type: 'text: A comma list of types', ...SEARCH },
    answer: 'Bundle',
  },
  'POST ': {
    summary: 'Send a batch or transaction',
    description: 'A transaction writes all entries or none.',
    body: 'Bundle',
    example: {
      resourceType: 'Bundle',
      type: 'transaction',
      entry: [{ request: { method: 'POST', url: 'Patient' }, resource: PATIENT }],
    },
    answer: 'Bundle',
  },
  'GET /_history': { summary: 'Read the history of the project', query: HISTORY, answer: 'Bundle' },
  'POST /_search': {
    summary: 'Search several types by POST',
    body: { _type: 'text: A comma list of types', ...SEARCH },
    answer: 'Bundle',
  },
  'GET /metadata': {
    summary: 'Read the CapabilityStatement',
    description: 'With a token it includes the definitions of the project.',
    answer: 'CapabilityStatement',
  },
  'GET /{resourceType}': {
    summary: 'Search',
    description: ALL_PARAMETERS,
    query: SEARCH,
    answer: 'Bundle',
  },
  'POST /{resourceType}': {
    summary: 'Create a resource',
    description:
      '`If-None-Exist` creates it only if a search has no match. `Idempotency-Key` makes retries safe, except for a Binary.',
    body: 'Resource',
    example: PATIENT,
    answer: 'Resource',
    status: 201,
  },
  'PUT /{resourceType}': {
    summary: 'Update the match of a search',
    description: ALL_PARAMETERS,
    body: 'Resource',
    example: PATIENT,
    answer: 'Resource',
  },
  'PATCH /{resourceType}': {
    summary: 'Patch the match of a search',
    description: ALL_PARAMETERS,
    body: 'JsonPatch',
    example: [{ op: 'replace', path: '/active', value: false }],
    answer: 'Resource',
  },
  'DELETE /{resourceType}': {
    summary: 'Delete the match of a search',
    description: ALL_PARAMETERS,
    query: { _count: 'whole: Most matches to delete; default 1' },
    answer: 'OperationOutcome',
  },
  'POST /{resourceType}/_search': {
    summary: 'Search by POST',
    description: ALL_PARAMETERS,
    body: SEARCH,
    answer: 'Bundle',
  },
  'GET /{resourceType}/_history': {
    summary: 'Read the history of a type',
    query: HISTORY,
    answer: 'Bundle',
  },
  'GET /{resourceType}/{id}': {
    summary: 'Read a resource',
    description: 'Returns 410 for a deleted resource.',
    answer: 'Resource',
    answers: { ...PATIENT, id: '01a2142c-0000-7000-8000-000000000000' },
  },
  'PUT /{resourceType}/{id}': {
    summary: 'Update a resource',
    description:
      '`If-Match` names the version to replace; returns 412 if the current version differs.',
    body: 'Resource',
    example: { ...PATIENT, id: '01a2142c-0000-7000-8000-000000000000' },
    answer: 'Resource',
  },
  'PATCH /{resourceType}/{id}': {
    summary: 'Patch a resource',
    description: 'JSON Patch, or FHIRPath Patch as Parameters.',
    body: 'JsonPatch',
    example: [{ op: 'replace', path: '/birthDate', value: '1974-12-26' }],
    answer: 'Resource',
  },
  'DELETE /{resourceType}/{id}': {
    summary: 'Delete a resource',
    description: 'The history is kept.',
    answer: 'OperationOutcome',
  },
  'GET /{resourceType}/{id}/_history': {
    summary: 'Read the history of a resource',
    query: HISTORY,
    answer: 'Bundle',
  },
  'GET /{resourceType}/{id}/_history/{versionId}': {
    summary: 'Read a version',
    answer: 'Resource',
  },
  'GET /{resourceType}/{id}/{target}': {
    summary: 'Search a compartment',
    description: 'For example `Patient/1/Observation`.',
    query: SEARCH,
    answer: 'Bundle',
  },
  'POST /{resourceType}/{id}/{target}/_search': {
    summary: 'Search a compartment by POST',
    body: SEARCH,
    answer: 'Bundle',
  },
  'GET /job/{id}/status': {
    summary: 'Read the status of a job',
    description: 'Returns 202 while it runs, then its outcome.',
    answer: 'AsyncJob',
  },
  'DELETE /job/{id}/status': { summary: 'Cancel a job', answer: 'OperationOutcome', status: 202 },
  'GET /job/{id}/result': { summary: 'Read the result of a job', answer: 'Resource' },
}
