/** Text → a document that is valid for a schema; those of the last queries are kept. */
import { createHash } from 'node:crypto'
import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises'
import {
  type DocumentNode,
  GraphQLError,
  type GraphQLSchema,
  getNamedType,
  isObjectType,
  KnownTypeNamesRule,
  OverlappingFieldsCanBeMergedRule,
  parse,
  specifiedRules,
  TypeInfo,
  type ValidationRule,
  VariablesInAllowedPositionRule,
  validate,
  visit,
  visitWithTypeInfo,
} from 'graphql'
import { LRUCache } from 'lru-cache'
import { openLevels } from '../levels.ts'
import { Float } from '../schema/scalars.ts'
import { audienceName, schemaFor } from '../schema/schema.ts'
import { MAX_FIELDS, shapeErrors } from './limits.ts'
import { overlapErrors } from './overlaps.ts'
import { variablePositions } from './variable-positions.ts'

const MAX_TOKENS = 20_000
const MAX_QUERY_BYTES = 262_144
const MAX_ERRORS = 20
const MAX_NESTING = 200
const SHORT_CHARACTERS = 2_000
/** Characters of the documents that are kept; a parsed one takes some hundred bytes for each. */
const KEPT_CHARACTERS = 200_000

/** Either is empty or absent. */
export interface Prepared {
  readonly document: DocumentNode | undefined
  readonly errors: readonly GraphQLError[]
  /** The text itself is wrong. */
  readonly isSyntax: boolean
  /** It may look at numbers of resources; reading decimals as they are written takes its time. */
  readonly asksNumbers: boolean
}

const kept = new LRUCache<string, Prepared>({
  maxSize: KEPT_CHARACTERS,
  maxEntrySize: KEPT_CHARACTERS / 10,
})

/** `audience` names the schema. */
export async function prepareDocument(
  schema: GraphQLSchema,
  audience: string,
  query: string,
): Promise<Prepared> {
  const key = `${audience} ${createHash('sha256').update(query).digest('base64')}`
  const known = kept.get(key)
  if (known !== undefined) return known
  const made = await make(schema, query)
  if (made.document !== undefined) kept.set(key, made, { size: Math.max(1, query.length) })
  return made
}

/** Makes what the first query would wait for, a tenth of a second long. */
export async function warmUp(): Promise<void> {
  const audience = { isSuperAdmin: false, instance: undefined }
  await prepareDocument(schemaFor(audience), audienceName(audience), '{ PatientList { id } }')
}

const BETWEEN_TYPES_MS = 20
const complete = new WeakSet<GraphQLSchema>()

/**
 * Type by type what a query that names most of them would make at once; 39 MiB, so only where GraphQL
 * is asked.
 */
export async function makeTypes(schema: GraphQLSchema): Promise<void> {
  if (complete.has(schema)) return
  complete.add(schema)
  for (const name of Object.keys(schema.getTypeMap())) {
    await delay(BETWEEN_TYPES_MS, undefined, { ref: false })
    const type = schema.getType(name)
    if (isObjectType(type)) type.getFields()
  }
}

async function make(schema: GraphQLSchema, query: string): Promise<Prepared> {
  const refused = (errors: readonly GraphQLError[], isSyntax = false) => ({
    document: undefined,
    errors,
    isSyntax,
    asksNumbers: false,
  })
  if (Buffer.byteLength(query) > MAX_QUERY_BYTES) {
    return refused([new GraphQLError(`A query may have ${MAX_QUERY_BYTES} bytes`)])
  }
  if (isNestedDeeply(query)) {
    return refused([new GraphQLError(`A query may be nested ${MAX_NESTING} levels deep`)])
  }
  let document: DocumentNode
  try {
    document = parse(query, { maxTokens: MAX_TOKENS })
  } catch (error) {
    if (error instanceof GraphQLError) return refused([error], true)
    throw error
  }
  const odd = shapeErrors(document)
  if (odd.length > 0) return refused(odd)
  const errors = await validateInTurns(schema, document, query.length)
  if (errors.length > 0) return refused(errors)
  return { document, errors, isSyntax: false, asksNumbers: asksNumbers(schema, document) }
}

/** The parser and the rules go down level by level, and would run out of stack. */
function isNestedDeeply(query: string): boolean {
  let depth = 0
  for (const [token] of query.matchAll(STRING_OR_BRACKET)) {
    if ('{[('.includes(token)) depth++
    else if ('}])'.includes(token)) depth--
    if (depth > MAX_NESTING) return true
  }
  return false
}

const STRING_OR_BRACKET = /"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|#.*|[{}[\]()]/g

/** All rules at once take 10 ms for a kilobyte of fields; those of a long document take turns. */
async function validateInTurns(
  schema: GraphQLSchema,
  document: DocumentNode,
  length: number,
): Promise<readonly GraphQLError[]> {
  const errors = [...(await overlaps(schema, document))]
  // Suggestions would have every type of a union made.
  const options = { maxErrors: MAX_ERRORS, hideSuggestions: true }
  const parts = length <= SHORT_CHARACTERS ? [RULES] : RULES.map((rule) => [rule])
  for (const rules of parts) {
    errors.push(...validate(schema, document, rules, options))
    if (parts.length > 1) await nextTurn()
  }
  return errors.slice(0, MAX_ERRORS)
}

async function overlaps(
  schema: GraphQLSchema,
  document: DocumentNode,
): Promise<readonly GraphQLError[]> {
  const { pace } = openLevels(() => undefined)
  const walk = overlapErrors(schema, document, MAX_FIELDS)
  for (;;) {
    const { done, value } = walk.next()
    if (done) return value
    const turn = pace(1)
    if (turn !== undefined) await turn
  }
}

/** A field that is a number, or an expression, which may look at any. */
function asksNumbers(schema: GraphQLSchema, document: DocumentNode): boolean {
  const types = new TypeInfo(schema)
  let found = false
  const visitor = visitWithTypeInfo(types, {
    Field: () => {
      const type = types.getType()
      found ||= type === undefined || type === null || getNamedType(type) === Float
    },
    Argument: ({ name }) => {
      found ||= name.value === 'fhirpath' || name.value === 'path'
    },
  })
  visit(document, visitor)
  return found
}

/** The standard's rule looks at the types that were made, not at those that can be. */
const knownTypeNames: ValidationRule = (context) => ({
  NamedType(node) {
    if (context.getSchema().getType(node.name.value) !== undefined) return
    context.reportError(new GraphQLError(`Unknown type "${node.name.value}".`, { nodes: node }))
  },
})

const REPLACED: ReadonlySet<ValidationRule> = new Set([
  KnownTypeNamesRule,
  OverlappingFieldsCanBeMergedRule,
  VariablesInAllowedPositionRule,
])
const RULES = [
  ...specifiedRules.filter((rule) => !REPLACED.has(rule)),
  knownTypeNames,
  variablePositions,
]
