/** Operations of a Project's own: an OperationDefinition that names the Bot which carries it out. */
import { may } from '../access/policy.ts'
import { notFound } from '../errors.ts'
import { parseJson } from '../fhir/json.ts'
import { isObject, isResource, parseReference, type Resource } from '../fhir/resource.ts'
import { escapeValue } from '../query/values.ts'
import type { Operation, OperationCall } from '../request/operation.ts'
import { FHIR_JSON, jsonReply } from '../request/reply.ts'
import type { FhirReply } from '../request/request.ts'
import { find } from '../store/rows/lookups.ts'
import { outputOf } from './custom-output.ts'
import { execute } from './execute.ts'

const IMPLEMENTATION = 'operationDefinition-implementation'
const MOST_DEFINITIONS = 20

/** Hands the operation's input to the Bot as it is. Errors: 404 when no definition fits. */
export function customOperation(name: string): Operation {
  return {
    name,
    on: [{ level: 'system' }, { level: 'type' }, { level: 'instance' }],
    methods: execute.methods,
    acts: true,
    ownFormat: true,
    async run(call) {
      const { services, principal } = call
      if (!may(principal, 'OperationDefinition', 'search')) throw notFound()
      const values = [escapeValue(name)]
      const condition = { code: 'code', type: 'token', modifier: undefined, values } as const
      const { repository } = services
      const type = 'OperationDefinition'
      const found = await find(repository, principal, type, {
        conditions: [condition],
        count: MOST_DEFINITIONS,
      })
      const fitting = found.filter((item) => fits(item, call) && botOf(item) !== undefined)
      const [definition] = fitting
      if (definition === undefined) throw notFound()
      const reply = await execute.run({ ...call, type: 'Bot', id: botOf(definition) })
      return withOutput(definition, reply)
    },
  }
}

/** A failure, a 202 or an outcome goes out as it is. Errors: 400 for an answer that does not fit. */
function withOutput(definition: Resource, reply: FhirReply): FhirReply {
  if (reply.status !== 200 || typeof reply.body !== 'string') return reply
  const isJson = reply.headers['Content-Type']?.includes('json') === true
  const value = isJson ? parseJson(reply.body) : reply.body
  if (isResource(value) && value.resourceType === 'OperationOutcome') return reply
  const output = outputOf(definition, value)
  if (output === undefined) return reply
  return jsonReply(200, output, { ...reply.headers, 'Content-Type': FHIR_JSON })
}

/**
 * https://hl7.org/fhir/R4/operationdefinition-definitions.html#OperationDefinition.system; what is retired
 * "should no longer be used": https://hl7.org/fhir/R4/codesystem-publication-status.html
 */
function fits(definition: Resource, { type, id }: OperationCall): boolean {
  if (definition.status === 'retired') return false
  if (type === undefined) return definition.system === true
  const types = Array.isArray(definition.resource) ? definition.resource : []
  const isOfType = types.length === 0 || types.includes(type) || types.includes('Resource')
  return isOfType && definition[id === undefined ? 'type' : 'instance'] === true
}

function botOf({ extension }: Resource): string | undefined {
  const extensions = Array.isArray(extension) ? extension.filter(isObject) : []
  const bots = extensions.flatMap(({ url, valueReference }) => {
    if (typeof url !== 'string' || !url.endsWith(`/${IMPLEMENTATION}`)) return []
    const text = isObject(valueReference) ? valueReference.reference : undefined
    const reference = typeof text === 'string' ? parseReference(text) : undefined
    return reference?.type === 'Bot' ? [reference.id] : []
  })
  return bots[0]
}
