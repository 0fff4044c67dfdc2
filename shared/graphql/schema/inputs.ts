/** Input types of mutations: as the output types, but for what may be any resource. */
import {
  GraphQLBoolean,
  type GraphQLInputFieldConfigMap,
  type GraphQLInputObjectType,
  type GraphQLInputType,
  GraphQLList,
  GraphQLNonNull,
  GraphQLString,
} from 'graphql'
import { type Content, childrenOf, nameOf, type Place, scalarOf } from './elements.ts'
import { LazyInput, listOfType } from './lazy.ts'
import { once, type Parts } from './output.ts'

/** `PatientCreate` or `PatientUpdate`. */
export function resourceInput(
  parts: Parts,
  type: string,
  action: 'Create' | 'Update',
): GraphQLInputObjectType {
  return once(parts, `${type}${action}`, (name) => {
    return new LazyInput(parts.gate, {
      name,
      fields: () => {
        const fields = fieldsOf(parts, { type, path: '' })
        const json = { type: listOfType(GraphQLString) }
        return { resourceType: { type: GraphQLString }, ...fields, containedJson: json }
      },
    })
  })
}

export function patchInput(parts: Parts): GraphQLInputObjectType {
  return once(parts, 'PatchOperationInput', (name) => {
    const text = { type: GraphQLString }
    const required = { type: new GraphQLNonNull(GraphQLString) }
    return new LazyInput(parts.gate, {
      name,
      fields: {
        op: required,
        path: required,
        value: text,
        from: text,
        valueJson: { type: GraphQLBoolean, description: 'The value is JSON text' },
      },
    })
  })
}

/** An input type by its name, for variables. */
export function inputNamed(parts: Parts, name: string): GraphQLInputObjectType | undefined {
  if (name === 'PatchOperationInput') return patchInput(parts)
  const [, type = '', action] = /^(\w+?)(Create|Update)$/.exec(name) ?? []
  if (action === undefined || !parts.resourceTypes.includes(type)) return undefined
  return resourceInput(parts, type, action === 'Create' ? 'Create' : 'Update')
}

function elementInput(parts: Parts, place: Place): GraphQLInputObjectType {
  // With a sign between: StructureMap.group has an element `input`.
  return once(parts, `${nameOf(place)}_Input`, (name) => {
    return new LazyInput(parts.gate, { name, fields: () => fieldsOf(parts, place) })
  })
}

function fieldsOf(parts: Parts, place: Place): GraphQLInputFieldConfigMap {
  const fields: GraphQLInputFieldConfigMap = {}
  for (const { name, content, isList, short } of childrenOf(place)) {
    const type = inputOf(parts, content)
    if (type === undefined) continue
    fields[name] = { type: isList ? new GraphQLList(type) : type, description: short }
    if (content.kind !== 'primitive') continue
    const element = elementInput(parts, { type: 'Element', path: '' })
    fields[`_${name}`] = { type: isList ? new GraphQLList(element) : element }
  }
  return fields
}

function inputOf(parts: Parts, content: Content): GraphQLInputType | undefined {
  switch (content.kind) {
    case 'primitive':
      return scalarOf(content.code)
    case 'object':
      return elementInput(parts, content.place)
    case 'resource':
      return undefined
    default:
      return content satisfies never
  }
}
