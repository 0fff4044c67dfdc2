/** Reads a GraphQL request before graphql-http, and negotiates the response form. */
import type { OperationDefinitionNode } from 'graphql'
import { badRequest, HttpError, notAcceptable } from '../core/errors.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject } from '../fhir/resource.ts'
import { acceptedRanges, wantsStrict } from '../request/negotiate.ts'
import { textReply } from '../request/reply.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'

/** `fhir`: failures before execution are OperationOutcomes. */
export type Form = 'graphql' | 'json' | 'fhir'

export const TYPES: Readonly<Record<Form, string>> = {
  graphql: 'application/graphql-response+json; charset=utf-8',
  json: 'application/json; charset=utf-8',
  fhir: 'application/json; charset=utf-8',
}

/** Errors: 406. */
export function negotiateForm(accept: string | undefined): Form {
  if (accept === undefined || accept.trim() === '') return 'fhir'
  const ranges = acceptedRanges(accept)
  if (ranges.includes('application/graphql-response+json')) return 'graphql'
  if (ranges.includes('application/fhir+json')) return 'fhir'
  if (ranges.includes('application/json')) return 'json'
  if (ranges.some((range) => ['*/*', 'application/*', 'text/json'].includes(range))) return 'fhir'
  throw notAcceptable('Only JSON is available: application/json, application/graphql-response+json')
}

const JSON_TYPE = /^application\/([a-z0-9.+-]+\+)?json\s*(;\s*charset="?utf-?8"?\s*)?$/i

/** Returns graphql-http's name of the media type; it answers 415 for unknown ones. */
export function contentType({ headers }: FhirRequest): string {
  const type = headers['content-type'] ?? ''
  const isKnown = JSON_TYPE.test(type) || isQueryText(type)
  return isKnown ? 'application/json; charset=utf-8' : type
}

function isQueryText(type: string): boolean {
  return /^application\/graphql\s*(;|$)/i.test(type)
}

/** Returns the body of a POST; null if graphql-http needs none; 400 for invalid JSON, in a GET too. */
export function readRequest(request: FhirRequest): Record<string, unknown> | null | HttpError {
  const { method, query, body, headers } = request
  const type = headers['content-type'] ?? ''
  const isJson = method === 'POST' && JSON_TYPE.test(type)
  if (method === 'POST' && isQueryText(type)) return { query: String(body ?? '') }
  const text = isJson ? (body ?? '') : query.get('variables')
  if (text === null) return null
  try {
    const value = parseBody(text)
    if (isJson && isObject(value) && wantsStrict(headers.prefer)) refuseOtherMembers(value)
    // graphql-http checks that it is an object, and reads a GET's query itself.
    return isJson ? (value as Record<string, unknown>) : null
  } catch (error) {
    if (error instanceof HttpError) return error
    throw error
  }
}

const MEMBERS = new Set(['query', 'operationName', 'variables', 'extensions'])

function refuseOtherMembers(value: object): void {
  const other = Object.keys(value)
    .find((name) => !MEMBERS.has(name))
    ?.slice(0, 64)
  if (other !== undefined) throw badRequest(`A GraphQL request has no member "${other}"`, other)
}

/** Finds an undeclared variable: GraphQL ignores it, strict handling does not. */
export function undeclaredVariable(
  { headers }: FhirRequest,
  { variableDefinitions = [] }: OperationDefinitionNode,
  variables: Readonly<Record<string, unknown>>,
): string | undefined {
  if (!wantsStrict(headers.prefer)) return undefined
  const declared = new Set(variableDefinitions.map(({ variable }) => variable.name.value))
  return Object.keys(variables)
    .find((name) => !declared.has(name))
    ?.slice(0, 64)
}

/** A 400 in the caller's form. Errors: the 400 itself, for a FHIR client. */
export function rejectedRequest(error: HttpError, form: Form): FhirReply {
  if (form === 'fhir') throw error
  const body = JSON.stringify({ errors: [{ message: error.message }] })
  return textReply(error.status, body, { 'Content-Type': TYPES[form] })
}
