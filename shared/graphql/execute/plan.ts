/** Compiles a selection for one type. https://spec.graphql.org/October2021/#sec-Field-Collection */
import {
  type FieldNode,
  type FragmentDefinitionNode,
  type GraphQLField,
  GraphQLIncludeDirective,
  type GraphQLLeafType,
  type GraphQLObjectType,
  type GraphQLOutputType,
  type GraphQLSchema,
  GraphQLSkipDirective,
  GraphQLString,
  getArgumentValues,
  getDirectiveValues,
  type getVariableValues,
  isAbstractType,
  isLeafType,
  isListType,
  isNonNullType,
  isObjectType,
  Kind,
  type SelectionNode,
  type SelectionSetNode,
  type ValueNode,
} from 'graphql'
import { openOnce } from '../../fhir/definitions-data.ts'
import { type Names, numbered } from '../../fhir/json-text.ts'
import { fieldSource, type Given, type Source } from '../schema/elements.ts'

export type VariableValues = NonNullable<ReturnType<typeof getVariableValues>['variableValues']>

export interface Plan {
  readonly steps: readonly Step[]
  readonly members: () => Names
}

export interface Step {
  /** `{"name":` for the first field, `,"name":` for the others. */
  readonly open: string
  readonly key: string
  readonly nodes: readonly FieldNode[]
  readonly parent: GraphQLObjectType
  /** Undefined for `__typename`. */
  readonly field: GraphQLField<unknown, unknown> | undefined
  readonly source: Source | undefined
  readonly isSliced: boolean
  readonly name: string | undefined
  /** A member that is always a string in valid data. */
  readonly member: string | undefined
  readonly shape: Shape
  readonly isRequired: boolean
  /** Undefined when they depend on variables. */
  readonly args: (() => Args) | undefined
}

/** Arguments and their text, which serves as cache key. */
export interface Args {
  readonly given: Given
  readonly text: string
}

export type Shape =
  | { readonly kind: 'leaf'; readonly type: GraphQLLeafType }
  | { readonly kind: 'object'; readonly plan: () => Plan }
  /** Any resource: undefined for a type outside the schema. */
  | { readonly kind: 'any'; readonly planFor: (type: string) => Plan | undefined }
  | { readonly kind: 'list'; readonly of: Shape; readonly isRequired: boolean }

interface Compiling {
  readonly schema: GraphQLSchema
  readonly fragments: ReadonlyMap<string, FragmentDefinitionNode>
  /** Values of the condition variables. */
  readonly variables: VariableValues
}

export function compile(
  compiling: Compiling,
  type: GraphQLObjectType,
  sets: readonly SelectionSetNode[],
): Plan {
  const fields = new Map<string, FieldNode[]>()
  const visited = new Set<string>()
  for (const set of sets) collect(compiling, type, set, { fields, visited })
  const steps = [...fields].map(([key, nodes], i) => {
    return compileStep(compiling, type, {
      key,
      nodes,
      open: `${i === 0 ? '{' : ','}${JSON.stringify(key)}:`,
    })
  })
  return { steps, members: openOnce(() => numbered(steps.flatMap(({ name }) => name ?? []))) }
}

function sourceMember(source: Source | undefined): string | undefined {
  if (source?.kind === 'member') return source.name
  if (source?.kind === 'list') return source.child.name
  return source?.kind === 'reference' ? 'reference' : undefined
}

function collect(
  compiling: Compiling,
  type: GraphQLObjectType,
  { selections }: SelectionSetNode,
  { fields, visited }: { readonly fields: Map<string, FieldNode[]>; readonly visited: Set<string> },
): void {
  for (const selection of selections) {
    if (!isIncluded(compiling, selection)) continue
    if (selection.kind === Kind.FIELD) {
      const key = (selection.alias ?? selection.name).value
      const known = fields.get(key)
      if (known === undefined) fields.set(key, [selection])
      else known.push(selection)
      continue
    }
    const isInline = selection.kind === Kind.INLINE_FRAGMENT
    if (!isInline && visited.has(selection.name.value)) continue
    const part = isInline ? selection : compiling.fragments.get(selection.name.value)
    if (!isInline) visited.add(selection.name.value)
    if (part === undefined || !fits(compiling, part.typeCondition?.name.value, type)) continue
    collect(compiling, type, part.selectionSet, { fields, visited })
  }
}

function isIncluded({ variables }: Compiling, selection: SelectionNode): boolean {
  if (selection.directives === undefined || selection.directives.length === 0) return true
  const skipped = getDirectiveValues(GraphQLSkipDirective, selection, variables)
  const included = getDirectiveValues(GraphQLIncludeDirective, selection, variables)
  return skipped?.if !== true && included?.if !== false
}

function fits(
  { schema }: Compiling,
  condition: string | undefined,
  type: GraphQLObjectType,
): boolean {
  if (condition === undefined || condition === type.name) return true
  const found = schema.getType(condition)
  return isAbstractType(found) && schema.isSubType(found, type)
}

type Field = Pick<Step, 'key' | 'nodes' | 'open'>

function compileStep(
  compiling: Compiling,
  parent: GraphQLObjectType,
  { key, nodes, open }: Field,
): Step {
  const [node] = nodes
  const name = node?.name.value ?? ''
  const field = compiling.schema.getField(parent, name)
  // Cannot happen in a valid document.
  if (node === undefined || field === undefined) throw new Error(`${parent.name} has no ${name}`)
  const isRequired = isNonNullType(field.type)
  const isSliced = nodes.some(({ directives = [] }) =>
    directives.some((directive) => directive.name.value === 'slice'),
  )
  const base = { open, key, nodes, parent, isRequired, isSliced }
  if (name === '__typename') {
    const shape = { kind: 'leaf', type: GraphQLString } as const
    const none = { field: undefined, source: undefined, name: undefined, member: undefined }
    return { ...base, ...none, shape, args: NO_ARGS }
  }
  const source = fieldSource(field)
  const isText = field.type === GraphQLString && source?.kind === 'member'
  const isConstant = node.arguments?.every(({ value }) => !hasVariable(value)) ?? true
  return {
    ...base,
    field,
    source,
    name: sourceMember(source),
    member: isText ? source.name : undefined,
    shape: compileShape(compiling, field.type, nodes),
    args: isConstant ? openOnce(() => coerceArguments(field, node, NO_VARIABLES)) : undefined,
  }
}

const NO_ARGS = () => ({ given: {}, text: '{}' })
const NO_VARIABLES: VariableValues = { sources: {}, coerced: {} }

export function coerceArguments(
  field: GraphQLField<unknown, unknown>,
  node: FieldNode,
  variables: VariableValues,
): Args {
  const given = getArgumentValues(field, node, variables)
  return { given, text: JSON.stringify(given) }
}

function hasVariable(value: ValueNode): boolean {
  if (value.kind === Kind.VARIABLE) return true
  if (value.kind === Kind.LIST) return value.values.some(hasVariable)
  return value.kind === Kind.OBJECT && value.fields.some((field) => hasVariable(field.value))
}

function compileShape(
  compiling: Compiling,
  type: GraphQLOutputType,
  nodes: readonly FieldNode[],
): Shape {
  if (isNonNullType(type)) return compileShape(compiling, type.ofType, nodes)
  if (isListType(type)) {
    const of = compileShape(compiling, type.ofType, nodes)
    return { kind: 'list', of, isRequired: isNonNullType(type.ofType) }
  }
  if (isLeafType(type)) return { kind: 'leaf', type }
  const sets = nodes.flatMap(({ selectionSet }) => selectionSet ?? [])
  if (isObjectType(type)) {
    return { kind: 'object', plan: openOnce(() => compile(compiling, type, sets)) }
  }
  const plans = new Map<string, Plan | undefined>()
  const planFor = (name: string) => {
    if (plans.has(name)) return plans.get(name)
    const found = compiling.schema.getType(name)
    const isPossible = isObjectType(found) && compiling.schema.isSubType(type, found)
    const plan = isPossible ? compile(compiling, found, sets) : undefined
    plans.set(name, plan)
    return plan
  }
  return { kind: 'any', planFor }
}
