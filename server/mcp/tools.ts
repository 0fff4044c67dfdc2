/** The tools of a caller, and their calls. https://modelcontextprotocol.io/specification/2025-11-25/server/tools */
import type { CallToolResult, Tool } from '@modelcontextprotocol/server'
import { listTools, type OfferedTool } from '../../shared/bots/offers.ts'
import { badRequest, type HttpError } from '../../shared/core/errors.ts'
import { checkBySchema } from '../../shared/core/json-schema.ts'
import { isDeeper, MAX_DEPTH } from '../../shared/fhir/json.ts'
import { failureReply } from '../../shared/request/reply.ts'
import type { FhirReply } from '../../shared/request/request.ts'
import { ClientDisconnected, logFailure, toHttpError } from '../middleware/failures.ts'
import { ask, MOST_CHARACTERS, type OwnTool, ownTools, type ToolCaller } from './fhir-tools.ts'

type Arguments = Readonly<Record<string, unknown>>

export async function describeTools({ services, principal }: ToolCaller): Promise<Tool[]> {
  const offered = await listTools(services, principal)
  return [...ownTools(principal).map(describeOwn), ...offered.map(describeOffered)]
}

function describeOwn({ name, title, description, inputSchema, readOnly }: OwnTool): Tool {
  const annotations = { readOnlyHint: readOnly, openWorldHint: false }
  return { name, title, description, inputSchema: asInputSchema(inputSchema), annotations }
}

function describeOffered({ name, description, inputSchema }: OfferedTool): Tool {
  return { name, description, inputSchema: asInputSchema(inputSchema) }
}

/** All schemas are of type object: those of the service as written, those of Bots by their rule. */
function asInputSchema(schema: Arguments): Tool['inputSchema'] {
  return { ...schema, type: 'object' }
}

/** Returns undefined for an unknown tool. Faults of the arguments and of the call are results, which models read. */
export async function callTool(
  caller: ToolCaller,
  name: string,
  args: Arguments,
): Promise<CallToolResult | undefined> {
  try {
    const tool = await findTool(caller, name)
    if (tool === undefined) return undefined
    checkArguments(tool.inputSchema, args)
    const reply = 'run' in tool ? tool.run(caller, args) : runBot(caller, tool.botId, args)
    return toResult(await reply)
  } catch (error) {
    return toResult(failureReply(reportFailure(caller, error)))
  }
}

async function findTool(
  { services, principal }: ToolCaller,
  name: string,
): Promise<OwnTool | OfferedTool | undefined> {
  const own = ownTools(principal).find((tool) => tool.name === name)
  return own ?? (await listTools(services, principal)).find((tool) => tool.name === name)
}

/** Returns the failure as callers may see it. */
export function reportFailure({ services, request }: ToolCaller, error: unknown): HttpError {
  if (error instanceof ClientDisconnected) throw error
  const failure = toHttpError(error)
  logFailure(services.log, failure, request)
  return failure
}

function runBot(caller: ToolCaller, botId: string, args: Arguments): Promise<FhirReply> {
  const body = JSON.stringify(args)
  return ask(caller, {
    method: 'POST',
    path: `Bot/${botId}/$execute`,
    body,
    type: 'application/json',
  })
}

/** Errors: 400. */
function checkArguments(schema: Arguments, args: Arguments): void {
  if (isDeeper(args, MAX_DEPTH)) {
    throw badRequest(`The arguments are nested deeper than ${MAX_DEPTH} levels`, 'arguments')
  }
  const problems = checkBySchema(schema, args)
  if (problems.length === 0) return
  const texts = problems.map(({ at, text }) => `${at === '' ? 'The arguments' : at} ${text}`)
  throw badRequest(texts.join('; '), 'arguments')
}

function toResult(reply: FhirReply): CallToolResult {
  const { status, headers } = reply
  const runId = headers['X-Bot-Run-Id']
  return {
    content: [{ type: 'text', text: cut(toText(reply)) }],
    ...(status >= 400 ? { isError: true } : {}),
    ...(runId === undefined ? {} : { _meta: { 'botica/runId': runId } }),
  }
}

function toText({ status, headers, body, open }: FhirReply): string {
  if (typeof body === 'string' && body !== '') return body
  if (open === undefined && !Buffer.isBuffer(body)) return `Done, with status ${status}`
  const size = Buffer.isBuffer(body) ? `${body.length} bytes of ` : ''
  return `[${size}${headers['Content-Type'] ?? 'content'}, which is not shown]`
}

function cut(text: string): string {
  if (text.length <= MOST_CHARACTERS) return text
  const left = text.length - MOST_CHARACTERS
  const kept = text.slice(0, MOST_CHARACTERS).toWellFormed()
  return `${kept}\n[${left} more characters are cut off: ask for fewer elements or entries]`
}
