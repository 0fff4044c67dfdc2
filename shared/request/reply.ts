/** Replies as values. */

import type { HttpError, OperationOutcome } from '../errors.ts'
import { parseJson } from '../fhir/json.ts'
import type { Services } from '../services.ts'
import type { FhirReply, FhirRequest } from './request.ts'

export const FHIR_JSON = 'application/fhir+json; charset=utf-8'
/** https://html.spec.whatwg.org/multipage/server-sent-events.html */
export const EVENT_STREAM = 'text/event-stream; charset=utf-8'

export function jsonReply(
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return textReply(status, JSON.stringify(body), headers)
}

/** The body of a reply, read to its end where it is a stream. */
export async function wholeBody({ body, open }: FhirReply): Promise<FhirReply['body']> {
  return open === undefined ? body : Buffer.concat(await (await open()).toArray())
}

/** `body` is FHIR JSON already. */
export function textReply(
  status: number,
  body: string,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return { status, headers: { 'Content-Type': FHIR_JSON, ...headers }, body }
}

/** FHIR JSON as it is made. */
export function piecesReply(status: number, pieces: Iterable<string>): FhirReply {
  return { status, headers: { 'Content-Type': FHIR_JSON }, body: undefined, pieces }
}

export function emptyReply(
  status: number,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return { status, headers, body: undefined }
}

export function outcomeReply(
  status: number,
  outcome: OperationOutcome,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return jsonReply(status, outcome, headers)
}

/** People read what is indented, and nobody reads more. It is made in one turn of the event loop. */
const LARGEST_INDENTED = 1_048_576

/** As `_pretty=true` asks for it. */
export function indented(reply: FhirReply): FhirReply {
  const { body } = reply
  if (typeof body !== 'string' || body.length > LARGEST_INDENTED) return reply
  return { ...reply, body: JSON.stringify(parseJson(body), null, 2) }
}

export function failureReply(error: HttpError): FhirReply {
  return jsonReply(error.status, error.outcome, error.headers)
}

const TRACING = 'https://medplum.com/fhir/StructureDefinition/tracing'
const OUTCOME_START = '{"resourceType":"OperationOutcome"'

/** Adds the request's ids to a reply whose body is an outcome of ours. */
export function withTracing(
  reply: FhirReply,
  request: Pick<FhirRequest, 'requestId' | 'traceId'>,
): FhirReply {
  const { body } = reply
  if (typeof body !== 'string' || !body.startsWith(OUTCOME_START)) return reply
  const extension = JSON.stringify(tracingOf(request))
  return { ...reply, body: `${body.slice(0, -1)},"extension":[${extension}]}` }
}

/** The extension that names request and trace. */
export function tracingOf({ requestId, traceId }: Pick<FhirRequest, 'requestId' | 'traceId'>) {
  return {
    url: TRACING,
    extension: [
      { url: 'requestId', valueId: requestId },
      { url: 'traceId', valueId: traceId },
    ],
  }
}

/** `http://…/fhir/R4/` and what follows it. */
export function absoluteUrl(services: Services, path: string): string {
  return `${services.config.baseUrl}fhir/R4/${path}`
}
