/**
 * The answer to an introspection query, written as text. graphql-js takes seconds for the 25 MB of the whole
 * schema, most of which says the same again: here the text of a part is made once for each selection of it.
 */
import {
  __Field,
  type DocumentNode,
  type FieldNode,
  type FragmentDefinitionNode,
  type GraphQLField,
  GraphQLIncludeDirective,
  type GraphQLObjectType,
  type GraphQLResolveInfo,
  type GraphQLSchema,
  GraphQLSkipDirective,
  getArgumentValues,
  getDirectiveValues,
  getNamedType,
  getVariableValues,
  isObjectType,
  Kind,
  type OperationDefinitionNode,
  SchemaMetaFieldDef,
  type SelectionNode,
  type SelectionSetNode,
  TypeMetaFieldDef,
} from 'graphql'
import { tooLarge } from '../../errors.ts'
import type { Given } from '../request-state.ts'
import { MAX_CHARACTERS } from '../write-json.ts'

/** What is asked for of one type, at one place of the query. */
interface Plan {
  readonly steps: readonly Step[]
  /** Of what was written already. */
  readonly texts: Map<object, string>
}

interface Step {
  /** `"name":` */
  readonly key: string
  read(source: unknown): unknown
  /** None for a value. */
  readonly plan: Plan | undefined
}

interface Planning {
  readonly schema: GraphQLSchema
  readonly fragments: ReadonlyMap<string, FragmentDefinitionNode>
  readonly variables: VariableValues
}

type VariableValues = NonNullable<ReturnType<typeof getVariableValues>['variableValues']>

/** The JSON text of the result, part by part; an empty one gives others a turn. Errors: 413. */
export function* introspectionText(
  schema: GraphQLSchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
  given: Given,
): Generator<string, void> {
  const definitions = operation.variableDefinitions ?? []
  const { variableValues, errors } = getVariableValues(schema, definitions, given, {
    maxErrors: MAX_VARIABLE_ERRORS,
  })
  const query = schema.getQueryType()
  if (variableValues === undefined || !query) {
    yield JSON.stringify({ errors })
    return
  }
  const fragments = new Map<string, FragmentDefinitionNode>()
  for (const definition of document.definitions) {
    if (definition.kind === Kind.FRAGMENT_DEFINITION) {
      fragments.set(definition.name.value, definition)
    }
  }
  const planning = { schema, fragments, variables: variableValues }
  const plan = planOf(planning, query, [operation.selectionSet])
  yield '{"data":'
  yield* tell(plan, query, PARTED_LEVELS)
  yield '}'
}

/** As graphql-js has it where it executes. */
const MAX_VARIABLE_ERRORS = 50

/** The result, `__schema`, its list of types: what is below is one part. */
const PARTED_LEVELS = 3

function* tell(plan: Plan | undefined, value: unknown, levels: number): Generator<string, void> {
  if (levels === 0 || plan === undefined || typeof value !== 'object' || value === null) {
    yield atHand(plan, value) ?? (yield* writeParts(plan, value))
    return
  }
  if (Array.isArray(value)) {
    yield '['
    for (const [i, item] of value.entries()) {
      if (i > 0) yield ','
      yield* tell(plan, item, levels - 1)
    }
    yield ']'
    return
  }
  yield '{'
  for (const [i, { key, read, plan: inner }] of plan.steps.entries()) {
    yield i > 0 ? `,${key}` : key
    yield* tell(inner, read(value), levels - 1)
  }
  yield '}'
}

function* write(plan: Plan, source: object): Generator<string, string> {
  let text = '{'
  for (const { key, read, plan: inner } of plan.steps) {
    const value = read(source)
    const found = atHand(inner, value) ?? (yield* writeParts(inner, value))
    text += text === '{' ? key + found : `,${key}${found}`
    if (text.length > MAX_CHARACTERS) throw tooLarge()
  }
  text += '}'
  plan.texts.set(source, text)
  yield ''
  return text
}

/** Undefined for what has to be written first. Most parts are at hand, and need no generator each. */
function atHand(plan: Plan | undefined, value: unknown): string | undefined {
  if (value === undefined || value === null) return 'null'
  if (plan === undefined || typeof value !== 'object') return JSON.stringify(value)
  return plan.texts.get(value)
}

/** Of an object or a list of them. */
function* writeParts(plan: Plan | undefined, value: unknown): Generator<string, string> {
  // What is not at hand is no plain value.
  if (plan === undefined || typeof value !== 'object' || value === null) return 'null'
  if (!Array.isArray(value)) return yield* write(plan, value)
  const items: string[] = []
  let length = 0
  for (const item of value) {
    const text = plan.texts.get(item) ?? (yield* write(plan, item))
    length += text.length
    if (length > MAX_CHARACTERS) throw tooLarge()
    items.push(text)
  }
  const text = `[${items.join(',')}]`
  plan.texts.set(value, text)
  return text
}

function planOf(
  planning: Planning,
  type: GraphQLObjectType,
  sets: readonly SelectionSetNode[],
): Plan {
  const fields = new Map<string, FieldNode[]>()
  for (const { selections } of sets) collect(planning, selections, fields)
  const steps = [...fields].map(([name, nodes]) => {
    return { key: `${JSON.stringify(name)}:`, ...stepOf(planning, type, nodes) }
  })
  return { steps, texts: new Map() }
}

/** Fragments on other types are not valid here: none of these is a union. */
function collect(
  planning: Planning,
  selections: readonly SelectionNode[],
  fields: Map<string, FieldNode[]>,
): void {
  for (const selection of selections) {
    if (!isIncluded(planning, selection)) continue
    if (selection.kind === Kind.FIELD) {
      const name = (selection.alias ?? selection.name).value
      fields.set(name, [...(fields.get(name) ?? []), selection])
      continue
    }
    const { selectionSet } =
      selection.kind === Kind.INLINE_FRAGMENT
        ? selection
        : (planning.fragments.get(selection.name.value) ?? {})
    collect(planning, selectionSet?.selections ?? [], fields)
  }
}

function isIncluded({ variables }: Planning, selection: SelectionNode): boolean {
  const skipped = getDirectiveValues(GraphQLSkipDirective, selection, variables)
  const included = getDirectiveValues(GraphQLIncludeDirective, selection, variables)
  return skipped?.if !== true && included?.if !== false
}

function stepOf(
  planning: Planning,
  type: GraphQLObjectType,
  nodes: readonly FieldNode[],
): Omit<Step, 'key'> {
  const [node] = nodes
  const field = node && fieldOf(type, node.name.value)
  if (node === undefined || field === undefined) {
    return { read: () => type.name, plan: undefined }
  }
  const given = getArgumentValues(field, node, planning.variables)
  // All that these fields want to know of the request.
  const info = { schema: planning.schema } as GraphQLResolveInfo
  const inner = getNamedType(field.type)
  const sets = nodes.flatMap(({ selectionSet }) => selectionSet ?? [])
  return {
    read: isArguments(type, field.name)
      ? argumentsOf
      : (source) => field.resolve?.(source, given, undefined, info),
    plan: isObjectType(inner) ? planOf(planning, inner, sets) : undefined,
  }
}

function isArguments(type: GraphQLObjectType, name: string): boolean {
  return type === __Field && name === 'args'
}

/** The list itself and not a copy, which would be written again: none of them is deprecated. */
function argumentsOf(source: unknown): unknown {
  // What `__Field` describes.
  return (source as GraphQLField<unknown, unknown>).args
}

/** Undefined for `__typename`. */
function fieldOf(type: GraphQLObjectType, name: string) {
  if (name === SchemaMetaFieldDef.name) return SchemaMetaFieldDef
  if (name === TypeMetaFieldDef.name) return TypeMetaFieldDef
  return type.getFields()[name]
}
