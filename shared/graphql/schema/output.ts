/** Output types, built on demand. https://hl7.org/fhir/R4/graphql.html */

import {
  GraphQLBoolean,
  type GraphQLFieldConfig,
  type GraphQLFieldConfigMap,
  GraphQLList,
  type GraphQLNamedType,
  GraphQLNonNull,
  type GraphQLOutputType,
  type GraphQLScalarType,
  GraphQLString,
  GraphQLUnionType,
} from 'graphql'
import { getOrInsert } from '../../core/cache.ts'
import { resourceTypes, searchParameters, shortText } from '../../fhir/definitions.ts'
import { openOnce } from '../../fhir/definitions-data.ts'
import { isResource } from '../../fhir/resource.ts'
import { listArguments, reverseArguments } from './arguments.ts'
import {
  type Child,
  type Content,
  Float,
  findBackbonePlace,
  graphqlTypeName,
  isKnownType,
  listChildren,
  type Place,
  type Source,
  scalarType,
  withSource,
} from './elements.ts'
import { type Gate, LazyObject, listOfType } from './lazy.ts'

/** Types of one schema by name; each is built once. */
export interface Parts {
  readonly gate: Gate
  readonly made: Map<string, GraphQLNamedType>
  /** Resource types visible to the audience. */
  readonly resourceTypes: readonly string[]
}

type Field = GraphQLFieldConfig<unknown, unknown>
type Fields = GraphQLFieldConfigMap<unknown, unknown>

export function objectType(parts: Parts, place: Place): LazyObject {
  return once(parts, graphqlTypeName(place), (name) => {
    return new LazyObject(parts.gate, {
      name,
      fields: () => outputFields(parts, place),
      describe: () => shortText(place.type, place.path),
    })
  })
}

export function outputNamed(parts: Parts, name: string): GraphQLNamedType | undefined {
  const known = parts.made.get(name)
  if (known !== undefined) return known
  const of = /^(\w+?)Connection(Edge)?$/.exec(name)
  if (of?.[1] !== undefined && parts.resourceTypes.includes(of[1])) {
    return of[2] === undefined ? connectionType(parts, of[1]) : edgeType(parts, of[1])
  }
  if (isResourceLike(parts, name)) return objectType(parts, { type: name, path: '' })
  const place = findBackbonePlace(name)
  return place && objectType(parts, place)
}

function isResourceLike({ resourceTypes }: Parts, name: string): boolean {
  if (resourceTypes.includes(name)) return true
  const content = listChildren({ type: name, path: '' })
  return isKnownType(name) && content.length > 0 && !content.some(isOfResource)
}

const isOfResource = ({ name }: Child) => name === 'implicitRules'

export function anyResource(parts: Parts): GraphQLUnionType {
  return once(parts, 'ResourceList', (name) => {
    return new GraphQLUnionType({
      name,
      types: () => parts.resourceTypes.map((type) => objectType(parts, { type, path: '' })),
      resolveType: (value) => (isResource(value) ? value.resourceType : undefined),
    })
  })
}

/** https://hl7.org/fhir/R4/graphql.html#connection */
function connectionType(parts: Parts, type: string): LazyObject {
  return once(parts, `${type}Connection`, (name) => {
    const member = (type: GraphQLOutputType) => (name: string) =>
      [name, { type, ...withSource({ kind: 'member', name }) }] as const
    return new LazyObject(parts.gate, {
      name,
      fields: () =>
        Object.fromEntries([
          ...['count', 'offset', 'pageSize', 'pagesize'].map(member(Float)),
          ...['first', 'previous', 'next', 'last'].map(member(GraphQLString)),
          member(listOfType(edgeType(parts, type)))('edges'),
        ]),
    })
  })
}

function edgeType(parts: Parts, type: string): LazyObject {
  return once(parts, `${type}ConnectionEdge`, (name) => {
    return new LazyObject(parts.gate, {
      name,
      fields: () => ({
        mode: { type: GraphQLString, ...withSource({ kind: 'member', name: 'mode' }) },
        score: { type: Float, ...withSource({ kind: 'member', name: 'score' }) },
        resource: { type: objectType(parts, { type, path: '' }), ...withSource({ kind: 'edge' }) },
      }),
    })
  })
}

export function once<T extends GraphQLNamedType>(
  { made }: Parts,
  name: string,
  make: (name: string) => T,
): T {
  // Each name has only one kind of type.
  return getOrInsert(made, name, () => make(name)) as T
}

const RESOURCE_TYPE: Field = {
  type: new GraphQLNonNull(GraphQLString),
  ...withSource({ kind: 'member', name: 'resourceType' }),
}

function outputFields(parts: Parts, place: Place): Fields {
  const fields: Fields = {}
  const isResourceType = place.path === '' && parts.resourceTypes.includes(place.type)
  if (isResourceType) fields.resourceType = RESOURCE_TYPE
  for (const child of listChildren(place)) {
    fields[child.name] = { ...outputField(parts, child), description: child.short }
    if (child.content.kind === 'primitive')
      fields[`_${child.name}`] = primitiveSibling(parts, child)
  }
  if (place.type === 'Reference') fields.resource = referenceField(parts)
  if (isResourceType) Object.assign(fields, reverseFields(parts, place.type))
  return fields
}

function outputField(parts: Parts, child: Child): Field {
  const { content, isList, name } = child
  const type = outputType(parts, content)
  if (!isList) return { type, ...withSource({ kind: 'member', name }) }
  return {
    type: listOfType(type),
    args: listArguments(child),
    ...withSource({ kind: 'list', child }),
  }
}

/** `_birthDate`: id and extensions of a primitive. https://hl7.org/fhir/R4/json.html#primitive */
function primitiveSibling(parts: Parts, { name, isList }: Child): Field {
  const element = objectType(parts, { type: 'Element', path: '' })
  const type = isList ? new GraphQLList(element) : element
  return { type, ...withSource({ kind: 'member', name: `_${name}` }) }
}

function outputType(
  parts: Parts,
  content: Content,
): GraphQLScalarType | LazyObject | GraphQLUnionType {
  switch (content.kind) {
    case 'primitive':
      return scalarType(content.code)
    case 'object':
      return objectType(parts, content.place)
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
    ...withSource({ kind: 'reference' }),
  }
}

function reverseFields(parts: Parts, target: string): Fields {
  const fields: Fields = {}
  for (const { type, codes, isNamed } of referringTo(target)) {
    if (!parts.resourceTypes.includes(type)) continue
    const args = reverseArguments(type, codes, !isNamed)
    const list = { kind: 'referring', type, isConnection: false } as const
    fields[`${type}List`] = listField(parts, list, args)
    if (!isNamed) continue
    fields[`${type}Connection`] = listField(parts, { ...list, isConnection: true }, args)
  }
  return fields
}

export function listField(
  parts: Parts,
  source: Extract<Source, { readonly isConnection: boolean }>,
  args: Field['args'],
): Field {
  const { type, isConnection } = source
  const found = isConnection
    ? connectionType(parts, type)
    : listOfType(objectType(parts, { type, path: '' }))
  return { type: found, args, ...withSource(source) }
}

interface Referring {
  readonly type: string
  readonly codes: readonly string[]
  /** True if one names the target explicitly; the others allow any type. */
  readonly isNamed: boolean
}

/** Returns the types with a reference parameter that can point at `target`. */
function referringTo(target: string): readonly Referring[] {
  const { byTarget, toAny } = parameters()
  const named = byTarget.get(target)
  return [...new Set([...(named?.keys() ?? []), ...toAny.keys()])].map((type) => {
    const codes = [...(named?.get(type) ?? []), ...(toAny.get(type) ?? [])]
    return { type, codes, isNamed: named?.has(type) === true }
  })
}

type Codes = Map<string, string[]>

/** Referring types and codes, for each target and for parameters with any target. */
const parameters = openOnce(() => {
  const byTarget = new Map<string, Codes>()
  const toAny: Codes = new Map()
  for (const type of resourceTypes) {
    if (type === 'Binary') continue
    for (const { type: kind, code, targets } of searchParameters(type).values()) {
      if (kind !== 'reference' || code.startsWith('_')) continue
      if (targets === undefined) add(toAny, type, code)
      for (const target of targets ?? []) {
        const byType = getOrInsert(byTarget, target, () => new Map())
        add(byType, type, code)
      }
    }
  }
  return { byTarget, toAny }
})

function add(codes: Codes, type: string, code: string): void {
  getOrInsert(codes, type, () => []).push(code)
}
