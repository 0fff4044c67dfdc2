/** Elements of the definitions as fields: one a type of a choice, with the GraphQL name or scalar of what is inside. */
import {
  GraphQLBoolean,
  type GraphQLField,
  GraphQLFloat,
  GraphQLID,
  GraphQLScalarType,
  GraphQLString,
  Kind,
} from 'graphql'
import { shortText, typeDefinition, typeElements } from '../../fhir/definitions.ts'
import { type ElementDefinition, openOnce } from '../../fhir/definitions-data.ts'
import { Decimal, isDecimal } from '../../fhir/json.ts'

/** A type, or the backbone element at a path below it. */
export interface Place {
  readonly type: string
  /** Empty for the type itself. */
  readonly path: string
}

export type Content =
  | { readonly kind: 'primitive'; readonly code: string }
  | { readonly kind: 'object'; readonly place: Place }
  /** Any resource. */
  | { readonly kind: 'resource' }

export interface Child {
  /** As in JSON: `valueQuantity`. */
  readonly name: string
  readonly isChoice: boolean
  readonly isList: boolean
  readonly content: Content
  /** The standard's description of it. */
  readonly short: string | undefined
}

/** `Patient`, and `PatientContact` for its backbone element. */
export function graphqlTypeName({ type, path }: Place): string {
  if (path === '') return type
  return type + path.split('.').map(capitalised).join('')
}

/** The backbone element of such a name; undefined where there is none. */
export function findBackbonePlace(name: string): Place | undefined {
  const starts = [...name.matchAll(/[A-Z]/g)].map(({ index }) => index).reverse()
  for (const end of starts) {
    const type = name.slice(0, end)
    const found = typeElements(type).find(
      (element) => isBackbone(element) && graphqlTypeName({ type, path: element.path }) === name,
    )
    if (found !== undefined) return { type, path: found.path }
  }
  return undefined
}

export function isKnownType(name: string): boolean {
  return typeDefinition(name) !== undefined
}

/** The children of a place, in the order of the standard. */
export function listChildren({ type, path }: Place): readonly Child[] {
  const prefix = path === '' ? '' : `${path}.`
  const own = typeElements(type).flatMap((element) => {
    const name = element.path.slice(prefix.length)
    if (!element.path.startsWith(prefix) || name.includes('.')) return []
    return toChildren(type, element, name)
  })
  const inherited = path === '' ? [] : backbone().filter(({ name }) => !own.some(isNamed(name)))
  return [...inherited, ...own]
}

const isNamed =
  (name: string) =>
  (child: Child): boolean =>
    child.name === name

/** The children of every backbone element. */
const backbone = openOnce(() => {
  const children = typeElements('BackboneElement')
  return children.flatMap((element) => toChildren('BackboneElement', element, element.path))
})

function toChildren(type: string, element: ElementDefinition, name: string): Child[] {
  const { choice = false, types, max } = element
  const isList = max !== undefined && max !== '1'
  const short = shortText(type, element.path)
  if (element.content !== undefined) {
    const [referred = '', ...path] = element.content.split('.')
    const content: Content = { kind: 'object', place: { type: referred, path: path.join('.') } }
    return [{ name, isChoice: false, isList, content, short }]
  }
  if (isBackbone(element)) {
    const content: Content = { kind: 'object', place: { type, path: element.path } }
    return [{ name, isChoice: false, isList, content, short }]
  }
  return types.map(({ code }) => ({
    name: choice ? name + capitalised(code) : name,
    isChoice: choice,
    isList,
    content: typeContent(name === 'id' && isResource(type) ? 'id' : code),
    short,
  }))
}

function typeContent(code: string): Content {
  const definition = typeDefinition(code)
  if (code === 'Resource' || definition?.kind === 'resource') return { kind: 'resource' }
  if (definition?.kind !== 'complex-type') return { kind: 'primitive', code }
  return { kind: 'object', place: { type: code, path: '' } }
}

function isResource(type: string): boolean {
  return typeDefinition(type)?.kind === 'resource'
}

function isBackbone({ types: [only] }: ElementDefinition): boolean {
  return only?.code === 'BackboneElement' || only?.code === 'Element'
}

function capitalised(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}

/** The standard's Float, but 1.00 stays 1.00. */
export const Float = new GraphQLScalarType<unknown, unknown>({
  name: 'Float',
  ...(GraphQLFloat.description ? { description: GraphQLFloat.description } : {}),
  coerceOutputValue: (value) => (isDecimal(value) ? value : GraphQLFloat.coerceOutputValue(value)),
  coerceInputValue: (value) => (isDecimal(value) ? value : GraphQLFloat.coerceInputValue(value)),
  coerceInputLiteral: (node) => {
    const number = GraphQLFloat.coerceInputLiteral?.(node)
    const isNumber = node.kind === Kind.FLOAT || node.kind === Kind.INT
    return isNumber && String(number) !== node.value ? new Decimal(node.value) : number
  },
})

const NUMBERS: ReadonlySet<string> = new Set(['integer', 'positiveInt', 'unsignedInt', 'decimal'])

export function scalarType(code: string): GraphQLScalarType {
  if (code === 'boolean') return GraphQLBoolean
  if (code === 'id') return GraphQLID
  return NUMBERS.has(code) ? Float : GraphQLString
}

/** Written as text in GraphQL, so that it can be a child filter. */
export function isText(code: string): boolean {
  return code !== 'boolean' && !NUMBERS.has(code)
}

// How the fields of the schema get their values; the compiler reads it from the extensions of a field.

export type Source =
  /** A member of the object that the field stands on. */
  | { readonly kind: 'member'; readonly name: string }
  /** A repeating element, with its filters. */
  | { readonly kind: 'list'; readonly child: Child }
  /** The resource that a Reference points at. */
  | { readonly kind: 'reference' }
  | { readonly kind: 'read'; readonly type: string }
  | { readonly kind: 'search'; readonly type: string; readonly isConnection: boolean }
  /** Resources that refer to the one that the field stands on. */
  | { readonly kind: 'referring'; readonly type: string; readonly isConnection: boolean }
  /** The resource of an edge of a connection. */
  | { readonly kind: 'edge' }
  | { readonly kind: 'write'; readonly type: string; readonly action: WriteAction }

export type WriteAction = 'create' | 'update' | 'patch' | 'delete'

/** Arguments as graphql-js coerces them. */
export type Given = Readonly<Record<string, unknown>>

export function withSource(source: Source): { readonly extensions: { readonly source: Source } } {
  return { extensions: { source } }
}

/** Undefined for the fields by which a schema describes itself: graphql-js resolves them. */
export function fieldSource({ extensions }: GraphQLField<unknown, unknown>): Source | undefined {
  // Set by `from` alone.
  return extensions.source as Source | undefined
}
