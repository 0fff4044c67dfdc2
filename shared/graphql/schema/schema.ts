/** The schemas: one for each kind of caller and root, made at their first query. */
import {
  GraphQLBoolean,
  type GraphQLFieldConfigMap,
  GraphQLID,
  GraphQLInt,
  type GraphQLNamedType,
  GraphQLNonNull,
  type GraphQLSchemaConfig,
  GraphQLString,
} from 'graphql'
import { resourceTypes } from '../../fhir/definitions.ts'
import { read } from '../context.ts'
import { directives } from '../document/directives.ts'
import { create, del, patch, update } from '../mutations.ts'
import type { GraphqlContext } from '../request-state.ts'
import { connectionRoot, listRoot } from '../resolvers.ts'
import { searchArguments } from './arguments.ts'
import { inputNamed, patchInput, resourceInput } from './inputs.ts'
import { LazyObject, LazySchema, listOfType } from './lazy.ts'
import { anyResource, connectionOf, outputNamed, type Parts, typeOf } from './output.ts'
import { Float } from './scalars.ts'

type Fields = GraphQLFieldConfigMap<unknown, GraphqlContext>

const SUPER_ADMIN_ONLY: ReadonlySet<string> = new Set([
  'DomainConfiguration',
  'JsonWebKey',
  'Login',
])

/** `instance`: the resource type that is the root of the document. */
export interface Audience {
  readonly isSuperAdmin: boolean
  readonly instance: string | undefined
}

export function audienceName({ isSuperAdmin, instance = '' }: Audience): string {
  return `${isSuperAdmin ? 'super' : 'member'} ${instance}`
}

/** Types are made when a query names them: 10 ms instead of a second. */
export function schemaFor(audience: Audience): LazySchema {
  const { isSuperAdmin, instance } = audience
  const name = audienceName(audience)
  const known = schemas.get(name)
  if (known !== undefined) return known
  const parts = shared.get(isSuperAdmin) ?? partsFor(isSuperAdmin)
  shared.set(isSuperAdmin, parts)
  const find = (wanted: string) => outputNamed(parts, wanted) ?? inputNamed(parts, wanted)
  parts.gate.isOpen = false
  const schema = new LazySchema(configOf(parts, instance), find)
  parts.gate.isOpen = true
  schemas.set(name, schema)
  return schema
}

const schemas = new Map<string, LazySchema>()
const shared = new Map<boolean, Parts>()

function partsFor(isSuperAdmin: boolean): Parts {
  const types = resourceTypes.filter((type) => isSuperAdmin || !SUPER_ADMIN_ONLY.has(type))
  const gate = { isOpen: false }
  return { gate, made: new Map<string, GraphQLNamedType>(), resourceTypes: types }
}

function configOf(parts: Parts, instance: string | undefined): GraphQLSchemaConfig {
  const query =
    instance === undefined
      ? new LazyObject(parts.gate, { name: 'Query', fields: () => queryFields(parts) })
      : typeOf(parts, { type: instance, path: '' })
  return {
    assumeValid: true,
    query,
    ...(instance === undefined ? { mutation: mutationType(parts) } : {}),
    types: [anyResource(parts), Float, GraphQLBoolean, GraphQLID, GraphQLInt, GraphQLString],
    directives,
  }
}

function queryFields(parts: Parts): Fields {
  const fields: Fields = {}
  for (const type of parts.resourceTypes) {
    const resource = typeOf(parts, { type, path: '' })
    fields[type] = {
      type: resource,
      args: { id: { type: new GraphQLNonNull(GraphQLID) } },
      resolve: (_source, { id }, context) => read(context, type, id),
    }
    if (type === 'Binary') continue
    const args = searchArguments(type)
    fields[`${type}List`] = {
      type: listOfType(resource),
      args,
      resolve: (_source, given, context) => listRoot(context, type, given),
    }
    fields[`${type}Connection`] = {
      type: connectionOf(parts, type),
      args,
      resolve: (_source, given, context, info) => connectionRoot(context, type, given, info),
    }
  }
  return fields
}

function mutationType(parts: Parts): LazyObject {
  return new LazyObject(parts.gate, { name: 'Mutation', fields: () => mutationFields(parts) })
}

function mutationFields(parts: Parts): Fields {
  const id = { type: new GraphQLNonNull(GraphQLID) }
  const fields: Fields = {}
  for (const type of parts.resourceTypes) {
    const resource = typeOf(parts, { type, path: '' })
    const res = (action: 'Create' | 'Update') => ({
      type: new GraphQLNonNull(resourceInput(parts, type, action)),
    })
    const operations = listOfType(patchInput(parts))
    fields[`${type}Create`] = {
      type: resource,
      args: { res: res('Create') },
      resolve: (_source, given, context) => create(context, type, given),
    }
    fields[`${type}Update`] = {
      type: resource,
      args: { id, res: res('Update') },
      resolve: (_source, given, context) => update(context, type, given),
    }
    fields[`${type}Patch`] = {
      type: resource,
      args: { id, patch: { type: new GraphQLNonNull(operations) } },
      resolve: (_source, given, context) => patch(context, type, given),
    }
    fields[`${type}Delete`] = {
      type: resource,
      args: { id },
      resolve: (_source, given, context) => del(context, type, given),
    }
  }
  return fields
}
