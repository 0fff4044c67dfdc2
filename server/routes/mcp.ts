/**
 * `/mcp`, tools for language models: the Model Context Protocol over streamable HTTP, without sessions. Each request is
 * answered alone, in any revision of the library.
 * https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
 */
import { Readable } from 'node:stream'
import type { ReadableStream } from 'node:stream/web'
import pLimit, { type LimitFunction } from 'p-limit'
import { issuerUrl } from '../../shared/access/credentials/tokens.ts'
import type { Config } from '../../shared/core/config/config.ts'
import { forbidden, HttpError } from '../../shared/core/errors.ts'
import { readBody } from '../http/body.ts'
import { type Context, caller, type Middleware, type Web } from '../http/context.ts'
import { productVersion } from '../http/version.ts'
import type { ToolCaller } from '../mcp/fhir-tools.ts'
import { callTool, describeTools, reportFailure } from '../mcp/tools.ts'
import { disconnectSignal } from '../middleware/failures.ts'
import { isAllowedOrigin } from '../middleware/headers.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

type Sdk = typeof import('@modelcontextprotocol/server')

const TEXTS: RouteTexts = {
  'POST /mcp': {
    summary: 'Call tools as a language model',
    description:
      'The Model Context Protocol over streamable HTTP, without sessions. The tools read and search resources, query by GraphQL, send FHIR requests, and run the bots with the extension `bot-tool`.',
    body: {
      jsonrpc: 'text!: 2.0',
      id: 'text: Of the request; a notification has none',
      method: 'text!: initialize, server/discover, tools/list or tools/call',
      params: 'object: Of the method',
    },
    example: { jsonrpc: '2.0', id: '1', method: 'tools/list', params: {} },
    answer: 'object',
  },
}
/** Clients request this scope by default; writes need a word such as `user/Observation.cu`. */
const USUAL_SCOPE = 'openid offline_access user/*.rs'
const MOST_BYTES = 262_144
const INSTRUCTIONS =
  'A FHIR R4 server. fhir-search finds resources, fhir-read reads one, graphql reads only the fields you name, fhir-request sends anything else. Other tools are programs of this project.'
const version = productVersion()
let loading: Promise<Sdk> | undefined

export function mcpRoutes(web: Web): RouteFamily {
  const { config } = web.services
  const routes = createRoutes({ texts: TEXTS, outside: [requireOrigin(config), challenge(config)] })
  routes.post('/mcp', 'signed-in', (ctx) => answerMcp(ctx, web))
  return routes
}

/** Against pages that reach the service under another name. Errors: 403. */
function requireOrigin(config: Config): Middleware {
  return (ctx, next) => {
    const { origin } = ctx.req.headers
    if (origin !== undefined && !isAllowedOrigin(config, origin)) throw forbidden('origin')
    return next()
  }
}

/** Adds the address and the scope of the sign-in to a 401: https://www.rfc-editor.org/rfc/rfc9728#section-5.1 */
function challenge({ baseUrl }: Config): Middleware {
  return async (ctx, next) => {
    try {
      await next()
    } catch (error) {
      if (!(error instanceof HttpError) || error.status !== 401) throw error
      const resource = `${issuerUrl(baseUrl, ctx.state.projectScope)}mcp`.slice(baseUrl.length)
      const metadata = `${baseUrl}.well-known/oauth-protected-resource/${resource}`
      const where = `resource_metadata="${metadata}", scope="${USUAL_SCOPE}"`
      const own = error.headers['WWW-Authenticate'] ?? 'Bearer'
      const headers = { ...error.headers, 'WWW-Authenticate': `${own}, ${where}` }
      throw new HttpError(401, error.outcome, { headers, cause: error })
    }
  }
}

/** Errors: 413. Other faults of the request are errors of JSON-RPC. */
async function answerMcp(ctx: Context, { services }: Web): Promise<void> {
  const body = await readBody(ctx, MOST_BYTES)
  const signal = disconnectSignal(ctx)
  const { projectScope, requestId, traceId } = ctx.state
  const { principal } = caller(ctx)
  const scope = projectScope === undefined ? {} : { projectScope }
  const toolCaller = { services, principal, request: { ...scope, requestId, traceId, signal } }
  // Loaded on first use: its schemas take 25 MB and 0.1 s.
  loading ??= import('@modelcontextprotocol/server')
  const sdk = await loading
  // The calls of a batch run one after the other: each may read megabytes.
  const inTurn = pLimit(1)
  const handler = sdk.createMcpHandler(() => createServer(sdk, toolCaller, inTurn), {
    // Nothing is announced, so no client listens.
    maxSubscriptions: 0,
  })
  const request = new Request(new URL('mcp', services.config.baseUrl), {
    method: 'POST',
    headers: protocolHeaders(ctx),
    body: body ?? '',
    signal,
  })
  await sendResponse(ctx, await handler.fetch(request))
}

function createServer(
  { Server, ProtocolError, ProtocolErrorCode }: Sdk,
  toolCaller: ToolCaller,
  inTurn: LimitFunction,
) {
  const options = { capabilities: { tools: {} }, instructions: INSTRUCTIONS }
  const server = new Server({ name: 'botica', title: 'Botica', version }, options)
  server.setRequestHandler('tools/list', async () => {
    try {
      return { tools: await describeTools(toolCaller) }
    } catch (error) {
      // The library sends the text of any error to the client.
      const { message } = reportFailure(toolCaller, error)
      throw new ProtocolError(ProtocolErrorCode.InternalError, message)
    }
  })
  server.setRequestHandler('tools/call', async ({ params }) => {
    const result = await inTurn(() => callTool(toolCaller, params.name, params.arguments ?? {}))
    if (result !== undefined) return result
    throw new ProtocolError(ProtocolErrorCode.InvalidParams, `Unknown tool: ${params.name}`)
  })
  return server
}

/** Credentials stay out of the library. */
function protocolHeaders({ req }: Context): Headers {
  const headers = new Headers()
  for (const [name, value] of Object.entries(req.headers)) {
    const isProtocol = name === 'accept' || name === 'content-type' || name.startsWith('mcp-')
    if (isProtocol && typeof value === 'string') headers.set(name, value)
  }
  return headers
}

async function sendResponse(ctx: Context, response: Response): Promise<void> {
  for (const [name, value] of response.headers) ctx.set(name, value)
  // An event would wait for the next one in the buffer of the compression.
  ctx.compress = !response.headers.get('content-type')?.startsWith('text/event-stream')
  // The types of Node and of fetch differ in name only.
  if (response.body === null) ctx.body = null
  else ctx.body = Readable.fromWeb(response.body as ReadableStream)
  // After the body: Koa turns an empty one into a 204.
  ctx.status = response.status
}
