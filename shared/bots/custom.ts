/** Custom operations: an OperationDefinition that names the Bot behind it. */
import { oldestFirst } from '../access/guarded/definitions.ts'
import { implementationReferences } from '../access/guarded/elements.ts'
import { may } from '../access/policy.ts'
import { badRequest, type HttpError, isAbsent, notFound, notSupported } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { parseJson } from '../fhir/json.ts'
import {
  asArray,
  isObject,
  isResource,
  type Resource,
  targetIn,
  toObjects,
} from '../fhir/resource.ts'
import { FHIR_JSON, jsonReply } from '../request/reply.ts'
import type { FhirReply, Operation, OperationCall } from '../request/request.ts'
import { escapeValue } from '../search/language/values.ts'
import { equals, findAll } from '../store/lookups.ts'
import { present } from '../store/rows/rows.ts'
import { findBot } from './bot.ts'
import { type BotCall, execute, executeBot } from './execute.ts'
import { type ExecuteInput, readInput } from './execute-reply.ts'

/** They travel with the job of the run. */
const MAX_PARAMETERS = 65_536
const LEVELS = ['system', 'type', 'instance']

/**
 * The Bot gets the resource of an instance-level call as `event.input` and the caller's input as `event.parameters`;
 * otherwise the caller's input as `event.input`. Errors: 404 without a matching definition or resource.
 */
export function customOperation(name: string): Operation {
  return {
    name,
    on: [{ level: 'system' }, { level: 'type' }, { level: 'instance' }],
    methods: execute.methods,
    text: { summary: 'Run a bot by an operation of the project' },
    acts: true,
    ownFormat: true,
    async run(call) {
      const { services, principal } = call
      if (!may(principal, 'OperationDefinition', 'search')) throw absent(name)
      const condition = equals('code', 'token', escapeValue(name))
      const { repository } = services
      const type = 'OperationDefinition'
      const found = await findAll(repository, principal, type, [condition])
      // A later definition with the same code must not take over calls.
      const [definition] = oldestFirst(
        found.filter((item) => fits(item, call) && implementingBotId(item) !== undefined),
      )
      if (definition === undefined) throw absent(name)
      const input = call.id === undefined ? call : await withResourceAsInput(call)
      const toBot = { ...input, type: 'Bot', id: implementingBotId(definition) }
      await requireBot(name, toBot)
      const reply = await executeBot(toBot)
      return withOutput(definition, reply)
    },
  }
}

/** Errors: 404 alike for a Bot that is missing, deleted, or not readable by the caller; 403. */
async function requireBot(name: string, call: BotCall): Promise<void> {
  try {
    await findBot(call)
  } catch (error) {
    if (!isAbsent(error)) throw error
    throw notFound(`$${name} runs Bot/${call.id}, which does not exist, or which you may not read`)
  }
}

async function withResourceAsInput(call: OperationCall): Promise<BotCall> {
  const { services, principal, request, type = '', id = '' } = call
  const resource = await services.repository.read(principal, type, id)
  const input = { kind: 'json', text: present(resource, principal, false) } as const
  return { ...call, input, parameters: parametersText(readInput(request)) }
}

/** Returns JSON; undefined without input. Errors: 400 for a large one. */
function parametersText({ kind, text }: ExecuteInput): string | undefined {
  if (kind === 'none' || text === '{}') return undefined
  if (text.length > MAX_PARAMETERS) {
    throw badRequest(`Parameters next to a resource may have at most ${MAX_PARAMETERS} characters`)
  }
  return kind === 'json' ? text : JSON.stringify(text)
}

/** Medplum operations without an equivalent here, and their alternatives. */
const ELSEWHERE: readonly (readonly [name: RegExp, instead: string])[] = [
  [/^db-/, 'use the tools of PostgreSQL'],
  [/^explain$/, 'add _explain=true to the search'],
  [/^rate-limits$/, 'GET /admin/projects/[id] has the limits and the load used'],
  [/^(get|clear)-(all-)?ws-/, 'open sockets belong to their process, and nothing counts them'],
  [/^rescope$/, 'a User keeps its scope; invite the person into the Project'],
  [
    /^(ai|ccda-export|sync-orderset|order-set-url|get-cart)$/,
    'name a Bot in an OperationDefinition of this code',
  ],
]

/** Returns 404 for an unknown name, or advice for a Medplum operation. */
function absent(name: string): HttpError {
  const instead = ELSEWHERE.find(([known]) => known.test(name))?.[1]
  return instead === undefined ? notFound() : notSupported(`$${name} is not offered: ${instead}`)
}

/** Passes failures, 202 and outcomes unchanged. Errors: 400 for a result that does not match the definition. */
function withOutput(definition: Resource, reply: FhirReply): FhirReply {
  if (reply.status !== 200 || typeof reply.body !== 'string') return reply
  const isJson = reply.headers['Content-Type']?.includes('json') === true
  const value = isJson ? parseJson(reply.body) : reply.body
  if (isResource(value) && value.resourceType === 'OperationOutcome') return reply
  const output = toOperationOutput(definition, value)
  if (output === undefined) return reply
  return jsonReply(200, output, { ...reply.headers, 'Content-Type': FHIR_JSON })
}

/**
 * Retired definitions "should no longer be used": https://hl7.org/fhir/R4/codesystem-publication-status.html
 * Levels: https://hl7.org/fhir/R4/operationdefinition-definitions.html#OperationDefinition.system
 */
function fits(definition: Resource, { type, id }: OperationCall): boolean {
  if (definition.status === 'retired') return false
  // A definition without levels is matched by name only.
  if (LEVELS.every((level) => definition[level] !== true)) return true
  if (type === undefined) return definition.system === true
  const types = asArray(definition.resource)
  const isOfType = types.length === 0 || types.includes(type) || types.includes('Resource')
  return isOfType && definition[id === undefined ? 'type' : 'instance'] === true
}

function implementingBotId(definition: Resource): string | undefined {
  const bots = implementationReferences(definition).flatMap((value) => {
    const reference = targetIn(value)
    return reference?.type === 'Bot' ? [reference.id] : []
  })
  return bots[0]
}

interface Out {
  readonly name: string
  readonly type: string
  readonly min: number
  readonly max: number
  readonly parts: readonly Out[]
}

/** Returns undefined for an operation without declared output, whose result stays unchanged. Errors: 400 for a mismatch. */
function toOperationOutput(definition: Resource, value: unknown): unknown {
  const outs = parseOutputParameters(definition.parameter, true)
  const [only, second] = outs
  if (only === undefined || (isResource(value) && value.resourceType === 'Parameters')) {
    return undefined
  }
  if (only.name === 'return' && second === undefined) {
    if (!isResourceKind(only.type)) return toParameters(outs, { return: value })
    requireKind(only, value)
    return value
  }
  if (!isObject(value)) throw badRequest('The bot must return an object of output parameters')
  return toParameters(outs, value)
}

function parseOutputParameters(list: unknown, isTop: boolean): readonly Out[] {
  return toObjects(list).flatMap((item) => {
    const { use, name, type, min, max, part } = item
    if (typeof name !== 'string' || (isTop && use !== 'out')) return []
    return {
      name,
      type: typeof type === 'string' ? type : '',
      min: Number(min) || 0,
      max: max === '*' ? Number.POSITIVE_INFINITY : Number(max) || 1,
      parts: parseOutputParameters(part, false),
    }
  })
}

function toParameters(outs: readonly Out[], values: Record<string, unknown>): object {
  const parameter = parametersIn(outs, values)
  return { resourceType: 'Parameters', ...(parameter.length === 0 ? {} : { parameter }) }
}

function parametersIn(outs: readonly Out[], values: Record<string, unknown>): object[] {
  return outs.flatMap((out) => {
    const value = values[out.name]
    const all = [value ?? []].flat()
    if (all.length < out.min || all.length > out.max) {
      const bound = all.length < out.min ? `at least ${out.min}` : `at most ${out.max}`
      throw badRequest(`Expected ${bound} of output parameter "${out.name}", found ${all.length}`)
    }
    return all.map((one) => ({ name: out.name, ...encoded(out, one) }))
  })
}

function encoded(out: Out, value: unknown): object {
  if (out.parts.length > 0) {
    if (!isObject(value)) throw badRequest(`Output parameter "${out.name}" must be an object`)
    return { part: parametersIn(out.parts, value) }
  }
  if (isResourceKind(out.type)) {
    requireKind(out, value)
    return { resource: value }
  }
  return { [`value${out.type.charAt(0).toUpperCase()}${out.type.slice(1)}`]: value }
}

function isResourceKind(type: string): boolean {
  return type === 'Resource' || type === 'Any' || isResourceType(type)
}

function requireKind({ name, type }: Out, value: unknown): void {
  const isKind = type === 'Resource' || type === 'Any'
  if (isResource(value) && (isKind || value.resourceType === type)) return
  throw badRequest(`Output parameter "${name}" is no ${isKind ? 'resource' : type}`)
}
