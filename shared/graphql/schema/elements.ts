/** Maps element definitions to fields: one per type of a choice, with its GraphQL name or scalar. */
import {
  GraphQLBoolean,
  type GraphQLField,
  GraphQLFloat,
  GraphQLID,
  GraphQLScalarType,
  GraphQLString,
  Kind,
} from 'graphql'
import { capitalised, shortText, typeDefinition, typeElements } from '../../fhir/definitions.ts'
import { type ElementDefinition, openOnce } from '../../fhir/definitions-data.ts'
import { Decimal, isDecimal } from '../../fhir/json.ts'

/** A type, or a backbone element at a path in it. */
export interface Place {
  readonly type: string
  /** Empty for the type itself. */
  readonly path: string
}

export type Content =
  | { readonly kind: 'primitive'; readonly code: string }
  | { readonly kind: 'object'; readonly place: Place }
  | { readonly kind: 'resource' }

export interface Child {
  /** JSON name: `valueQuantity`. */
  readonly name: string
  readonly isChoice: boolean
  readonly isList: boolean
  readonly content: Content
  readonly short: string | undefined
}

/** `Patient`, and `PatientContact` for its backbone element. */
export function graphqlTypeName({ type, path }: Place): string {
  if (path === '') return type
  return type + path.split('.').map(capitalised).join('')
}

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
  const isId = name === 'id' && typeDefinition(type)?.kind === 'resource'
  return types.map(({ code }) => ({
    name: choice ? name + capitalised(code) : name,
    isChoice: choice,
    isList,
    content: typeContent(isId ? 'id' : code),
    short,
  }))
}

function typeContent(code: string): Content {
  const definition = typeDefinition(code)
  if (code === 'Resource' || definition?.kind === 'resource') return { kind: 'resource' }
  if (definition?.kind !== 'complex-type') return { kind: 'primitive', code }
  return { kind: 'object', place: { type: code, path: '' } }
}

function isBackbone({ types: [only] }: ElementDefinition): boolean {
  return only?.code === 'BackboneElement' || only?.code === 'Element'
}

/** The standard Float, except that it preserves 1.00. */
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

/** True for types that GraphQL represents as text, which can be child filters. */
export function isText(code: string): boolean {
  return code !== 'boolean' && !NUMBERS.has(code)
}

// Value sources of the schema's fields, which the compiler reads from a field's extensions.

export type Source =
  | { readonly kind: 'member'; readonly name: string }
  /** A repeating element with filters. */
  | { readonly kind: 'list'; readonly child: Child }
  | { readonly kind: 'reference' }
  | { readonly kind: 'read'; readonly type: string }
  | { readonly kind: 'search'; readonly type: string; readonly isConnection: boolean }
  | { readonly kind: 'referring'; readonly type: string; readonly isConnection: boolean }
  | { readonly kind: 'edge' }
  | { readonly kind: 'write'; readonly type: string; readonly action: WriteAction }

export type WriteAction = 'create' | 'update' | 'patch' | 'delete'

export type Given = Readonly<Record<string, unknown>>

export function withSource(source: Source): { readonly extensions: { readonly source: Source } } {
  return { extensions: { source } }
}

/** Undefined for introspection fields, which graphql-js resolves. */
export function fieldSource({ extensions }: GraphQLField<unknown, unknown>): Source | undefined {
  // Only `from` sets it.
  return extensions.source as Source | undefined
}
