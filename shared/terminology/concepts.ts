/** In-memory concepts of one CodeSystem, found by code, hierarchy, property and text. */

import { RE2JS, RE2JSException } from 're2js'
import { badRequest, notSupported } from '../core/errors.ts'
import type { Filter } from '../fhir/terminology.ts'
import { normaliseString } from '../fhir/values.ts'
import {
  type ConceptIndex,
  type ConceptNode,
  collectReachable,
  forEachYielding,
  propertyText,
  propertyValues,
} from './concept-index.ts'

export interface ConceptQuery {
  readonly codes?: readonly string[] | undefined
  readonly filters?: readonly Filter[] | undefined
  readonly text?: string | undefined
  readonly activeOnly?: boolean | undefined
  readonly selectableOnly?: boolean | undefined
  readonly limit: number
}

export interface ConceptList {
  /** In system order, or best text matches first. */
  readonly concepts: readonly ConceptNode[]
  /** True when there are more than `limit`. */
  readonly isCut: boolean
}

/** Errors: 400 for unsupported filters. */
export async function listConcepts(index: ConceptIndex, query: ConceptQuery): Promise<ConceptList> {
  const { codes, filters = [], text, activeOnly, selectableOnly, limit } = query
  const tests = await Promise.all(filters.map((filter) => filterTest(index, filter)))
  const candidates =
    codes?.flatMap((code) => index.nodes.get(index.fold(code)) ?? []) ?? index.nodes.values()
  const found: ConceptNode[] = []
  await forEachYielding(candidates, (node) => {
    if (activeOnly && isInactive(node)) return
    if (selectableOnly && isAbstract(node)) return
    if (tests.every((test) => test(node))) found.push(node)
  })
  const concepts = text === undefined ? found : await rankConcepts(found, text)
  return { concepts: concepts.slice(0, limit), isCut: concepts.length > limit }
}

/** Returns matches, best first; shorter displays win ties. */
export async function rankConcepts<T extends Pick<ConceptNode, 'code' | 'display'>>(
  concepts: readonly T[],
  text: string,
): Promise<readonly T[]> {
  const rank = compileRanking(text)
  const places = new Map<T, number>()
  await forEachYielding(concepts, (concept) => {
    const place = rank(concept.code, concept.display)
    if (place !== undefined) places.set(concept, place * 1000 + (concept.display?.length ?? 0))
  })
  return [...places].sort(([, a], [, b]) => a - b).map(([concept]) => concept)
}

/** https://hl7.org/fhir/R4/codesystem-concept-properties.html#inactive; deprecated codes are active. */
export function isInactive({ properties }: Pick<ConceptNode, 'properties'>): boolean {
  return properties.some(
    (item) =>
      (item.code === 'inactive' && propertyText(item) === 'true') ||
      (item.code === 'status' && ['retired', 'inactive'].includes(propertyText(item) ?? '')),
  )
}

/** True for concepts that only group others. */
export function isAbstract({ properties }: Pick<ConceptNode, 'properties'>): boolean {
  return properties.some(
    (item) =>
      (item.code === 'notSelectable' || item.code === 'abstract') && propertyText(item) === 'true',
  )
}

type NodeTest = (node: ConceptNode) => boolean

/** https://hl7.org/fhir/R4/valueset-filter-operator.html */
async function filterTest(index: ConceptIndex, { property, op, value }: Filter): Promise<NodeTest> {
  switch (op) {
    case '=':
      return (node) => propertyValues(node, property).includes(value)
    case 'in':
    case 'not-in': {
      const wanted = new Set(value.split(',').map((item) => item.trim()))
      const isIn = (node: ConceptNode) =>
        propertyValues(node, property).some((item) => wanted.has(item))
      return op === 'in' ? isIn : (node) => !isIn(node)
    }
    case 'is-a':
    case 'descendent-of':
    case 'is-not-a': {
      const below = await collectReachable(index, value, (node) => node.children)
      if (op === 'is-not-a') return (node) => !below.has(node)
      return op === 'is-a' ? (node) => below.has(node) : (node) => below.has(node) && !isSelf(node)
    }
    case 'generalizes': {
      const above = await collectReachable(index, value, (node) => node.parents)
      return (node) => above.has(node)
    }
    case 'regex': {
      const matches = compileRegex(value)
      return (node) => propertyValues(node, property).some(matches)
    }
    case 'exists': {
      const isWanted = value === 'true'
      return (node) => propertyValues(node, property).length > 0 === isWanted
    }
    default:
      throw notSupported(`Unknown filter operator: ${op}`)
  }
  function isSelf(node: ConceptNode): boolean {
    return index.fold(node.code) === index.fold(value)
  }
}

const LONGEST_REGEX = 1000

/** Matches whole values in linear time. Errors: 400 for an invalid regular expression. */
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

// Text search: every word must begin a word of the display, or the code

const MAX_WORDS = 10

export function comparableWords(text: string): readonly string[] {
  return split(normaliseString(text))
}

function split(normalised: string): readonly string[] {
  return normalised.split(/[^\p{L}\p{N}]+/u).filter((word) => word !== '')
}

export function filterWords(text: string): readonly string[] {
  return [...new Set(comparableWords(text))].slice(0, MAX_WORDS)
}

/** Smaller is better; undefined: no match. */
type Ranking = (code: string, display: string | undefined) => number | undefined

/** Ranks by whole display, its beginning, its first word, any word. */
function compileRanking(text: string): Ranking {
  const wanted = normaliseString(text)
  const words = filterWords(text)
  const [first = ''] = words
  return (code, display = '') => {
    const shown = normaliseString(display)
    const folded = normaliseString(code)
    if (folded === wanted) return 0
    // Fast rejection of most displays.
    if (!words.every((word) => shown.includes(word) || folded.startsWith(word))) return undefined
    const own = split(shown)
    const isMatch = words.every(
      (word) => folded.startsWith(word) || own.some((item) => item.startsWith(word)),
    )
    if (!isMatch || words.length === 0) return undefined
    if (shown === wanted) return 0
    if (shown.startsWith(wanted)) return 1
    return own[0]?.startsWith(first) ? 2 : 3
  }
}
