/** Output types of the schema, made when they are first named. https://hl7.org/fhir/R4/graphql.html */

import {
  GraphQLBoolean,
  type GraphQLFieldConfig,
  type GraphQLFieldConfigMap,
  GraphQLList,
  type GraphQLNamedType,
  GraphQLNonNull,
  type GraphQLResolveInfo,
  type GraphQLScalarType,
  GraphQLString,
  GraphQLUnionType,
} from 'graphql'
import { shortText } from '../../fhir/definitions.ts'
import { isObject, isResource, type Resource, referenceTo } from '../../fhir/resource.ts'
import { pathText, sliceOf } from '../document/directives.ts'
import { listOf, textsOf } from '../lists.ts'
import { targetOf } from '../references.ts'
import type { GraphqlContext } from '../request-state.ts'
import { connectionOfReferring, listOfReferring } from '../resolvers.ts'
import { listArguments, reverseArguments } from './arguments.ts'
import {
  type Child,
  type Content,
  childrenOf,
  isKnownType,
  nameOf,
  type Place,
  placeNamed,
} from './elements.ts'
import { type Gate, LazyObject, listOfType } from './lazy.ts'
import { referringTo } from './reverse.ts'
import { Float, scalarOf } from './scalars.ts'

/** The types of one schema, by name; each is made once. */
export interface Parts {
  readonly gate: Gate
  readonly made: Map<string, GraphQLNamedType>
  /** Resource types that its callers may know of. */
  readonly resourceTypes: readonly string[]
}

type Field = GraphQLFieldConfig<unknown, GraphqlContext>
type Fields = GraphQLFieldConfigMap<unknown, GraphqlContext>

export function typeOf(parts: Parts, place: Place): LazyObject {
  return once(parts, nameOf(place), (name) => {
    return new LazyObject(parts.gate, {
      name,
      fields: () => fieldsOf(parts, place),
      describe: () => shortText(place.type, place.path),
    })
  })
}

/** An output type by its name, for fragments on what was not reached before. */
export function outputNamed(parts: Parts, name: string): GraphQLNamedType | undefined {
  const known = parts.made.get(name)
  if (known !== undefined) return known
  const of = /^(\w+?)Connection(Edge)?$/.exec(name)
  if (of?.[1] !== undefined && parts.resourceTypes.includes(of[1])) {
    return of[2] === undefined ? connectionOf(parts, of[1]) : edgeOf(parts, of[1])
  }
  if (isResourceLike(parts, name)) return typeOf(parts, { type: name, path: '' })
  const place = placeNamed(name)
  return place && typeOf(parts, place)
}

function isResourceLike({ resourceTypes }: Parts, name: string): boolean {
  if (resourceTypes.includes(name)) return true
  const content = childrenOf({ type: name, path: '' })
  return isKnownType(name) && content.length > 0 && !content.some(isOfResource)
}

const isOfResource = ({ name }: Child) => name === 'implicitRules'

/** Any resource. */
export function anyResource(parts: Parts): GraphQLUnionType {
  return once(parts, 'ResourceList', (name) => {
    return new GraphQLUnionType({
      name,
      types: () => parts.resourceTypes.map((type) => typeOf(parts, { type, path: '' })),
      resolveType: (value) => (isResource(value) ? value.resourceType : undefined),
    })
  })
}

/** https://hl7.org/fhir/R4/graphql.html#connection */
export function connectionOf(parts: Parts, type: string): LazyObject {
  return once(parts, `${type}Connection`, (name) => {
    const text = { type: GraphQLString }
    const number = { type: Float }
    return new LazyObject(parts.gate, {
      name,
      fields: () => ({
        count: number,
        offset: number,
        pageSize: number,
        pagesize: number,
        first: text,
        previous: text,
        next: text,
        last: text,
        edges: { type: listOfType(edgeOf(parts, type)) },
      }),
    })
  })
}

function edgeOf(parts: Parts, type: string): LazyObject {
  return once(parts, `${type}ConnectionEdge`, (name) => {
    return new LazyObject(parts.gate, {
      name,
      fields: () => ({
        mode: { type: GraphQLString },
        score: { type: Float },
        resource: { type: typeOf(parts, { type, path: '' }) },
      }),
    })
  })
}

export function once<T extends GraphQLNamedType>(
  { made }: Parts,
  name: string,
  make: (name: string) => T,
): T {
  const known = made.get(name)
  // A name is only ever asked for as one kind of type.
  if (known !== undefined) return known as T
  const type = make(name)
  made.set(name, type)
  return type
}

function fieldsOf(parts: Parts, place: Place): Fields {
  const fields: Fields = {}
  const isResourceType = place.path === '' && parts.resourceTypes.includes(place.type)
  if (isResourceType) fields.resourceType = { type: new GraphQLNonNull(GraphQLString) }
  for (const child of childrenOf(place)) {
    fields[child.name] = { ...fieldOf(parts, child), description: child.short }
    if (child.content.kind === 'primitive') fields[`_${child.name}`] = siblingOf(parts, child)
  }
  if (place.type === 'Reference') fields.resource = referenceField(parts)
  if (isResourceType) Object.assign(fields, reverseFields(parts, place.type))
  return fields
}

function fieldOf(parts: Parts, child: Child): Field {
  const { content, isList, name } = child
  const type = outputOf(parts, content)
  if (isList) {
    return {
      type: listOfType(type),
      args: listArguments(child),
      resolve: (source, given, context, info) => {
        const owner = ownerOf(context, source)
        const found = listOf(context, owner, memberOf(source, name), child, given)
        const slice = sliceOf(info)
        const turn = Array.isArray(found) ? context.levels.pace(found.length) : undefined
        // Most lists are at hand: without a promise each they take half the time.
        if (slice === undefined && turn === undefined && !(found instanceof Promise)) {
          return shown(context, owner, found)
        }
        return finishList(context, owner, child, { found, turn, slice, path: info.path })
      },
    }
  }
  if (content.kind === 'primitive') return { type, resolve: (source) => memberOf(source, name) }
  return {
    type,
    resolve: (source, _given, context) => {
      const value = memberOf(source, name)
      own(context, ownerOf(context, source), value)
      return value
    },
  }
}

interface UnfinishedList {
  readonly found: ReturnType<typeof listOf>
  readonly turn: Promise<void> | undefined
  readonly slice: string | undefined
  readonly path: GraphQLResolveInfo['path']
}

async function finishList(
  context: GraphqlContext,
  owner: Resource | undefined,
  child: Child,
  { found, turn, slice, path }: UnfinishedList,
): Promise<readonly unknown[] | null> {
  const [items] = await Promise.all([found, turn])
  const list = shown(context, owner, items)
  if (slice === undefined || list === null) return list
  context.slices.set(pathText(path), await textsOf(context, owner, list, child, slice))
  return list
}

/** In a list of primitives null stands for one that has extensions only. */
function shown(
  context: GraphqlContext,
  owner: Resource | undefined,
  items: readonly unknown[] | null,
): readonly unknown[] | null {
  for (const item of items ?? []) own(context, owner, item)
  return items?.filter((item) => item !== null) ?? null
}

/** `_birthDate`: id and extensions of a primitive. https://hl7.org/fhir/R4/json.html#primitive */
function siblingOf(parts: Parts, { name, isList }: Child): Field {
  const element = typeOf(parts, { type: 'Element', path: '' })
  return {
    type: isList ? new GraphQLList(element) : element,
    resolve: (source, _given, context) => {
      const value = memberOf(source, `_${name}`)
      for (const item of Array.isArray(value) ? value : [value]) {
        own(context, ownerOf(context, source), item)
      }
      return value
    },
  }
}

function outputOf(
  parts: Parts,
  content: Content,
): GraphQLScalarType | LazyObject | GraphQLUnionType {
  switch (content.kind) {
    case 'primitive':
      return scalarOf(content.code)
    case 'object':
      return typeOf(parts, content.place)
    case 'resource':
      return anyResource(parts)
    default:
      return content satisfies never
  }
}

function referenceField(parts: Parts): Field {
  return {
    type: anyResource(parts),
    args: { optional: { type: GraphQLBoolean }, type: { type: GraphQLString } },
    resolve: (source, given, context) => targetOf(context, source, given),
  }
}

function reverseFields(parts: Parts, target: string): Fields {
  const fields: Fields = {}
  for (const { type, codes, isNamed } of referringTo(target)) {
    if (!parts.resourceTypes.includes(type)) continue
    const args = reverseArguments(type, codes, !isNamed)
    const resource = typeOf(parts, { type, path: '' })
    fields[`${type}List`] = {
      type: listOfType(resource),
      args,
      resolve: (source, given, context) => {
        const reference = referenceOf(context, source)
        return reference && listOfReferring(context, type, reference, given)
      },
    }
    if (!isNamed) continue
    fields[`${type}Connection`] = {
      type: connectionOf(parts, type),
      args,
      resolve: (source, given, context, info) => {
        const reference = referenceOf(context, source)
        return reference && connectionOfReferring(context, type, reference, given, info)
      },
    }
  }
  return fields
}

/** Null for a contained resource, which has no address of its own. */
function referenceOf({ owners }: GraphqlContext, source: unknown): string | null {
  return isResource(source) && owners.get(source) === source ? referenceTo(source) : null
}

function memberOf(source: unknown, name: string): unknown {
  return isObject(source) ? (source[name] ?? null) : null
}

function ownerOf({ owners }: GraphqlContext, source: unknown): Resource | undefined {
  return isObject(source) ? owners.get(source) : undefined
}

function own({ owners }: GraphqlContext, owner: Resource | undefined, value: unknown): void {
  if (owner !== undefined && isObject(value)) owners.set(value, owner)
}
