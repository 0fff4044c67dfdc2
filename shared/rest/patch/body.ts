/** The three forms of a patch: JSON Patch, FHIRPath Patch, and JSON Patch as a Parameters resource. */
import { badRequest } from '../../errors.ts'
import { parseBody } from '../../fhir/json.ts'
import { isResource, type Resource } from '../../fhir/resource.ts'
import { applyFhirPathPatch, operationsOf, type Parts, readFhirPathPatch } from './fhirpath.ts'
import { applyPatch, readPatch } from './patch.ts'

/** Compiles a patch into a function on the current resource. Errors: 400, here and there. */
export function changeOf(body: unknown): (resource: Resource) => Resource {
  if (!isResource(body) || body.resourceType !== 'Parameters') {
    const operations = readPatch(body)
    return (resource) => applyPatch(resource, operations)
  }
  const parameters = operationsOf(body)
  if (parameters.some((parts) => parts.has('op'))) {
    const operations = readPatch(parameters.map(jsonOperation))
    return (resource) => applyPatch(resource, operations)
  }
  const operations = readFhirPathPatch(parameters)
  return (resource) => applyFhirPathPatch(resource, operations)
}

/** The form of the Medplum SDK: parts `op`, `path`, `from`, and `value` as JSON in a text. */
function jsonOperation(parts: Parts): Record<string, unknown> {
  const operation: Record<string, unknown> = {}
  for (const [name, part] of parts) {
    const text = part.valueString ?? part.valueCode
    operation[name] = name === 'value' && typeof text === 'string' ? parseValue(text) : text
  }
  return operation
}

function parseValue(text: string): unknown {
  try {
    return parseBody(text)
  } catch {
    throw badRequest('The value of a patch operation must be JSON')
  }
}
