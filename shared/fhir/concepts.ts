/** The concepts of one CodeSystem in memory, found by code, hierarchy, property and text. */

import { RE2JS, RE2JSException } from 're2js'
import { badRequest, notSupported } from '../errors.ts'
import { rankingOf } from './concept-text.ts'
import { isObject } from './resource.ts'
import type { CodeSystem, Concept, Designation, Filter, Property } from './terminology-data.ts'

export interface ConceptNode {
  readonly code: string
  readonly display: string | undefined
  readonly definition: string | undefined
  readonly designations: readonly Designation[]
  /** Without `parent` and `child`. */
  readonly properties: readonly Property[]
  readonly parents: readonly string[]
  readonly children: readonly string[]
}

export interface ConceptQuery {
  /** Only these. */
  readonly codes?: readonly string[] | undefined
  /** All must hold. */
  readonly filters?: readonly Filter[] | undefined
  readonly text?: string | undefined
  readonly activeOnly?: boolean | undefined
  readonly limit: number
}

export interface ConceptList {
  /** In the order of the system, or the best matches of the text first. */
  readonly concepts: readonly ConceptNode[]
  /** There are more than `limit`. */
  readonly isCut: boolean
}

export interface ConceptIndex {
  readonly nodes: ReadonlyMap<string, ConceptNode>
  readonly fold: (code: string) => string
}

/** Children are nested, or tell of each other by the properties `parent`, `child`, `subsumedBy`. */
export function indexConcepts(codeSystem: CodeSystem): ConceptIndex {
  const fold = codeSystem.caseSensitive === false ? lower : same
  const nodes = new Map<string, Draft>()
  collect(codeSystem.concept ?? [], undefined, nodes, fold)
  for (const { code, parents, children } of nodes.values()) {
    for (const parent of parents) nodes.get(fold(parent))?.children.push(code)
    for (const child of children) nodes.get(fold(child))?.parents.push(code)
  }
  for (const node of nodes.values()) {
    node.parents = distinct(node.parents)
    node.children = distinct(node.children)
  }
  return { fold, nodes }
}

interface Draft extends Omit<ConceptNode, 'parents' | 'children'> {
  parents: string[]
  children: string[]
}

function distinct(codes: string[]): string[] {
  return codes.length < 2 ? codes : [...new Set(codes)]
}

const same = (code: string) => code
const lower = (code: string) => code.toLowerCase()

function collect(
  concepts: readonly Concept[],
  parent: string | undefined,
  nodes: Map<string, Draft>,
  fold: (code: string) => string,
): void {
  for (const { code, display, definition, designation, property = [], concept = [] } of concepts) {
    const parents = codesOf(property, PARENT)
    if (parent !== undefined) parents.push(parent)
    nodes.set(fold(code), {
      code,
      display,
      definition,
      designations: designation ?? [],
      properties: property.filter((item) => !PARENT.has(item.code) && item.code !== 'child'),
      parents,
      children: codesOf(property, CHILD),
    })
    collect(concept, code, nodes, fold)
  }
}

const PARENT = new Set(['parent', 'subsumedBy'])
const CHILD = new Set(['child'])

function codesOf(properties: readonly Property[], names: ReadonlySet<string>): string[] {
  return properties.filter(({ code }) => names.has(code)).flatMap((item) => textOf(item) ?? [])
}

/** The value of a property as text. */
export function textOf(property: Property): string | undefined {
  const member = Object.keys(property).find((name) => name.startsWith('value'))
  const value = member === undefined ? undefined : property[member]
  if (isObject(value) && 'code' in value) return String(value.code)
  return value === undefined ? undefined : String(value)
}

/** Errors: 400 for filters that cannot be answered. */
export function listConcepts(index: ConceptIndex, query: ConceptQuery): ConceptList {
  const { codes, filters = [], text, activeOnly, limit } = query
  const tests = filters.map((filter) => filterTest(index, filter))
  const candidates =
    codes === undefined
      ? [...index.nodes.values()]
      : codes.flatMap((code) => index.nodes.get(index.fold(code)) ?? [])
  const found = candidates.filter(
    (node) => !(activeOnly && isInactive(node)) && tests.every((test) => test(node)),
  )
  const concepts = text === undefined ? found : ranked(found, text)
  return { concepts: concepts.slice(0, limit), isCut: concepts.length > limit }
}

/** Those that match, the best first; among equals the shorter display. */
export function ranked<T extends Pick<ConceptNode, 'code' | 'display'>>(
  concepts: readonly T[],
  text: string,
): readonly T[] {
  const rank = rankingOf(text)
  const places = new Map<T, number>()
  for (const concept of concepts) {
    const place = rank(concept.code, concept.display)
    if (place !== undefined) places.set(concept, place * 1000 + (concept.display?.length ?? 0))
  }
  return [...places].sort(([, a], [, b]) => a - b).map(([concept]) => concept)
}

/** https://hl7.org/fhir/R4/codesystem-concept-properties.html#inactive; deprecated codes are active. */
export function isInactive({ properties }: Pick<ConceptNode, 'properties'>): boolean {
  return properties.some(
    (item) =>
      (item.code === 'inactive' && textOf(item) === 'true') ||
      (item.code === 'status' && ['retired', 'inactive'].includes(textOf(item) ?? '')),
  )
}

/** Only there to group others. */
export function isAbstract({ properties }: Pick<ConceptNode, 'properties'>): boolean {
  return properties.some(
    (item) =>
      (item.code === 'notSelectable' || item.code === 'abstract') && textOf(item) === 'true',
  )
}

type NodeTest = (node: ConceptNode) => boolean

/** https://hl7.org/fhir/R4/valueset-filter-operator.html */
function filterTest(index: ConceptIndex, { property, op, value }: Filter): NodeTest {
  switch (op) {
    case '=':
      return (node) => valuesOf(node, property).includes(value)
    case 'in':
    case 'not-in': {
      const wanted = new Set(value.split(',').map((item) => item.trim()))
      const isIn = (node: ConceptNode) => valuesOf(node, property).some((item) => wanted.has(item))
      return op === 'in' ? isIn : (node) => !isIn(node)
    }
    case 'is-a':
    case 'descendent-of':
    case 'is-not-a': {
      const below = descendants(index, value)
      if (op === 'is-not-a') return (node) => !below.has(node)
      return op === 'is-a' ? (node) => below.has(node) : (node) => below.has(node) && !isSelf(node)
    }
    case 'generalizes': {
      const above = reach(index, value, (node) => node.parents)
      return (node) => above.has(node)
    }
    case 'regex': {
      const matches = compileRegex(value)
      return (node) => valuesOf(node, property).some(matches)
    }
    case 'exists': {
      const isWanted = value === 'true'
      return (node) => valuesOf(node, property).length > 0 === isWanted
    }
    default:
      throw notSupported(`Unknown filter operator: ${op}`)
  }
  function isSelf(node: ConceptNode): boolean {
    return index.fold(node.code) === index.fold(value)
  }
}

export function valuesOf(node: ConceptNode, property: string): readonly string[] {
  switch (property) {
    case 'code':
    case 'concept':
      return [node.code]
    case 'display':
      return node.display === undefined ? [] : [node.display]
    case 'parent':
      return node.parents
    case 'child':
      return node.children
    default:
      return node.properties.filter(({ code }) => code === property).flatMap((p) => textOf(p) ?? [])
  }
}

function descendants(index: ConceptIndex, root: string): ReadonlySet<ConceptNode> {
  return reach(index, root, (node) => node.children)
}

/** The node itself included; a hierarchy that runs in a circle ends. */
function reach(
  { nodes, fold }: ConceptIndex,
  from: string,
  next: (node: ConceptNode) => readonly string[],
): ReadonlySet<ConceptNode> {
  const found = new Set<ConceptNode>()
  const open = [from]
  for (let code = open.pop(); code !== undefined; code = open.pop()) {
    const node = nodes.get(fold(code))
    if (node === undefined || found.has(node)) continue
    found.add(node)
    open.push(...next(node))
  }
  return found
}

const LONGEST_REGEX = 1000

/** Whole values, in time linear to their length. Errors: 400 for what is no regular expression. */
export function compileRegex(pattern: string): (value: string) => boolean {
  if (pattern.length > LONGEST_REGEX) throw badRequest('The regular expression is too long')
  try {
    const compiled = RE2JS.compile(pattern)
    return (value) => compiled.matches(value)
  } catch (error) {
    if (error instanceof RE2JSException) throw badRequest('Invalid regular expression')
    throw error
  }
}
