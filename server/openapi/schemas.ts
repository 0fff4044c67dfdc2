/**
 * JSON Schemas of all resource and data types, of the definitions of the standard. Elements that a policy hides may be
 * missing from any answer, so only what identifies a resource is required.
 */
import { resourceTypes, shortText, typeDefinition } from '../../shared/fhir/definitions.ts'
import {
  type Child,
  childrenOf,
  nameOf,
  type Place,
  placeNamed,
} from '../../shared/graphql/schema/elements.ts'
import { ownTurn } from '../../shared/platform/event-loop-turns.ts'

export type Schema = Readonly<Record<string, unknown>>

export function refTo(name: string): Schema {
  return { $ref: `#/components/schemas/${name}` }
}

/** By name: `Patient`, `PatientContact`, `HumanName`, and `Resource` for any. Takes several turns of the event loop. */
export async function resourceSchemas(): Promise<Record<string, Schema>> {
  const schemas: Record<string, Schema> = {
    Resource: {
      oneOf: resourceTypes.map(refTo),
      discriminator: { propertyName: 'resourceType' },
    },
  }
  const waiting = [...resourceTypes]
  for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
    if (schemas[name] !== undefined) continue
    await ownTurn()
    const place = typeDefinition(name) ? { type: name, path: '' } : placeNamed(name)
    if (place === undefined) throw new Error(`No type "${name}"`)
    const children = childrenOf(place)
    schemas[name] = schemaOf(place, children)
    for (const { content } of children) {
      if (content.kind === 'object') waiting.push(nameOf(content.place))
    }
  }
  return schemas
}

function schemaOf({ type, path }: Place, children: readonly Child[]): Schema {
  const isResource = path === '' && typeDefinition(type)?.kind === 'resource'
  const description = shortText(type, path)
  const properties = Object.fromEntries(children.map((child) => [child.name, propertyOf(child)]))
  return {
    type: 'object',
    ...(description === undefined ? {} : { description }),
    ...(isResource ? { required: ['resourceType'] } : {}),
    properties: { ...(isResource ? { resourceType: { const: type } } : {}), ...properties },
  }
}

function propertyOf({ content, isList, short }: Child): Schema {
  const one = contentSchema(content)
  const described = short === undefined ? {} : { description: short }
  return isList ? { type: 'array', items: one, ...described } : { ...one, ...described }
}

const NUMBERS: ReadonlyMap<string, string> = new Map([
  ['integer', 'integer'],
  ['positiveInt', 'integer'],
  ['unsignedInt', 'integer'],
  ['decimal', 'number'],
  ['boolean', 'boolean'],
])

function contentSchema(content: Child['content']): Schema {
  if (content.kind === 'resource') return refTo('Resource')
  if (content.kind === 'object') return refTo(nameOf(content.place))
  return { type: NUMBERS.get(content.code) ?? 'string' }
}
