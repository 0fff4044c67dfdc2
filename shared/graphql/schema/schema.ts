/** One schema per kind of caller and root, built at the first query. */

import {
  DirectiveLocation,
  GraphQLBoolean,
  GraphQLDirective,
  type GraphQLFieldConfigMap,
  GraphQLID,
  type GraphQLInputFieldConfigMap,
  type GraphQLInputObjectType,
  type GraphQLInputType,
  GraphQLInt,
  GraphQLList,
  type GraphQLNamedType,
  GraphQLNonNull,
  type GraphQLSchemaConfig,
  GraphQLString,
  specifiedDirectives,
} from 'graphql'
import { SUPER_ADMIN_ONLY } from '../../access/policy.ts'
import { getOrInsert } from '../../core/cache.ts'
import { resourceTypes } from '../../fhir/definitions.ts'
import { type Arguments, searchArguments } from './arguments.ts'
import {
  type Content,
  Float,
  graphqlTypeName,
  listChildren,
  type Place,
  scalarType,
  type WriteAction,
  withSource,
} from './elements.ts'
import { LazyInput, LazyObject, LazySchema, listOfType } from './lazy.ts'
import { anyResource, listField, objectType, once, outputNamed, type Parts } from './output.ts'

const onFields = (name: string, args = {}) =>
  new GraphQLDirective({ name, locations: [DirectiveLocation.FIELD], args })

const text = { type: GraphQLString }

const directives: readonly GraphQLDirective[] = [
  ...specifiedDirectives,
  onFields('first'),
  onFields('flatten'),
  onFields('singleton'),
  onFields('slice', { fhirpath: text, path: text }),
]

type Fields = GraphQLFieldConfigMap<unknown, unknown>

/** `instance`: type of the root resource. */
interface Audience {
  readonly isSuperAdmin: boolean
  readonly instance: string | undefined
}

export function audienceName({ isSuperAdmin, instance = '' }: Audience): string {
  return `${isSuperAdmin ? 'super' : 'member'} ${instance}`
}

export function schemaFor(audience: Audience): LazySchema {
  const { isSuperAdmin, instance } = audience
  const name = audienceName(audience)
  return getOrInsert(schemas, name, () => {
    const parts = getOrInsert(shared, isSuperAdmin, () => partsFor(isSuperAdmin))
    const find = (wanted: string) => outputNamed(parts, wanted) ?? inputNamed(parts, wanted)
    parts.gate.isOpen = false
    const schema = new LazySchema(schemaConfig(parts, instance), find)
    parts.gate.isOpen = true
    return schema
  })
}

const schemas = new Map<string, LazySchema>()
const shared = new Map<boolean, Parts>()

function partsFor(isSuperAdmin: boolean): Parts {
  const types = resourceTypes.filter((type) => isSuperAdmin || !SUPER_ADMIN_ONLY.has(type))
  const gate = { isOpen: false }
  return { gate, made: new Map<string, GraphQLNamedType>(), resourceTypes: types }
}

function schemaConfig(parts: Parts, instance: string | undefined): GraphQLSchemaConfig {
  const query =
    instance === undefined
      ? new LazyObject(parts.gate, { name: 'Query', fields: () => queryFields(parts) })
      : objectType(parts, { type: instance, path: '' })
  return {
    assumeValid: true,
    query,
    ...(instance === undefined
      ? {
          mutation: new LazyObject(parts.gate, {
            name: 'Mutation',
            fields: () => mutationFields(parts),
          }),
        }
      : {}),
    types: [anyResource(parts), Float, GraphQLBoolean, GraphQLID, GraphQLInt, GraphQLString],
    directives,
  }
}

function queryFields(parts: Parts): Fields {
  const fields: Fields = {}
  for (const type of parts.resourceTypes) {
    const resource = objectType(parts, { type, path: '' })
    const id = { type: new GraphQLNonNull(GraphQLID) }
    fields[type] = { type: resource, args: { id }, ...withSource({ kind: 'read', type }) }
    if (type === 'Binary') continue
    const args = searchArguments(type)
    const list = { kind: 'search', type, isConnection: false } as const
    fields[`${type}List`] = listField(parts, list, args)
    fields[`${type}Connection`] = listField(parts, { ...list, isConnection: true }, args)
  }
  return fields
}

function mutationFields(parts: Parts): Fields {
  const id = { type: new GraphQLNonNull(GraphQLID) }
  const fields: Fields = {}
  for (const type of parts.resourceTypes) {
    const resource = objectType(parts, { type, path: '' })
    const write = (action: WriteAction, args: Arguments) => ({
      type: resource,
      args,
      ...withSource({ kind: 'write', type, action }),
    })
    const res = (action: 'Create' | 'Update') => ({
      type: new GraphQLNonNull(resourceInput(parts, type, action)),
    })
    const operations = new GraphQLNonNull(listOfType(patchInput(parts)))
    fields[`${type}Create`] = write('create', { res: res('Create') })
    fields[`${type}Update`] = write('update', { id, res: res('Update') })
    fields[`${type}Patch`] = write('patch', { id, patch: { type: operations } })
    fields[`${type}Delete`] = write('delete', { id })
  }
  return fields
}

// Input types of mutations: like the output types, except for elements that hold any resource.

function resourceInput(
  parts: Parts,
  type: string,
  action: 'Create' | 'Update',
): GraphQLInputObjectType {
  return once(parts, `${type}${action}`, (name) => {
    return new LazyInput(parts.gate, {
      name,
      fields: () => {
        const fields = inputFields(parts, { type, path: '' })
        const json = { type: listOfType(GraphQLString) }
        return { resourceType: { type: GraphQLString }, ...fields, containedJson: json }
      },
    })
  })
}

function patchInput(parts: Parts): GraphQLInputObjectType {
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

function inputNamed(parts: Parts, name: string): GraphQLInputObjectType | undefined {
  if (name === 'PatchOperationInput') return patchInput(parts)
  const [, type = '', action] = /^(\w+?)(Create|Update)$/.exec(name) ?? []
  if (action === undefined || !parts.resourceTypes.includes(type)) return undefined
  return resourceInput(parts, type, action === 'Create' ? 'Create' : 'Update')
}

function elementInput(parts: Parts, place: Place): GraphQLInputObjectType {
  // With an underscore, since StructureMap.group has an element `input`.
  return once(parts, `${graphqlTypeName(place)}_Input`, (name) => {
    return new LazyInput(parts.gate, { name, fields: () => inputFields(parts, place) })
  })
}

function inputFields(parts: Parts, place: Place): GraphQLInputFieldConfigMap {
  const fields: GraphQLInputFieldConfigMap = {}
  for (const { name, content, isList, short } of listChildren(place)) {
    const type = inputType(parts, content)
    if (type === undefined) continue
    fields[name] = { type: isList ? new GraphQLList(type) : type, description: short }
    if (content.kind !== 'primitive') continue
    const element = elementInput(parts, { type: 'Element', path: '' })
    fields[`_${name}`] = { type: isList ? new GraphQLList(element) : element }
  }
  return fields
}

function inputType(parts: Parts, content: Content): GraphQLInputType | undefined {
  switch (content.kind) {
    case 'primitive':
      return scalarType(content.code)
    case 'object':
      return elementInput(parts, content.place)
    case 'resource':
      return undefined
    default:
      return content satisfies never
  }
}
