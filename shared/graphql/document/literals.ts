/** Strings of a document: extracts them as variables, and accepts bare words as strings. */
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

/** Converts bare words to strings where strings are expected, as in https://hl7.org/fhir/R4/graphql.html. */
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

// Documents that differ only in their strings share a plan. Strings are found as by GraphQL's lexer
// (https://spec.graphql.org/October2021/#sec-String-Value), except those with escapes.

export interface Scanned {
  /** The text with numbers in place of strings; equal strings have equal numbers. */
  readonly key: string
  readonly values: readonly string[]
  readonly spans: readonly Span[]
  /** The parser and the rules recurse per level and could exhaust the stack. */
  readonly depth: number
}

interface Span {
  readonly start: number
  readonly length: number
  readonly number: number
}

// Comments and strings hide brackets. The third alternative matches escapes and invalid strings.
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

/** Name of the variable for a string; not expressible in a client's document. */
export function literalName(number: number): string {
  return `"${number}`
}

/** Replaces strings by variables; undefined when a string is not an argument of a query. */
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

/** Maps a position of the compiled document to this one. */
export function locate(position: number, compiled: readonly Span[], own: readonly Span[]): number {
  let shift = 0
  for (const [i, { start, length }] of compiled.entries()) {
    if (start >= position) break
    shift += (own[i]?.length ?? length) - length
  }
  return position + shift
}
