/** Parses, validates and plans documents; caches the most recent. */
import {
  type DocumentNode,
  type FragmentDefinitionNode,
  GraphQLError,
  type GraphQLObjectType,
  getNamedType,
  getNullableType,
  isInputObjectType,
  isListType,
  isObjectType,
  Kind,
  KnownTypeNamesRule,
  type OperationDefinitionNode,
  parse,
  type SelectionSetNode,
  specifiedRules,
  TypeInfo,
  type ValidationContext,
  type ValidationRule,
  VariablesInAllowedPositionRule,
  validate,
  visit,
  visitWithTypeInfo,
} from 'graphql'
import { Cache } from '../../core/cache.ts'
import { nextTurn, TimeSlicer } from '../../core/yielding.ts'
import { openOnce } from '../../fhir/definitions-data.ts'
import { usesDirectives } from '../execute/directives.ts'
import { compile, type Plan, type VariableValues } from '../execute/plan.ts'
import { Float } from '../schema/elements.ts'
import type { LazySchema } from '../schema/lazy.ts'
import { audienceName, schemaFor } from '../schema/schema.ts'
import { fragmentDefinitions, shapeErrors } from './limits.ts'
import { type Scanned, scan, withoutLiterals, withTexts } from './literals.ts'

// Published queries pass a string variable to list arguments. The standard coerces only literals
// (https://spec.graphql.org/October2021/#sec-All-Variable-Usages-are-Allowed); this rule allows both.

const variablePositions: ValidationRule = (context) => {
  const lenient: ValidationContext = Object.create(context, {
    getRecursiveVariableUsages: {
      value: (operation: OperationDefinitionNode) => variableUsages(context, operation),
    },
  })
  return VariablesInAllowedPositionRule(lenient)
}

function variableUsages(context: ValidationContext, operation: OperationDefinitionNode) {
  const isList = ({ kind }: { readonly kind: Kind }) => kind === Kind.LIST_TYPE
  const singles = new Set(
    operation.variableDefinitions?.flatMap(({ variable, type }) => {
      const inner = type.kind === Kind.NON_NULL_TYPE ? type.type : type
      return isList(inner) ? [] : [variable.name.value]
    }),
  )
  return context.getRecursiveVariableUsages(operation).map((usage) => {
    const type = getNullableType(usage.type)
    const isArgument = !isInputObjectType(usage.parentType)
    const isOneOfMany = isListType(type) && singles.has(usage.node.name.value)
    return isArgument && isOneOfMany ? { ...usage, type: getNullableType(type.ofType) } : usage
  })
}

const MAX_TOKENS = 20_000
const MAX_QUERY_BYTES = 262_144
const MAX_ERRORS = 20
const MAX_NESTING = 200
const SHORT_CHARACTERS = 2_000
/** Characters of the cached documents; a parsed one takes several hundred bytes per character. */
const CACHED_CHARACTERS = 200_000
/** Plans per document: an operation has one for each combination of its conditions. */
const MAX_PLANS = 16

interface RejectedDocument {
  readonly errors: readonly GraphQLError[]
  readonly isSyntax: boolean
}

export interface Prepared {
  readonly schema: LazySchema
  readonly document: DocumentNode
  readonly fragments: ReadonlyMap<string, FragmentDefinitionNode>
  /** Strings of the compiled document; documents of the same form reuse its plans. */
  readonly spans: Scanned['spans']
  readonly hasLiterals: boolean
  /** It may read numbers of resources; decimals that keep their digits take longer to parse. */
  readonly asksNumbers: boolean
  /** It has expressions, which can read any element of a resource. */
  readonly asksWhole: boolean
  readonly hasDirectives: boolean
  readonly conditions: () => readonly string[]
  readonly plans: Map<string, Plan>
}

const cached = new Cache<string, Prepared | 'exact'>({
  name: 'graphql-documents',
  max: CACHED_CHARACTERS,
  maxEntrySize: CACHED_CHARACTERS / 10,
})

export async function prepareDocument(
  schema: LazySchema,
  audience: string,
  query: string,
  scanned: Scanned,
): Promise<Prepared | RejectedDocument> {
  const key = `${audience} ${scanned.key}`
  const known = cached.get(key)
  if (typeof known === 'object') return known
  const exact = `${audience} = ${query}`
  const same = known === 'exact' ? cached.get(exact) : undefined
  if (typeof same === 'object') return same
  const made = await make(schema, query, scanned)
  if ('errors' in made) return made
  const size = Math.max(1, query.length)
  cached.set(key, made.hasLiterals ? made : 'exact', { size })
  if (!made.hasLiterals) cached.set(exact, made, { size })
  return made
}

export function compileOperation(
  { schema, fragments, conditions, plans }: Prepared,
  operation: OperationDefinitionNode,
  variables: VariableValues,
): Plan {
  const values = conditions().map((name) => variables.coerced[name] === true)
  const key = `${operation.name?.value ?? ''} ${values.join(' ')}`
  const known = plans.get(key)
  if (known !== undefined) return known
  const compiling = { schema, fragments, variables }
  const made = compile(compiling, rootType(schema, operation), [operation.selectionSet])
  if (plans.size >= MAX_PLANS) plans.clear()
  plans.set(key, made)
  return made
}

function rootType(schema: LazySchema, { operation }: OperationDefinitionNode): GraphQLObjectType {
  const type = schema.getRootType(operation)
  if (type === undefined || type === null) throw new Error(`There is no ${operation} here`)
  return type
}

/** True for operations that contain `__schema` or `__type`, even if excluded by a condition. */
export function asksForTypes({ fragments }: Prepared, operation: OperationDefinitionNode): boolean {
  const within = ({ selections }: SelectionSetNode): boolean =>
    selections.some((selection) => {
      if (selection.kind === Kind.FIELD) return /^__(schema|type)$/.test(selection.name.value)
      if (selection.kind === Kind.INLINE_FRAGMENT) return within(selection.selectionSet)
      const fragment = fragments.get(selection.name.value)
      return fragment !== undefined && within(fragment.selectionSet)
    })
  return within(operation.selectionSet)
}

/** Builds everything the first query needs. */
export async function warmUp(): Promise<void> {
  const audience = { isSuperAdmin: false, instance: undefined }
  const query = '{ PatientList { id } }'
  await prepareDocument(schemaFor(audience), audienceName(audience), query, scan(query))
}

async function make(
  schema: LazySchema,
  query: string,
  scanned: Scanned,
): Promise<Prepared | RejectedDocument> {
  const refused = (errors: readonly GraphQLError[], isSyntax = false) => ({ errors, isSyntax })
  if (Buffer.byteLength(query) > MAX_QUERY_BYTES) {
    return refused([new GraphQLError(`A query may have ${MAX_QUERY_BYTES} bytes`)])
  }
  if (scanned.depth > MAX_NESTING) {
    return refused([new GraphQLError(`A query may be nested ${MAX_NESTING} levels deep`)])
  }
  let document: DocumentNode
  try {
    document = parse(query, { maxTokens: MAX_TOKENS })
  } catch (error) {
    if (error instanceof GraphQLError) return refused([error], true)
    throw error
  }
  const shape = shapeErrors(document)
  if (shape.length > 0) return refused(shape)
  await makeTypes(schema, document)
  document = withTexts(schema, document)
  const errors = await validateInTurns(schema, document, query.length)
  if (errors.length > 0) return refused(errors)
  const lifted = withoutLiterals(document, scanned)
  return toPrepared(schema, lifted ?? document, lifted === undefined ? undefined : scanned.spans)
}

function toPrepared(
  schema: LazySchema,
  document: DocumentNode,
  spans: Scanned['spans'] | undefined,
): Prepared {
  return {
    schema,
    document,
    fragments: fragmentDefinitions(document),
    spans: spans ?? [],
    hasLiterals: spans !== undefined,
    ...documentNeeds(schema, document),
    hasDirectives: usesDirectives(document),
    conditions: openOnce(() => conditionsIn(document)),
    plans: new Map(),
  }
}

/** Builds the types named by fragments one by one, since a document may name all of them. */
async function makeTypes(schema: LazySchema, document: DocumentNode): Promise<void> {
  const names = new Set<string>()
  visit(document, { NamedType: ({ name }) => void names.add(name.value) })
  const turns = new TimeSlicer()
  for (const name of names) {
    const type = schema.getType(name)
    if (isObjectType(type)) type.getFields()
    if (turns.isUsedUp) await turns.rest()
  }
}

/** Validates in turns: all rules at once would block the event loop for a long document. */
async function validateInTurns(
  schema: LazySchema,
  document: DocumentNode,
  length: number,
): Promise<readonly GraphQLError[]> {
  const errors: GraphQLError[] = []
  // Suggestions would build every type of a union.
  const options = { maxErrors: MAX_ERRORS, hideSuggestions: true }
  const parts = length <= SHORT_CHARACTERS ? [RULES] : RULES.map((rule) => [rule])
  for (const rules of parts) {
    errors.push(...validate(schema, document, rules, options))
    if (parts.length > 1) await nextTurn()
  }
  return errors.slice(0, MAX_ERRORS)
}

/** Detects number fields, and expressions, which may read any field. */
function documentNeeds(
  schema: LazySchema,
  document: DocumentNode,
): Pick<Prepared, 'asksNumbers' | 'asksWhole'> {
  const types = new TypeInfo(schema)
  let asksNumbers = false
  let asksWhole = usesDirectives(document)
  const visitor = visitWithTypeInfo(types, {
    Field: () => {
      const type = types.getType()
      asksNumbers ||= type === undefined || type === null || getNamedType(type) === Float
    },
    Argument: ({ name }) => {
      asksWhole ||= name.value === 'fhirpath' || name.value === 'path'
    },
  })
  visit(document, visitor)
  return { asksNumbers: asksNumbers || asksWhole, asksWhole }
}

function conditionsIn(document: DocumentNode): readonly string[] {
  const names = new Set<string>()
  visit(document, {
    Directive: (directive) => {
      if (!/^(skip|include)$/.test(directive.name.value)) return
      for (const { value } of directive.arguments ?? []) {
        if (value.kind === Kind.VARIABLE) names.add(value.name.value)
      }
    },
  })
  return [...names]
}

/** The standard rule only knows types that are already built. */
const knownTypeNames: ValidationRule = (context) => ({
  NamedType(node) {
    if (context.getSchema().getType(node.name.value) !== undefined) return
    context.reportError(new GraphQLError(`Unknown type "${node.name.value}".`, { nodes: node }))
  },
})

const REPLACED: ReadonlySet<ValidationRule> = new Set([
  KnownTypeNamesRule,
  VariablesInAllowedPositionRule,
])
const RULES = [
  ...specifiedRules.filter((rule) => !REPLACED.has(rule)),
  knownTypeNames,
  variablePositions,
]
