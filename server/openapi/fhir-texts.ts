/** The words of the interactions of FHIR, by method and path below its base. */
import type { CallText, FieldTexts } from './call-text.ts'

const SEARCH: FieldTexts = {
  _count: 'whole: Resources of a page, 20 unless said otherwise',
  _sort: 'text: Parameters to sort by, with a minus for the newest first',
  _include: 'text: Also what the matches refer to, as Observation:subject',
  _revinclude: 'text: Also what refers to the matches, as Observation:subject',
  _total: 'text: none, estimate or accurate',
  _elements: 'text: Only these elements',
  _summary: 'text: true, text, data, count or false',
}
const HISTORY: FieldTexts = {
  _count: 'whole: Versions of a page',
  _since: 'text: Only versions since then',
}
const PATIENT = {
  resourceType: 'Patient',
  name: [{ family: 'Chalmers', given: ['Peter'] }],
  birthDate: '1974-12-25',
}
const ALL_PARAMETERS =
  'All parameters of the type may be used; docs/reference/search-parameters.md lists them.'

/** Paths are those after `/fhir/R4`. */
export const interactionTexts: Readonly<Record<string, CallText>> = {
  'GET ': {
    summary: 'Search several types',
    query: { _type: 'text: A comma list of types', ...SEARCH },
    answer: 'Bundle',
  },
  'POST ': {
    summary: 'Send a batch or transaction',
    description: 'All entries of a transaction are written, or none.',
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
    summary: 'Search several types by a form',
    body: { _type: 'text: A comma list of types', ...SEARCH },
    answer: 'Bundle',
  },
  'GET /metadata': {
    summary: 'Read the CapabilityStatement',
    description: 'With a token also what the project defines for itself.',
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
      '`If-None-Exist` makes it only where a search finds nothing. `Idempotency-Key` makes a repeat harmless.',
    body: 'Resource',
    example: PATIENT,
    answer: 'Resource',
    status: 201,
  },
  'PUT /{resourceType}': {
    summary: 'Update what a search finds',
    description: ALL_PARAMETERS,
    query: SEARCH,
    body: 'Resource',
    example: PATIENT,
    answer: 'Resource',
  },
  'PATCH /{resourceType}': {
    summary: 'Patch what a search finds',
    query: SEARCH,
    body: 'JsonPatch',
    example: [{ op: 'replace', path: '/active', value: false }],
    answer: 'Resource',
  },
  'DELETE /{resourceType}': {
    summary: 'Delete what a search finds',
    query: SEARCH,
    answer: 'OperationOutcome',
  },
  'POST /{resourceType}/_search': {
    summary: 'Search by a form',
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
    description: '410 for a deleted one.',
    answer: 'Resource',
    answers: { ...PATIENT, id: '01a2142c-0000-7000-8000-000000000000' },
  },
  'PUT /{resourceType}/{id}': {
    summary: 'Update a resource',
    description: '`If-Match` names the version that is to be replaced: 412 where another is there.',
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
    description: 'Its history stays.',
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
    description: 'Patient/1/Observation, for example.',
    query: SEARCH,
    answer: 'Bundle',
  },
  'POST /{resourceType}/{id}/{target}/_search': {
    summary: 'Search a compartment by a form',
    body: SEARCH,
    answer: 'Bundle',
  },
  'GET /job/{id}/status': {
    summary: 'Ask how far a job is',
    description: '202 while it runs, then what came of it.',
    answer: 'AsyncJob',
  },
  'DELETE /job/{id}/status': { summary: 'Cancel a job', answer: 'OperationOutcome', status: 202 },
  'GET /job/{id}/result': { summary: 'Read the result of a job', answer: 'Resource' },
}
