/** A Bot's answer → the out parameters of the operation that it carries out. https://hl7.org/fhir/R4/operations.html#response */
import { badRequest } from '../errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { isObject, isResource, type Resource } from '../fhir/resource.ts'

interface Out {
  readonly name: string
  readonly type: string
  readonly min: number
  readonly max: number
  readonly parts: readonly Out[]
}

/** Undefined for an operation that declares no output: the answer stays as it is. Errors: 400 where it does not fit. */
export function outputOf(definition: Resource, value: unknown): unknown {
  const outs = outsOf(definition.parameter, true)
  const [only, second] = outs
  if (only === undefined || (isResource(value) && value.resourceType === 'Parameters')) {
    return undefined
  }
  if (only.name === 'return' && second === undefined) {
    if (!isResourceKind(only.type)) return parametersOf(outs, { return: value })
    requireKind(only, value)
    return value
  }
  if (!isObject(value)) throw badRequest('The answer of the Bot is no object of output parameters')
  return parametersOf(outs, value)
}

function outsOf(list: unknown, isTop: boolean): readonly Out[] {
  return (Array.isArray(list) ? list : []).filter(isObject).flatMap((item) => {
    const { use, name, type, min, max, part } = item
    if (typeof name !== 'string' || (isTop && use !== 'out')) return []
    return {
      name,
      type: typeof type === 'string' ? type : '',
      min: Number(min) || 0,
      max: max === '*' ? Number.POSITIVE_INFINITY : Number(max) || 1,
      parts: outsOf(part, false),
    }
  })
}

function parametersOf(outs: readonly Out[], values: Record<string, unknown>): object {
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
    if (!isObject(value)) throw badRequest(`Output parameter "${out.name}" is no object`)
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
