/** Document limits, checked before validation where they bound its cost, and after it. */
import {
  type DocumentNode,
  type FieldNode,
  type FragmentDefinitionNode,
  GraphQLError,
  Kind,
  type OperationDefinitionNode,
  type SelectionSetNode,
  visit,
} from 'graphql'
import type { ProjectContext } from '../../access/principal.ts'
import type { Given } from '../schema/elements.ts'

const MAX_DEPTH = 24
const MAX_COST = 100_000
const MAX_ROOT_FIELDS = 100
const MAX_ALIASES = 500
/** Validation compares fragments pairwise. */
const MAX_FRAGMENTS = 100
/** Fields, with fragments counted at each spread. */
const MAX_FIELDS = 20_000
/** Pairs of fields with the same key, which validation compares. */
const MAX_PAIRS = 50_000
const MAX_LEVELS = 200

const MAX_VALUES = 30_000

const DEFAULT_COUNT = 20
const MAX_COUNT = 1000
const SEARCH_COST = 8

export const NOTABLE = { depth: 12, cost: 10_000 }

/** Finds structural errors of a document; linear in its length. */
export function shapeErrors(document: DocumentNode): GraphQLError[] {
  const errors: GraphQLError[] = []
  let aliases = 0
  let fragments = 0
  visit(document, {
    Field: ({ alias }) => {
      if (alias !== undefined) aliases++
    },
    FragmentDefinition: () => {
      fragments++
    },
    FragmentSpread: () => {
      fragments++
    },
  })
  const roots = document.definitions
    .filter((definition) => definition.kind === Kind.OPERATION_DEFINITION)
    .map(({ selectionSet }) => selectionSet.selections.length)
  if (Math.max(0, ...roots) > MAX_ROOT_FIELDS) {
    errors.push(new GraphQLError(`A document may have ${MAX_ROOT_FIELDS} root fields`))
  }
  if (aliases > MAX_ALIASES) {
    errors.push(new GraphQLError(`A document may have ${MAX_ALIASES} aliases, not ${aliases}`))
  }
  if (fragments > MAX_FRAGMENTS) {
    errors.push(new GraphQLError(`A document may have ${MAX_FRAGMENTS} fragments and spreads`))
  }
  return errors.length > 0 ? errors : mergeErrors(document)
}

/** Counts fields with fragments expanded, and the pairs with the same key. */
function mergeErrors(document: DocumentNode): GraphQLError[] {
  const fragments = fragmentDefinitions(document)
  let fields = 0
  let pairs = 0

  function walk(sets: readonly SelectionSetNode[], level: number): void {
    const groups = new Map<string, FieldNode[]>()
    const spread = new Set<string>()
    for (const set of sets) gather(set, groups, spread)
    for (const nodes of groups.values()) {
      pairs += (nodes.length * (nodes.length - 1)) / 2
      if (fields > MAX_FIELDS || pairs > MAX_PAIRS || level > MAX_LEVELS) return
      const inner = nodes.flatMap(({ selectionSet }) => selectionSet ?? [])
      if (inner.length > 0) walk(inner, level + 1)
    }
  }

  function gather(
    { selections }: SelectionSetNode,
    groups: Map<string, FieldNode[]>,
    spread: Set<string>,
  ): void {
    for (const selection of selections) {
      if (++fields > MAX_FIELDS) return
      if (selection.kind === Kind.FIELD) {
        const key = (selection.alias ?? selection.name).value
        const known = groups.get(key)
        if (known === undefined) groups.set(key, [selection])
        else known.push(selection)
      } else if (selection.kind === Kind.INLINE_FRAGMENT) {
        gather(selection.selectionSet, groups, spread)
      } else if (!spread.has(selection.name.value)) {
        spread.add(selection.name.value)
        const fragment = fragments.get(selection.name.value)
        if (fragment !== undefined) gather(fragment.selectionSet, groups, spread)
      }
    }
  }

  for (const definition of document.definitions) {
    if (definition.kind === Kind.OPERATION_DEFINITION) walk([definition.selectionSet], 0)
  }
  if (fields > MAX_FIELDS) {
    const text = `A document may ask for ${MAX_FIELDS} fields, those of fragments included`
    return [new GraphQLError(text)]
  }
  if (pairs <= MAX_PAIRS) return []
  return [new GraphQLError(`A document may have ${MAX_PAIRS} pairs of fields of one name`)]
}

export function fragmentDefinitions({
  definitions,
}: DocumentNode): ReadonlyMap<string, FragmentDefinitionNode> {
  const fragments = new Map<string, FragmentDefinitionNode>()
  for (const definition of definitions) {
    if (definition.kind === Kind.FRAGMENT_DEFINITION) {
      fragments.set(definition.name.value, definition)
    }
  }
  return fragments
}

export function variableErrors(variables: Given): GraphQLError[] {
  if (valuesLeft(variables, MAX_VALUES) > 0) return []
  return [new GraphQLError(`Variables may have ${MAX_VALUES} values`)]
}

function valuesLeft(value: unknown, most: number): number {
  if (typeof value !== 'object' || value === null) return most - 1
  let left = most - 1
  for (const child of Object.values(value)) {
    if (left <= 0) return 0
    left = valuesLeft(child, left)
  }
  return left
}

export interface OperationCost {
  readonly depth: number
  readonly cost: number
  readonly fields: number
}

/** Fragments of a valid document form no cycle. */
export function measureOperation(
  fragments: ReadonlyMap<string, FragmentDefinitionNode>,
  operation: OperationDefinitionNode,
  variables: Given,
): OperationCost {
  const known = new Map<SelectionSetNode, OperationCost>()
  const values = { ...defaultNumbers(operation), ...variables }

  function ofSelections(set: SelectionSetNode | undefined): OperationCost {
    if (set === undefined) return NOTHING
    const before = known.get(set)
    if (before !== undefined) return before
    let weight = NOTHING
    for (const selection of set.selections) {
      const part =
        selection.kind === Kind.FIELD
          ? ofField(selection)
          : ofSelections(
              selection.kind === Kind.INLINE_FRAGMENT
                ? selection.selectionSet
                : fragments.get(selection.name.value)?.selectionSet,
            )
      weight = {
        depth: Math.max(weight.depth, part.depth),
        cost: weight.cost + part.cost,
        fields: weight.fields + part.fields,
      }
    }
    known.set(set, weight)
    return weight
  }

  function ofField(field: FieldNode): OperationCost {
    const inside = ofSelections(field.selectionSet)
    const cost = fieldCost(field, inside.cost, values)
    return { depth: inside.depth + 1, cost, fields: inside.fields + 1 }
  }

  return ofSelections(operation.selectionSet)
}

function defaultNumbers({ variableDefinitions = [] }: OperationDefinitionNode): Given {
  const defaults = variableDefinitions.flatMap(({ variable, defaultValue }) =>
    defaultValue?.kind === Kind.INT ? [[variable.name.value, Number(defaultValue.value)]] : [],
  )
  return Object.fromEntries(defaults)
}

const NOTHING: OperationCost = { depth: 0, cost: 0, fields: 0 }

function fieldCost(field: FieldNode, children: number, variables: Given): number {
  const { value: name } = field.name
  if (/^[A-Z]\w*(List|Connection)$/.test(name)) {
    return SEARCH_COST + readCountArgument(field, variables) * children
  }
  return name === 'resource' ? 1 + 2 * children : children
}

function readCountArgument({ arguments: all = [] }: FieldNode, variables: Given): number {
  const value = all.find(({ name }) => name.value === '_count')?.value
  // Other values of a variable are rejected afterwards, when it is coerced.
  const given = value?.kind === Kind.VARIABLE ? variables[value.name.value] : undefined
  const known = value?.kind === Kind.INT ? Number(value.value) : given
  const count = typeof known === 'number' ? known : DEFAULT_COUNT
  return Math.min(Math.max(count, 0) || 0, MAX_COUNT)
}

/** Returns the errors of a valid document that exceeds its Project's limits. */
export function weightErrors(
  { depth, cost, fields }: OperationCost,
  { graphql }: ProjectContext,
): GraphQLError[] {
  const tooMuch: [string, number, number][] = [
    ['Field depth', depth, graphql?.depth ?? MAX_DEPTH],
    ['Query cost', cost, graphql?.cost ?? MAX_COST],
    ['Number of fields', fields, MAX_FIELDS],
  ]
  return tooMuch.flatMap(([weight, found, limit]) =>
    found > limit ? [new GraphQLError(`${weight} ${found} exceeds the limit of ${limit}`)] : [],
  )
}
