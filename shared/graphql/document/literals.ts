/** The texts that a document has: those that become variables, and bare words. */
import {
  BREAK,
  type DocumentNode,
  GraphQLID,
  GraphQLString,
  getNamedType,
  Kind,
  TypeInfo,
  visit,
  visitWithTypeInfo,
} from 'graphql'
import type { LazySchema } from '../schema/lazy.ts'

/** Bare words are texts where a text is wanted, as in the examples of https://hl7.org/fhir/R4/graphql.html. */
export function withTexts(schema: LazySchema, document: DocumentNode): DocumentNode {
  let hasWords = false
  visit(document, {
    EnumValue: () => {
      hasWords = true
      return BREAK
    },
  })
  if (!hasWords) return document
  const types = new TypeInfo(schema)
  return visit(
    document,
    visitWithTypeInfo(types, {
      EnumValue: ({ value, loc }) => {
        const type = getNamedType(types.getInputType())
        if (type !== GraphQLString && type !== GraphQLID) return undefined
        return { kind: Kind.STRING, value, ...(loc === undefined ? {} : { loc }) }
      },
    }),
  )
}

// * Documents that differ in their texts alone are one document with other values: clients write ids into
// their queries. The scan finds the strings as the lexer of GraphQL does
// (https://spec.graphql.org/October2021/#sec-String-Value) and leaves those with escapes where they are.

export interface Scanned {
  /** The text with numbers in place of its strings; equal strings have equal numbers. */
  readonly key: string
  /** By their numbers. */
  readonly values: readonly string[]
  readonly spans: readonly Span[]
  /** The parser and the rules recurse by level, and would exhaust the stack. */
  readonly depth: number
}

interface Span {
  /** The place of the opening quote. */
  readonly start: number
  readonly length: number
  readonly number: number
}

// Comments and strings hide brackets. The third alternative has escapes, or what the lexer refuses.
const TOKEN =
  /#[^\n\r]*|"""(?:\\"""|[\s\S])*?"""|"([^"\\\p{Cc}\p{Cs}]*)"|"(?:\\.|[^"\\\n\r])*"|[{}[\]()]/gu

export function scan(query: string): Scanned {
  const numbers = new Map<string, number>()
  const spans: Span[] = []
  let key = ''
  let copied = 0
  let level = 0
  let depth = 0
  for (const { 0: token, 1: value, index } of query.matchAll(TOKEN)) {
    if (value !== undefined) {
      const number = numbers.get(value) ?? numbers.size
      numbers.set(value, number)
      spans.push({ start: index, length: token.length, number })
      key += `${query.slice(copied, index)}"${number}"`
      copied = index + token.length
    } else if (token === '{' || token === '[' || token === '(') {
      level++
      if (level > depth) depth = level
    } else if (token.length === 1 && token !== '#') level--
  }
  return { key: key + query.slice(copied), values: [...numbers.keys()], spans, depth }
}

/** The name of the variable that a string became; no client can write it. */
export function literalName(number: number): string {
  return `"${number}`
}

/**
 * The document with variables in place of its strings; undefined where a string is more than an argument
 * of a query.
 */
export function withoutLiterals(
  document: DocumentNode,
  { spans }: Scanned,
): DocumentNode | undefined {
  const numbers = new Map(spans.map(({ start, number }) => [start, number]))
  let isPossible = document.definitions.every(
    (definition) =>
      definition.kind === Kind.FRAGMENT_DEFINITION ||
      (definition.kind === Kind.OPERATION_DEFINITION && definition.operation === 'query'),
  )
  let found = 0
  const made = visit(document, {
    VariableDefinition: () => false,
    StringValue: ({ loc, block }) => {
      const number = numbers.get(loc?.start ?? -1)
      if (block === true || number === undefined) return undefined
      found++
      const name = { kind: Kind.NAME, value: literalName(number) } as const
      return { kind: Kind.VARIABLE, name, ...(loc === undefined ? {} : { loc }) }
    },
  })
  isPossible &&= found === spans.length
  return isPossible ? made : undefined
}

/** A position of the document that was compiled as a position of this one. */
export function locate(position: number, compiled: readonly Span[], own: readonly Span[]): number {
  let shift = 0
  for (const [i, { start, length }] of compiled.entries()) {
    if (start >= position) break
    shift += (own[i]?.length ?? length) - length
  }
  return position + shift
}
