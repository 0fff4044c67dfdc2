/** Arguments of searches and of lists inside a resource. */

import {
  type GraphQLArgumentConfig,
  GraphQLEnumType,
  GraphQLInt,
  GraphQLNonNull,
  GraphQLString,
} from 'graphql'
import { getOrInsert } from '../../core/cache.ts'
import { tooCostly } from '../../core/errors.ts'
import { searchParameters } from '../../fhir/definitions.ts'
import type { Given } from './elements.ts'
import { type Child, graphqlTypeName, isText, listChildren, type Place } from './elements.ts'
import { listOfType } from './lazy.ts'

export type Arguments = Readonly<Record<string, GraphQLArgumentConfig>>

const texts = { type: listOfType(GraphQLString) }
const text = { type: GraphQLString }
const whole = { type: GraphQLInt }
const PAGING: Arguments = { _count: whole, _offset: whole, _sort: text, _cursor: text }
const PAGING_NAMES: ReadonlySet<string> = new Set(Object.keys(PAGING))
/** Not searchable, or only internally. */
const LEFT_OUT: ReadonlySet<string> = new Set([
  '_content',
  '_query',
  '_text',
  '_project',
  '_author',
])
const ADDED = ['_filter', '_account']

export function parameterNames(type: string): ReadonlyMap<string, string> {
  return getOrInsert(names, type, () => {
    const codes = [...searchParameters(type).keys(), ...ADDED].filter((code) => !LEFT_OUT.has(code))
    return new Map(codes.map((code) => [snake(code), code] as const).filter(isLegal))
  })
}

const names = new Map<string, ReadonlyMap<string, string>>()
const isLegal = ([name]: readonly [string, string]) => /^[_A-Za-z][_0-9A-Za-z]*$/.test(name)
const snake = (code: string) => code.replaceAll('-', '_')

export function searchArguments(type: string): Arguments {
  return getOrInsert(searches, type, () => ({
    ...Object.fromEntries([...parameterNames(type).keys()].map((name) => [name, texts])),
    ...PAGING,
  }))
}

const searches = new Map<string, Arguments>()

/** Returns the arguments of a nested list; `isShort` where the type can refer to anything: `_filter` covers the rest. */
export function reverseArguments(
  type: string,
  codes: readonly string[],
  isShort: boolean,
): Arguments {
  // Many types share the same reference parameters.
  return getOrInsert(reverses, `${type} ${codes.join(' ')} ${isShort}`, () => {
    const name = [type, ...codes.map(snake), isShort ? 'any' : 'reference'].join('_')
    const values = Object.fromEntries(codes.map((code) => [snake(code), { value: code }]))
    const reference = { type: new GraphQLNonNull(new GraphQLEnumType({ name, values })) }
    const { _id, ...all } = searchArguments(type)
    const others = isShort ? { ...PAGING, _filter: texts, _lastUpdated: texts } : all
    return { _reference: reference, ...others }
  })
}

const reverses = new Map<string, Arguments>()

/** Repeats are combined by AND; this is the search's limit of conditions. */
const MAX_REPEATS = 200

/** Returns the equivalent REST query string. Errors: 400 `too-costly`. */
export function restQuery(type: string, given: Given): URLSearchParams {
  const codes = parameterNames(type)
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(given)) {
    const code = PAGING_NAMES.has(name) ? name : codes.get(name)
    if (code === undefined || value === null) continue
    if (Array.isArray(value) && value.length > MAX_REPEATS) {
      throw tooCostly(`${name} may be given ${MAX_REPEATS} times`)
    }
    for (const one of Array.isArray(value) ? value : [value]) query.append(code, String(one))
  }
  return query
}

/** Returns the arguments of a list element: its text children, FHIRPath, and paging. */
export function listArguments({ content }: Child): Arguments {
  if (content.kind !== 'object') return PART
  const name = graphqlTypeName(content.place)
  return getOrInsert(lists, name, () => ({ ...filterArguments(content.place), ...PART }))
}

const lists = new Map<string, Arguments>()
const PART: Arguments = { fhirpath: text, _count: whole, _offset: whole }

function filterArguments(place: Place): Arguments {
  const filters = listChildren(place).filter(
    (child) =>
      !child.isChoice &&
      !child.isList &&
      child.content.kind === 'primitive' &&
      isText(child.content.code),
  )
  return Object.fromEntries(filters.map(({ name }) => [name, text]))
}
