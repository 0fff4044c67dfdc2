/**
 * GraphQL over HTTP: graphql-http reads the request and knows which statuses its specification wants;
 * here are the forms of FHIR clients before and after it. https://graphql.github.io/graphql-over-http/draft/
 */
import {
  type ExecutionResult,
  GraphQLError,
  getOperationAST,
  type OperationDefinitionNode,
} from 'graphql'
import { createHandler, type OperationArgs, type RequestParams, type Response } from 'graphql-http'
import { signAttachments } from '../binary/attachments.ts'
import {
  forbidden,
  HttpError,
  methodNotAllowed,
  serverTimeout,
  tooLarge,
  unsupportedMediaType,
} from '../errors.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject } from '../fhir/resource.ts'
import { takesGzip } from '../request/negotiate.ts'
import { auditRefusal } from '../request/refusals.ts'
import { textReply } from '../request/reply.ts'
import type { FhirReply, FhirRequest, Interaction } from '../request/request.ts'
import { type Form, formOf } from './accept.ts'
import { openContext, readRoot } from './context.ts'
import { withDirectives } from './document/directives.ts'
import { makeTypes, prepareDocument } from './document/document.ts'
import { introspect } from './document/introspection.ts'
import {
  asksForTypes,
  type Told,
  tellTypes,
  unpack,
  writeBeside,
} from './document/introspection-beside.ts'
import { NOTABLE, variableErrors, weigh, weightErrors } from './document/limits.ts'
import { fieldError, outcomeOf } from './errors.ts'
import { openLevels } from './levels.ts'
import type { GraphqlContext } from './request-state.ts'
import { rootFields, withRootFields } from './schema/root-fields.ts'
import { audienceName, schemaFor } from './schema/schema.ts'
import { writeJson } from './write-json.ts'

/** The resource that the document is about; none: the whole Project. */
export interface Root {
  readonly type: string
  readonly id: string
}

/** One request on its way through graphql-http. */
interface Serving {
  readonly interaction: Interaction
  readonly root: Root | undefined
  readonly form: Form
  /** Set when the text of the query could not be parsed. */
  isSyntax: boolean
  /** What is left of a quota, for its header. */
  rateLimit: string | undefined
  /** Instead of what graphql-http is given: the body in gzip, where only types are asked for. */
  packed: Buffer | undefined
  /** The same, as it is, where types are asked for beside other things. */
  content: Buffer | undefined
  /** What is told of types, where other things are asked for beside them. */
  told: Told | undefined
}

const MAX_BODY_BYTES = 1_310_720
const DEADLINE_MS = 30_000
const TYPES: Readonly<Record<Form, string>> = {
  graphql: 'application/graphql-response+json; charset=utf-8',
  json: 'application/json; charset=utf-8',
  fhir: 'application/json; charset=utf-8',
}

/** Errors: 404 and 410 for the root, 405, 406, 413, 415; 400 and 403 for a FHIR client. */
export async function serveGraphql(
  interaction: Interaction,
  root: Root | undefined,
): Promise<FhirReply> {
  const { request } = interaction
  if (request.body !== undefined && request.body.length > MAX_BODY_BYTES) throw tooLarge()
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(serverTimeout()), DEADLINE_MS)
  try {
    return await serveUntil(interaction, root, late.signal)
  } finally {
    clearTimeout(timer)
  }
}

async function serveUntil(
  interaction: Interaction,
  root: Root | undefined,
  late: AbortSignal,
): Promise<FhirReply> {
  const { signal: gone } = interaction.request
  const signal = gone === undefined ? late : AbortSignal.any([gone, late])
  const request = { ...interaction.request, signal }
  const serving: Serving = {
    interaction: { ...interaction, request },
    root,
    form: formOf(request.headers.accept),
    isSyntax: false,
    rateLimit: undefined,
    packed: undefined,
    content: undefined,
    told: undefined,
  }
  const [body, { status, headers }] = await handler({
    method: request.method,
    url: `?${request.query}`,
    headers: {
      accept: serving.form === 'json' ? 'application/json' : 'application/graphql-response+json',
      'content-type': contentType(request),
    },
    body: () => bodyOf(request),
    raw: undefined,
    context: serving,
  })
  if (status === 415) throw unsupportedMediaType()
  const isForeign = serving.form !== 'fhir'
  if (status >= 400 && !isForeign) throw asOutcome(status, body ?? '', serving.isSyntax)
  const allow: Record<string, string> = headers?.allow === undefined ? {} : { Allow: headers.allow }
  const { rateLimit, packed, content } = serving
  const limit: Record<string, string> = rateLimit === undefined ? {} : { RateLimit: rateLimit }
  const type = { 'Content-Type': TYPES[serving.form] }
  if (packed !== undefined) return packedReply(request, packed, type)
  const reply = textReply(status, body ?? '', { ...allow, ...limit, ...type })
  return content === undefined ? reply : { ...reply, body: content }
}

/** What is kept packed is sent so to all who can read it. */
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

const handler = createHandler<undefined, Serving, GraphqlContext>({
  onSubscribe: (req, params) => begin(req.context, req.method, params),
  onOperation: (req, args, result) => finish(req.context, args, result),
})

const JSON_TYPE = /^application\/([a-z0-9.+-]+\+)?json\s*(;\s*charset="?utf-?8"?\s*)?$/i

/** As graphql-http knows it; what it does not know is a 415. */
function contentType({ headers }: FhirRequest): string {
  const type = headers['content-type'] ?? ''
  const isKnown = JSON_TYPE.test(type) || isQueryText(type)
  return isKnown ? 'application/json; charset=utf-8' : type
}

function isQueryText(type: string): boolean {
  return /^application\/graphql\s*(;|$)/i.test(type)
}

function bodyOf({ body, headers }: FhirRequest): Record<string, unknown> {
  if (isQueryText(headers['content-type'] ?? '')) return { query: String(body ?? '') }
  // graphql-http looks whether it is an object.
  return parseBody(body ?? '') as Record<string, unknown>
}

async function begin(
  serving: Serving,
  method: string,
  { query, operationName, variables }: RequestParams,
): Promise<OperationArgs<GraphqlContext> | readonly GraphQLError[] | Response> {
  const { interaction, root } = serving
  const { principal } = interaction
  const audience = { isSuperAdmin: principal.isSuperAdmin, instance: root?.type }
  const schema = schemaFor(audience)
  const prepared = await prepareDocument(schema, audienceName(audience), query)
  void makeTypes(schema)
  const { document, errors } = prepared
  serving.isSyntax = prepared.isSyntax
  if (document === undefined) return errors
  const tooMany = variableErrors(variables ?? {})
  if (tooMany.length > 0) return tooMany
  const operation = getOperationAST(document, operationName)
  if (!operation) return [new GraphQLError('The document has no such operation, or several')]
  // graphql-http refuses it, before anything is done.
  if (method === 'GET' && operation.operation === 'mutation') {
    return { schema, document, operationName }
  }
  const asked = { document, operation }
  const fields = rootFields(document, operation)
  if (fields.some(asksForTypes)) {
    if (!mayIntrospect(interaction)) return forbiddenResponse(serving.form)
    const by = { audience: audienceName(audience), variables: variables ?? {} }
    const others = withRootFields(document, operation, (field) => !asksForTypes(field))
    if (others === undefined || fields.every(({ name }) => name.value.startsWith('__'))) {
      serving.packed = await introspect(schema, document, operation, by)
      return respond(200, '', serving.form)
    }
    serving.told = await tellTypes(schema, document, operation, by)
    Object.assign(asked, others)
  }
  const tooMuch = checkWeight(interaction, weigh(asked.document, asked.operation, variables ?? {}))
  if (tooMuch.length > 0) return tooMuch
  const contextValue = openContext(interaction, prepared.asksNumbers)
  return {
    schema,
    document: asked.document,
    operationName,
    variableValues: variables,
    contextValue,
    hideSuggestions: true,
    rootValue: root === undefined ? undefined : await readRoot(contextValue, root.type, root.id),
  }
}

function checkWeight(
  { services, principal }: Interaction,
  weight: ReturnType<typeof weigh>,
): readonly GraphQLError[] {
  const { depth, cost } = weight
  if (depth > NOTABLE.depth || cost > NOTABLE.cost) {
    services.log.info(
      { project: principal.project.id, depth, cost },
      'A GraphQL query asks for much',
    )
  }
  return weightErrors(weight, principal.project)
}

/** The server and the Project must both allow it: the server its admins always, the Project by a feature. */
function mayIntrospect({ services, principal }: Interaction): boolean {
  const { isSuperAdmin, isProjectAdmin, project } = principal
  if (isSuperAdmin) return true
  if (!project.features.includes('graphql-introspection')) return false
  return isProjectAdmin || services.config.introspectionEnabled
}

async function finish(
  serving: Serving,
  { document, operationName, contextValue }: OperationArgs<GraphqlContext>,
  result: ExecutionResult,
): Promise<Response> {
  const { interaction, form } = serving
  const { log } = interaction.services
  const { signal } = interaction.request
  // Its document and context are those that `begin` has given.
  const context = contextValue as GraphqlContext
  context.account.close()
  serving.rateLimit = context.account.rateLimit
  // Nobody waits for it any more; what is late is told so by its fields.
  if (signal?.aborted && !(signal.reason instanceof HttpError)) throw signal.reason
  for (const { originalError } of result.errors ?? []) {
    auditRefusal(interaction.services, interaction.principal, interaction.request, originalError)
  }
  const errors = result.errors?.map((error) => fieldError(error, log)) ?? []
  if (result.data === undefined) {
    return respond(form === 'graphql' ? 400 : 200, JSON.stringify({ errors }), form)
  }
  const operation = getOperationAST(document, operationName) as OperationDefinitionNode
  // What was found in time is told, however late it is by now.
  const { pace, rest } = openLevels(() => undefined)
  const shaped = await withDirectives(result.data, document, operation, context.slices, pace)
  const all = [...errors, ...shaped.errors].map((error) => error.toJSON())
  const answer = { data: shaped.data, ...(all.length === 0 ? {} : { errors: all }) }
  const { told } = serving
  if (told === undefined || !isObject(answer.data)) {
    return respond(200, await writeJson(answer, rest), form)
  }
  // Bytes are not looked through for Binaries any more.
  const write = async (value: unknown) =>
    signAttachments(interaction.services, interaction.principal, await writeJson(value, rest))
  serving.content = await writeBeside({ ...answer, data: answer.data }, told, write)
  return respond(200, '', form)
}

function respond(status: number, body: string, form: Form): Response {
  return [body, { status, statusText: '', headers: { 'content-type': TYPES[form] } }]
}

function forbiddenResponse(form: Form): Response {
  return respond(403, JSON.stringify({ errors: [{ message: forbidden().message }] }), form)
}

/** What graphql-http says, in the words of FHIR clients. */
const WORDS: Readonly<Record<string, string>> = {
  'Missing query': 'Must provide query.',
  'Missing body': 'Must provide query.',
  'Unparsable JSON body': 'Content could not be parsed',
}

function asOutcome(status: number, body: string, isSyntax: boolean): HttpError {
  if (status === 403) return forbidden()
  if (status === 405) return methodNotAllowed('POST')
  if (isSyntax) return new HttpError(status, outcomeOf(['GraphQL syntax error.']))
  // Made by graphql-http or above.
  const { errors } = JSON.parse(body) as { errors: readonly { message: string }[] }
  return new HttpError(status, outcomeOf(errors.map(({ message }) => WORDS[message] ?? message)))
}
