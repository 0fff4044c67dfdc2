/** Operations of a Project's own: an OperationDefinition that names the Bot which carries it out. */
import { may } from '../../access/policy.ts'
import { notFound } from '../../errors.ts'
import { isObject, parseReference, type Resource } from '../../fhir/resource.ts'
import { escapeValue } from '../../fhir/search-values.ts'
import { find } from '../../store/lookups.ts'
import type { Operation, OperationCall } from '../operation.ts'
import { execute } from './execute.ts'

const IMPLEMENTATION = 'operationDefinition-implementation'
const MOST_DEFINITIONS = 20

/** What the operation is given goes to the Bot as it is. Errors: 404 when no definition fits. */
export function customOperation(name: string): Operation {
  return {
    name,
    on: [{ level: 'system' }, { level: 'type' }, { level: 'instance' }],
    methods: execute.methods,
    ownFormat: true,
    async run(call) {
      const { services, principal } = call
      if (!may(principal, 'OperationDefinition', 'search')) throw notFound()
      const values = [escapeValue(name)]
      const condition = { code: 'code', type: 'token', modifier: undefined, values } as const
      const { repository } = services
      const type = 'OperationDefinition'
      const found = await find(repository, principal, type, [condition], MOST_DEFINITIONS)
      const bot = found.filter((item) => fits(item, call)).flatMap(botOf)[0]
      if (bot === undefined) throw notFound()
      return execute.run({ ...call, type: 'Bot', id: bot })
    },
  }
}

/** https://hl7.org/fhir/R4/operationdefinition-definitions.html#OperationDefinition.system */
function fits(definition: Resource, { type, id }: OperationCall): boolean {
  if (type === undefined) return definition.system === true
  const types = Array.isArray(definition.resource) ? definition.resource : []
  const isOfType = types.length === 0 || types.includes(type) || types.includes('Resource')
  return isOfType && definition[id === undefined ? 'type' : 'instance'] === true
}

function botOf({ extension }: Resource): string[] {
  const extensions = Array.isArray(extension) ? extension.filter(isObject) : []
  return extensions.flatMap(({ url, valueReference }) => {
    if (typeof url !== 'string' || !url.endsWith(`/${IMPLEMENTATION}`)) return []
    const text = isObject(valueReference) ? valueReference.reference : undefined
    const reference = typeof text === 'string' ? parseReference(text) : undefined
    return reference?.type === 'Bot' ? [reference.id] : []
  })
}
