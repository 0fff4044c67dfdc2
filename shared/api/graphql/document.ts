/** Text → a document that is valid for a schema; those of the last queries are kept. */
import { createHash } from 'node:crypto'
import {
  type DocumentNode,
  GraphQLError,
  type GraphQLSchema,
  getNamedType,
  KnownTypeNamesRule,
  parse,
  specifiedRules,
  TypeInfo,
  type ValidationRule,
  validate,
  visit,
  visitWithTypeInfo,
} from 'graphql'
import { LRUCache } from 'lru-cache'
import { shapeErrors } from './limits.ts'
import { Float } from './scalars.ts'
import { audienceName, schemaFor } from './schema.ts'

const MAX_TOKENS = 20_000
const MAX_QUERY_BYTES = 262_144
const MAX_ERRORS = 20
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
export function prepareDocument(schema: GraphQLSchema, audience: string, query: string): Prepared {
  const key = `${audience} ${createHash('sha256').update(query).digest('base64')}`
  const known = kept.get(key)
  if (known !== undefined) return known
  const made = make(schema, query)
  if (made.document !== undefined) kept.set(key, made, { size: Math.max(1, query.length) })
  return made
}

/** Makes what the first query would wait for, a tenth of a second long. */
export function warmUp(): void {
  const audience = { isSuperAdmin: false, instance: undefined }
  prepareDocument(schemaFor(audience), audienceName(audience), '{ PatientList { id } }')
}

function make(schema: GraphQLSchema, query: string): Prepared {
  const refused = (errors: readonly GraphQLError[], isSyntax = false) => ({
    document: undefined,
    errors,
    isSyntax,
    asksNumbers: false,
  })
  if (Buffer.byteLength(query) > MAX_QUERY_BYTES) {
    return refused([new GraphQLError(`A query may have ${MAX_QUERY_BYTES} bytes`)])
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
  // Suggestions would have every type of a union made.
  const options = { maxErrors: MAX_ERRORS, hideSuggestions: true }
  const errors = validate(schema, document, RULES, options)
  if (errors.length > 0) return refused(errors)
  return { document, errors, isSyntax: false, asksNumbers: asksNumbers(schema, document) }
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

const RULES = [...specifiedRules.filter((rule) => rule !== KnownTypeNamesRule), knownTypeNames]
