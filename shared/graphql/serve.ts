/** GraphQL over HTTP (https://graphql.github.io/graphql-over-http/draft/), with conversions for FHIR clients. */

import { promisify } from 'node:util'
import { gunzip, gzip } from 'node:zlib'
import {
  type ExecutionResult,
  GraphQLError,
  getOperationAST,
  getVariableValues,
  type OperationDefinitionNode,
} from 'graphql'
import { createHandler, type OperationArgs, type RequestParams, type Response } from 'graphql-http'
import { Cache, getOrInsert } from '../core/cache.ts'
import {
  forbidden,
  HttpError,
  methodNotAllowed,
  serverTimeout,
  tooLarge,
  unsupportedMediaType,
} from '../core/errors.ts'
import { takesGzip } from '../request/negotiate.ts'
import { textReply } from '../request/reply.ts'
import { type FhirContext, type FhirReply, type FhirRequest, forReads } from '../request/request.ts'
import {
  asksForTypes,
  compileOperation,
  type Prepared,
  prepareDocument,
} from './document/document.ts'
import {
  measureOperation,
  NOTABLE,
  type OperationCost,
  variableErrors,
  weightErrors,
} from './document/limits.ts'
import { literalName, locate, scan } from './document/literals.ts'
import type { VariableValues } from './execute/plan.ts'
import { readRoot } from './execute/reads.ts'
import { errorsOutcome, Run } from './execute/run.ts'
import { type Executed, execute, type Ready } from './execute.ts'
import {
  contentType,
  type Form,
  negotiateForm,
  readRequest,
  rejectedRequest,
  TYPES,
  undeclaredVariable,
} from './read-request.ts'
import type { Given } from './schema/elements.ts'
import { audienceName, schemaFor } from './schema/schema.ts'

/** The resource that a query is about. */
interface Root {
  readonly type: string
  readonly id: string
}

interface Serving {
  readonly interaction: FhirContext
  readonly root: Root | undefined
  readonly form: Form
  isSyntax: boolean
  rateLimit: string | undefined
  /** Gzip body that replaces graphql-http's, for pure introspection. */
  packed: Buffer | undefined
}

/** A type, not an interface: graphql-http requires assignability to a record. */
type Context = { readonly ready: Ready }

const MAX_BODY_BYTES = 1_310_720
const DEADLINE_MS = 30_000

/** Errors: 404 and 410 for the root, 405, 406, 413, 415; 400 and 403 for a FHIR client. */
export async function serveGraphql(
  context: FhirContext,
  root: Root | undefined,
): Promise<FhirReply> {
  const { request } = context
  if (request.body !== undefined && request.body.length > MAX_BODY_BYTES) throw tooLarge()
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(serverTimeout()), DEADLINE_MS)
  const { signal: gone } = request
  const leave = () => late.abort(gone?.reason)
  // AbortSignal.any costs as much as a small query.
  gone?.addEventListener('abort', leave)
  if (gone?.aborted) leave()
  try {
    return await serveUntil(context, root, late.signal)
  } finally {
    clearTimeout(timer)
    gone?.removeEventListener('abort', leave)
  }
}

async function serveUntil(
  context: FhirContext,
  root: Root | undefined,
  signal: AbortSignal,
): Promise<FhirReply> {
  const request = { ...context.request, signal }
  const form = negotiateForm(request.headers.accept)
  const given = readRequest(request)
  if (given instanceof HttpError) return rejectedRequest(given, form)
  const serving: Serving = {
    interaction: { ...context, request },
    root,
    form,
    isSyntax: false,
    rateLimit: undefined,
    packed: undefined,
  }
  const [body, { status, headers }] = await handler({
    method: request.method,
    url: `?${request.query}`,
    headers: {
      accept: serving.form === 'json' ? 'application/json' : 'application/graphql-response+json',
      'content-type': contentType(request),
    },
    body: given,
    raw: undefined,
    context: serving,
  })
  if (status === 415) throw unsupportedMediaType()
  const isForeign = serving.form !== 'fhir'
  if (status >= 400 && !isForeign) throw asOutcome(status, body ?? '', serving.isSyntax)
  const allow: Record<string, string> = headers?.allow === undefined ? {} : { Allow: headers.allow }
  const { rateLimit } = serving
  const limit: Record<string, string> = rateLimit === undefined ? {} : { RateLimit: rateLimit }
  const type = { 'Content-Type': TYPES[serving.form] }
  if (serving.packed !== undefined) return packedReply(request, serving.packed, type)
  return textReply(status, body ?? '', { ...allow, ...limit, ...type })
}

/** Sends a cached compressed response unchanged to callers that accept gzip. */
async function packedReply(
  { headers }: FhirRequest,
  packed: Buffer,
  type: Readonly<Record<string, string>>,
): Promise<FhirReply> {
  if (!takesGzip(headers['accept-encoding'])) {
    return { status: 200, headers: type, body: await unpack(packed) }
  }
  return { status: 200, headers: { ...type, 'Content-Encoding': 'gzip' }, body: packed }
}

const handler = createHandler<undefined, Serving, Context>({
  onSubscribe: (req, params) => begin(req.context, req.method, params),
  execute: ({ contextValue }) => carryOut((contextValue as Context).ready),
  // The context is from `begin`, the result from `carryOut`.
  onOperation: (req, { contextValue }, result) =>
    finish(req.context, (contextValue as Context).ready.run, result as unknown as Executed),
})

async function begin(
  serving: Serving,
  method: string,
  { query, operationName, variables: given }: RequestParams,
): Promise<OperationArgs<Context> | readonly GraphQLError[] | Response> {
  const variables = given ?? {}
  const { interaction: context, root } = serving
  const audience = { isSuperAdmin: context.principal.isSuperAdmin, instance: root?.type }
  const schema = schemaFor(audience)
  const scanned = scan(query)
  const prepared = await prepareDocument(schema, audienceName(audience), query, scanned)
  if ('errors' in prepared) {
    serving.isSyntax = prepared.isSyntax
    return prepared.errors
  }
  const tooMany = variableErrors(variables)
  if (tooMany.length > 0) return tooMany
  const { document } = prepared
  const operation = getOperationAST(document, operationName)
  if (!operation) return [new GraphQLError('The document has no such operation, or several')]
  const undeclared = undeclaredVariable(context.request, operation, variables)
  if (undeclared !== undefined) {
    return [new GraphQLError(`The operation declares no variable $${undeclared}`)]
  }
  // graphql-http rejects it before execution.
  if (method === 'GET' && operation.operation === 'mutation') {
    return { schema, document, operationName }
  }
  const isIntrospection = asksForTypes(prepared, operation)
  if (isIntrospection && !mayIntrospect(context)) {
    const text = JSON.stringify({ errors: [{ message: forbidden().message }] })
    return respond(403, text, serving.form)
  }
  const tooMuch = checkWeight(context, measureOperation(prepared.fragments, operation, variables))
  if (tooMuch.length > 0) return tooMuch
  const coerced = coerceVariables(prepared, operation, variables, scanned.values)
  if (coerced.errors !== undefined) return refusal(serving.form, coerced.errors)
  const run = new Run({
    interaction: operation.operation === 'mutation' ? context : await forReads(context),
    schema,
    variables: coerced.values,
    keepsDecimals: prepared.asksNumbers,
    asksWhole: prepared.asksWhole,
    text: query,
    locate: (position) => locate(position, prepared.spans, scanned.spans),
  })
  if (isIntrospection) await schema.makeAll(() => run.turns.spendAndYield(1))
  const { steps } = compileOperation(prepared, operation, run.config.variables)
  const isOfTypes = steps.every(({ nodes: [node] }) => node?.name.value.startsWith('__'))
  if (isIntrospection && isOfTypes) {
    const ready = { run, prepared, operation, root: undefined }
    const asked = [audienceName(audience), query, operationName, variables]
    const make = async () => `{"data":${(await execute(ready)).data}}`
    serving.packed = await packed(JSON.stringify(asked), make)
    return respond(200, '', serving.form)
  }
  const resource = root === undefined ? undefined : await readRoot(run, root)
  const ready = { run, prepared, operation, root: resource }
  return { schema, document, operationName, contextValue: { ready } }
}

function coerceVariables(
  { schema, hasLiterals }: Prepared,
  { variableDefinitions = [] }: OperationDefinitionNode,
  given: Given,
  literals: readonly string[],
):
  | { readonly values: VariableValues; readonly errors?: undefined }
  | { readonly errors: readonly GraphQLError[] } {
  const { variableValues, errors } = getVariableValues(schema, variableDefinitions, given, {
    maxErrors: MAX_VARIABLE_ERRORS,
    hideSuggestions: true,
  })
  if (variableValues === undefined) return { errors: errors ?? [] }
  if (!hasLiterals || literals.length === 0) return { values: variableValues }
  const coerced = { ...variableValues.coerced }
  for (const [i, text] of literals.entries()) coerced[literalName(i)] = text
  return { values: { ...variableValues, coerced } }
}

/** Same as graphql-js during execution. */
const MAX_VARIABLE_ERRORS = 50

function refusal(form: Form, errors: readonly GraphQLError[]): Response {
  return respond(form === 'graphql' ? 400 : 200, JSON.stringify({ errors }), form)
}

function checkWeight(
  { services, principal }: FhirContext,
  weight: OperationCost,
): readonly GraphQLError[] {
  const { depth, cost } = weight
  if (depth > NOTABLE.depth || cost > NOTABLE.cost) {
    services.log.info({ project: principal.project.id, depth, cost }, 'GraphQL query is expensive')
  }
  return weightErrors(weight, principal.project)
}

/** The server, except for admins, and the Project must both allow introspection. */
function mayIntrospect({ services, principal }: FhirContext): boolean {
  const { isSuperAdmin, isProjectAdmin, project } = principal
  if (isSuperAdmin) return true
  if (!project.features.includes('graphql-introspection')) return false
  return isProjectAdmin || services.config.introspectionEnabled
}

async function carryOut(ready: Ready): Promise<ExecutionResult> {
  const { account, config } = ready.run
  try {
    // graphql-http passes it to `finish` unread.
    return (await execute(ready)) as unknown as ExecutionResult
  } catch (error) {
    config.interaction.request.signal?.throwIfAborted()
    throw error
  } finally {
    account.close()
  }
}

function finish(serving: Serving, { account }: Run, { data, errors }: Executed): Response {
  const { interaction: context, form } = serving
  serving.rateLimit = account.rateLimit
  const { signal } = context.request
  // Disconnected: fields already report timeouts.
  if (signal?.aborted && !(signal.reason instanceof HttpError)) throw signal.reason
  const rest = errors.length === 0 ? '' : `,"errors":${JSON.stringify(errors)}`
  return respond(200, `{"data":${data}${rest}}`, form)
}

function respond(status: number, body: string, form: Form): Response {
  return [body, { status, statusText: '', headers: { 'content-type': TYPES[form] } }]
}

const WORDS: Readonly<Record<string, string>> = {
  'Missing query': 'Must provide query.',
  'Missing body': 'Must provide query.',
}

function asOutcome(status: number, body: string, isSyntax: boolean): HttpError {
  if (status === 403) return forbidden()
  if (status === 405) return methodNotAllowed('POST')
  if (isSyntax) return new HttpError(status, errorsOutcome(['GraphQL syntax error.']))
  const { errors } = JSON.parse(body) as { errors: readonly { message: string }[] }
  return new HttpError(
    status,
    errorsOutcome(errors.map(({ message }) => WORDS[message] ?? message)),
  )
}

const MAX_CACHED_BYTES = 8_000_000
/** Higher levels take much longer for a slightly smaller result. */
const LEVEL = 3

const cached = new Cache<string, Buffer>({
  name: 'graphql-answers',
  max: MAX_CACHED_BYTES,
  size: (packed, key) => packed.length + key.length,
})
const running = new Map<string, Promise<Buffer>>()
const pack = promisify(gzip)

const unpack = promisify(gunzip)

/** Compresses the response of a key once. Errors: those of `make`. */
async function packed(key: string, make: () => Promise<string>): Promise<Buffer> {
  const known = cached.get(key)
  if (known !== undefined) return known
  const answer = getOrInsert(running, key, () =>
    make().then((text) => pack(text, { level: LEVEL })),
  )
  try {
    const made = await answer
    cached.set(key, made)
    return made
  } finally {
    running.delete(key)
  }
}
