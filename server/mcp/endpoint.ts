/**
 * The Model Context Protocol over streamable HTTP, without sessions: each request is answered alone, in any
 * revision of the library. https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
 */
import { Readable } from 'node:stream'
import type { ReadableStream } from 'node:stream/web'
import pLimit, { type LimitFunction } from 'p-limit'
import { readBody } from '../http/body.ts'
import { type Context, caller, type Web } from '../http/context.ts'
import { productVersion } from '../http/version.ts'
import { disconnectSignal } from '../middleware/failures.ts'
import type { ToolCaller } from './fhir-tools.ts'
import { callTool, describeTools, reportFailure } from './tools.ts'

type Sdk = typeof import('@modelcontextprotocol/server')

const MOST_BYTES = 262_144
const INSTRUCTIONS =
  'A FHIR R4 server. fhir-search finds resources, fhir-read reads one, graphql reads only the fields you name, fhir-request sends anything else. Other tools are programs of this project.'
const version = productVersion()
let loading: Promise<Sdk> | undefined

/** Errors: 413. Other faults of the request are errors of JSON-RPC. */
export async function answerMcp(ctx: Context, { services }: Web): Promise<void> {
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
