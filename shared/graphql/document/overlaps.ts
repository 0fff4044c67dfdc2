/**
 * Whether fields that stand under one key of the answer can be merged. graphql-js compares each with each
 * and does so at once, half a second for some hundred fragments; here each is compared with the first of
 * its key, in turns, which is as good where the parents are objects or a union. The walk also makes the
 * types that a document names. https://spec.graphql.org/draft/#sec-Field-Selection-Merging
 */
import {
  type ArgumentNode,
  type DefinitionNode,
  type DocumentNode,
  type FieldNode,
  GraphQLError,
  type GraphQLNamedType,
  type GraphQLOutputType,
  type GraphQLSchema,
  getNamedType,
  isAbstractType,
  isCompositeType,
  isListType,
  isNonNullType,
  Kind,
  type OperationDefinitionNode,
  print,
  type SelectionSetNode,
} from 'graphql'
import { keyOf } from '../schema/root-fields.ts'

/** Deeper than any document that is carried out. */
const MAX_LEVELS = 200

/** A selection of fields on a type; undefined for what is not there, which others tell. */
interface Selected {
  readonly set: SelectionSetNode
  readonly parent: GraphQLNamedType | undefined
}

interface Placed {
  readonly node: FieldNode
  readonly parent: GraphQLNamedType | undefined
  readonly type: GraphQLOutputType | undefined
}

/** Shapes must fit wherever fields stand; what they are must be the same where they may stand on one object. */
type Aspect = 'shape' | 'field'

/** Stops before each selection. Errors among those given back: more than `maxFields`, counted where fragments put them. */
export function* overlapErrors(
  schema: GraphQLSchema,
  document: DocumentNode,
  maxFields: number,
): Generator<void, readonly GraphQLError[]> {
  const fragments = new Map<string, Selected>()
  for (const definition of document.definitions) {
    if (definition.kind !== Kind.FRAGMENT_DEFINITION) continue
    const parent = schema.getType(definition.typeCondition.name.value)
    fragments.set(definition.name.value, { set: definition.selectionSet, parent })
  }
  const errors: GraphQLError[] = []
  let fields = 0
  const operations = document.definitions.filter(isOperation)
  for (const aspect of ['shape', 'field'] as const) {
    fields = 0
    for (const { operation, selectionSet } of operations) {
      const parent = schema.getRootType(operation) ?? undefined
      yield* walk([{ set: selectionSet, parent }], aspect, 0)
    }
    if (fields > maxFields) return [...errors, tooMany(maxFields)]
  }
  return errors

  function* walk(
    selected: readonly Selected[],
    aspect: Aspect,
    level: number,
  ): Generator<void, void> {
    if (level > MAX_LEVELS) return
    const groups = new Map<string, Placed[]>()
    const spread = new Set<string>()
    for (const one of selected) yield* gather(one, groups, spread)
    for (const [key, placed] of groups) {
      if (fields > maxFields) return
      for (const together of aspect === 'shape' ? [placed] : byParent(placed)) {
        const reason = conflictIn(together, aspect)
        if (reason !== undefined) errors.push(conflict(key, reason, together))
        const inner = together.flatMap(({ node, type }) =>
          node.selectionSet === undefined
            ? []
            : [{ set: node.selectionSet, parent: type && getNamedType(type) }],
        )
        if (inner.length > 0) yield* walk(inner, aspect, level + 1)
      }
    }
  }

  function* gather(
    { set, parent }: Selected,
    groups: Map<string, Placed[]>,
    spread: Set<string>,
  ): Generator<void, void> {
    for (const selection of set.selections) {
      yield
      if (++fields > maxFields) return
      if (selection.kind === Kind.FIELD) {
        const placed = { node: selection, parent, type: typeOf(parent, selection) }
        const known = groups.get(keyOf(selection))
        if (known === undefined) groups.set(keyOf(selection), [placed])
        else known.push(placed)
      } else if (selection.kind === Kind.INLINE_FRAGMENT) {
        const named = selection.typeCondition
        const on = named === undefined ? parent : schema.getType(named.name.value)
        yield* gather({ set: selection.selectionSet, parent: on }, groups, spread)
      } else if (!spread.has(selection.name.value)) {
        spread.add(selection.name.value)
        const fragment = fragments.get(selection.name.value)
        if (fragment !== undefined) yield* gather(fragment, groups, spread)
      }
    }
  }

  function typeOf(parent: GraphQLNamedType | undefined, { name }: FieldNode) {
    if (!isCompositeType(parent)) return undefined
    return schema.getField(parent, name.value)?.type
  }
}

function isOperation(definition: DefinitionNode): definition is OperationDefinitionNode {
  return definition.kind === Kind.OPERATION_DEFINITION
}

function tooMany(maxFields: number): GraphQLError {
  return new GraphQLError(`A document may ask for ${maxFields} fields, those of fragments included`)
}

/** Fields of a union may stand on any object. */
function byParent(placed: readonly Placed[]): Iterable<readonly Placed[]> {
  const groups = Map.groupBy(placed, ({ parent }) => (isAbstractType(parent) ? undefined : parent))
  const ofAny = groups.get(undefined)
  if (ofAny === undefined || groups.size === 1) return groups.values()
  groups.delete(undefined)
  return [...groups.values()].map((group) => [...ofAny, ...group])
}

function conflictIn([first, ...others]: readonly Placed[], aspect: Aspect): string | undefined {
  if (first === undefined) return undefined
  const find = aspect === 'shape' ? shapeConflict : fieldConflict
  for (const other of others) {
    const reason = find(first, other)
    if (reason !== undefined) return reason
  }
  return undefined
}

function shapeConflict({ type: one }: Placed, { type: other }: Placed): string | undefined {
  if (one === undefined || other === undefined || isSameShape(one, other)) return undefined
  return `they return conflicting types "${one}" and "${other}"`
}

function isSameShape(one: GraphQLOutputType, other: GraphQLOutputType): boolean {
  if (one === other) return true
  if (isNonNullType(one)) return isNonNullType(other) && isSameShape(one.ofType, other.ofType)
  if (isListType(one)) return isListType(other) && isSameShape(one.ofType, other.ofType)
  return isCompositeType(one) && isCompositeType(other)
}

function fieldConflict({ node: one }: Placed, { node: other }: Placed): string | undefined {
  const [name, otherName] = [one.name.value, other.name.value]
  if (name !== otherName) return `"${name}" and "${otherName}" are different fields`
  return isSame(one.arguments, other.arguments) ? undefined : 'they have differing arguments'
}

function isSame(one: readonly ArgumentNode[] = [], other: readonly ArgumentNode[] = []): boolean {
  if (one.length !== other.length) return false
  return one.every(({ name, value }) => {
    const found = other.find((argument) => argument.name.value === name.value)
    return found !== undefined && print(found.value) === print(value)
  })
}

function conflict(key: string, reason: string, placed: readonly Placed[]): GraphQLError {
  const text = `Fields "${key}" conflict because ${reason}. Use different aliases on the fields to fetch both if this was intentional.`
  return new GraphQLError(text, { nodes: placed.slice(0, 2).map(({ node }) => node) })
}
