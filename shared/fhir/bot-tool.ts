/** The extension `bot-tool`: a Bot as a tool of language models. https://modelcontextprotocol.io */
import { attempt, badRequest } from '../core/errors.ts'
import { findSchemaProblem } from '../core/json-schema.ts'
import { botExtension, type ElementText, extensionParts, partText } from './bot-extensions.ts'
import { isDeeper, MAX_DEPTH } from './json.ts'
import { isObject, type Resource } from './resource.ts'

export interface BotTool {
  readonly name: string
  readonly description: string
  /** JSON Schema of the arguments, an object. */
  readonly inputSchema: Readonly<Record<string, unknown>>
}

/** Tools of the service itself. */
export const OWN_TOOLS = ['fhir-read', 'fhir-search', 'fhir-request', 'graphql'] as const

const PARTS = ['name', 'description', 'inputSchema'] as const
/** The characters and length that all model vendors accept. */
const NAME = /^[A-Za-z0-9_-]{1,64}$/
const MOST_DESCRIPTION = 4096
const MOST_SCHEMA = 16_384

/** Returns undefined for a Bot without the extension. Errors: 400 with the element at fault. */
export function parseBotTool(bot: Resource): BotTool | undefined {
  const found = botExtension(bot, 'tool')
  if (found === undefined) return undefined
  const parts = extensionParts(found, PARTS)
  const readPart = (part: (typeof PARTS)[number]) => {
    const text = partText(parts, part)
    if (text !== undefined) return text
    throw badRequest(`bot-tool must have the extension ${part}`, found.expression)
  }
  const name = readPart('name')
  const description = readPart('description')
  const schema = readPart('inputSchema')
  checkName(name)
  if (description.text.length > MOST_DESCRIPTION) {
    const text = `The description of a tool may have at most ${MOST_DESCRIPTION} characters`
    throw badRequest(text, description.expression)
  }
  return {
    name: name.text,
    description: description.text,
    inputSchema: parseInputSchema(schema),
  }
}

function checkName({ text, expression }: ElementText): void {
  if (!NAME.test(text)) {
    const rule = 'must have 1 to 64 letters, digits, - and _'
    throw badRequest(`The name of a tool ${rule}`, expression)
  }
  if (OWN_TOOLS.some((name) => name === text)) {
    throw badRequest(`${text} is a tool of the service: choose another name`, expression)
  }
}

function parseInputSchema({ text, expression }: ElementText): BotTool['inputSchema'] {
  if (text.length > MOST_SCHEMA) {
    throw badRequest(`inputSchema may have at most ${MOST_SCHEMA} characters`, expression)
  }
  const schema = attempt<unknown>(() => JSON.parse(text))
  if (!isObject(schema) || schema.type !== 'object') {
    throw badRequest('inputSchema must be a JSON Schema of type object', expression)
  }
  if (isDeeper(schema, MAX_DEPTH)) {
    throw badRequest(`inputSchema is nested deeper than ${MAX_DEPTH} levels`, expression)
  }
  const problem = findSchemaProblem(schema)
  if (problem !== undefined) {
    throw badRequest(`inputSchema: ${problem.at || 'the schema'} ${problem.text}`, expression)
  }
  return schema
}
