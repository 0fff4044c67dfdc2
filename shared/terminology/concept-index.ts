/** Concepts of a CodeSystem by code, with their hierarchy. Indexing a large one yields to the event loop. */
import { nextTurn } from '../core/yielding.ts'
import { isObject } from '../fhir/resource.ts'
import type { CodeSystem, Concept, Designation, Property } from '../fhir/terminology.ts'

export interface ConceptNode {
  readonly code: string
  readonly display: string | undefined
  readonly definition: string | undefined
  readonly designations: readonly Designation[]
  readonly properties: readonly Property[]
  readonly parents: readonly string[]
  readonly children: readonly string[]
}

export interface ConceptIndex {
  readonly nodes: ReadonlyMap<string, ConceptNode>
  readonly fold: Fold
}

/** Children are nested, or linked by the properties `parent`, `child`, `subsumedBy`. */
export async function indexConcepts(codeSystem: CodeSystem): Promise<ConceptIndex> {
  const fold = folding(codeSystem)
  const nodes = new Map<string, Draft>()
  await forEachYielding(nested(codeSystem.concept ?? [], undefined), ({ concept, parent }) => {
    nodes.set(fold(concept.code), toDraft(concept, parent))
  })
  await forEachYielding(nodes.values(), ({ code, parents, children }) => {
    for (const parent of parents) nodes.get(fold(parent))?.children.push(code)
    for (const child of children) nodes.get(fold(child))?.parents.push(code)
  })
  await forEachYielding(nodes.values(), (node) => {
    node.parents = distinct(node.parents)
    node.children = distinct(node.children)
  })
  return { fold, nodes }
}

interface Draft extends Omit<ConceptNode, 'parents' | 'children'> {
  parents: string[]
  children: string[]
}

function distinct(codes: string[]): string[] {
  return codes.length < 2 ? codes : [...new Set(codes)]
}

export type Fold = (code: string) => string

export const lower: Fold = (code) => code.toLowerCase()
const same: Fold = (code) => code

/** Returns the form in which codes of a system are compared. */
export function folding(codeSystem: CodeSystem | undefined): Fold {
  return codeSystem?.caseSensitive === false ? lower : same
}

interface Nested {
  readonly concept: Concept
  readonly parent: string | undefined
}

function* nested(concepts: readonly Concept[], parent: string | undefined): Generator<Nested> {
  for (const concept of concepts) {
    // A policy may hide the codes.
    if (concept.code !== undefined) yield { concept, parent }
    if (concept.concept !== undefined) yield* nested(concept.concept, concept.code)
  }
}

function toDraft(concept: Concept, parent: string | undefined): Draft {
  const { code, display, definition, designation = [], property = [] } = concept
  const parents = propertyCodes(property, PARENT)
  return {
    code,
    display,
    definition,
    designations: designation.filter(hasValue),
    properties: property.filter((item) => !PARENT.has(item.code) && item.code !== 'child'),
    parents: parent === undefined ? parents : [...parents, parent],
    children: propertyCodes(property, CHILD),
  }
}

/** A policy may hide the value, and a Project that is not strict may omit it. */
export function hasValue({ value }: Partial<Designation>): boolean {
  return value !== undefined
}

const PARENT = new Set(['parent', 'subsumedBy'])
const CHILD = new Set(['child'])

function propertyCodes(properties: readonly Property[], names: ReadonlySet<string>): string[] {
  return properties
    .filter(({ code }) => names.has(code))
    .flatMap((item) => propertyText(item) ?? [])
}

export function propertyText(property: Property): string | undefined {
  const member = Object.keys(property).find((name) => name.startsWith('value'))
  const value = member === undefined ? undefined : property[member]
  if (isObject(value) && 'code' in value) return String(value.code)
  return value === undefined ? undefined : String(value)
}

export function propertyValues(node: ConceptNode, property: string): readonly string[] {
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
      return node.properties
        .filter(({ code }) => code === property)
        .flatMap((p) => propertyText(p) ?? [])
  }
}

/** Returns all nodes reachable through `next`, including the start; cycles are safe. */
export async function collectReachable(
  { nodes, fold }: ConceptIndex,
  from: string,
  next: (node: ConceptNode) => readonly string[],
): Promise<ReadonlySet<ConceptNode>> {
  const found = new Set<ConceptNode>()
  const first = nodes.get(fold(from))
  if (first !== undefined) found.add(first)
  // A set iterates over items added meanwhile, too.
  await forEachYielding(found, (node) => {
    for (const code of next(node)) {
      const other = nodes.get(fold(code))
      if (other !== undefined) found.add(other)
    }
  })
  return found
}

/** Short steps between turns of the event loop. */
const STEPS = 500

/** Calls `work` for each item, yielding to the event loop at intervals. */
export async function forEachYielding<T>(
  items: Iterable<T>,
  work: (item: T) => void,
): Promise<void> {
  let left = STEPS
  for (const item of items) {
    work(item)
    left -= 1
    if (left > 0) continue
    left = STEPS
    await nextTurn()
  }
}
