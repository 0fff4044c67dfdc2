/** The fields that a query begins with, through its fragments, and parts of a query that have only some of them. */
import {
  type DocumentNode,
  type FieldNode,
  Kind,
  type OperationDefinitionNode,
  type SelectionNode,
  type SelectionSetNode,
} from 'graphql'

/** In the order of the answer; of a valid document. */
export function rootFields(
  document: DocumentNode,
  { selectionSet }: OperationDefinitionNode,
): readonly FieldNode[] {
  const fragments = fragmentsOf(document)
  const within = ({ selections }: SelectionSetNode): FieldNode[] =>
    selections.flatMap((selection) => {
      if (selection.kind === Kind.FIELD) return [selection]
      const inner = selectionsOf(selection, fragments)
      return inner === undefined ? [] : within(inner)
    })
  return within(selectionSet)
}

/** The name of a field in the answer. */
export function keyOf({ alias, name }: FieldNode): string {
  return (alias ?? name).value
}

/** The document with nothing but some root fields in one of its operations; undefined for none. */
export function withRootFields(
  document: DocumentNode,
  operation: OperationDefinitionNode,
  isWanted: (field: FieldNode) => boolean,
): Part | undefined {
  const fragments = fragmentsOf(document)
  const within = ({ selections }: SelectionSetNode): SelectionNode[] =>
    selections.flatMap((selection): SelectionNode[] => {
      if (selection.kind === Kind.FIELD) return isWanted(selection) ? [selection] : []
      const inner = selectionsOf(selection, fragments)
      const wanted = inner === undefined ? [] : within(inner)
      if (wanted.length === 0) return []
      const { directives = [] } = selection
      return [{ kind: Kind.INLINE_FRAGMENT, directives, selectionSet: setOf(wanted) }]
    })
  const wanted = within(operation.selectionSet)
  if (wanted.length === 0) return undefined
  const part = { ...operation, selectionSet: setOf(wanted) }
  const definitions = document.definitions.map((one) => (one === operation ? part : one))
  return { document: { ...document, definitions }, operation: part }
}

export interface Part {
  readonly document: DocumentNode
  readonly operation: OperationDefinitionNode
}

type Fragments = ReadonlyMap<string, SelectionSetNode>

function fragmentsOf({ definitions }: DocumentNode): Fragments {
  return new Map(
    definitions
      .filter((definition) => definition.kind === Kind.FRAGMENT_DEFINITION)
      .map(({ name, selectionSet }) => [name.value, selectionSet]),
  )
}

function selectionsOf(
  selection: Exclude<SelectionNode, FieldNode>,
  fragments: Fragments,
): SelectionSetNode | undefined {
  if (selection.kind === Kind.INLINE_FRAGMENT) return selection.selectionSet
  return fragments.get(selection.name.value)
}

function setOf(selections: readonly SelectionNode[]): SelectionSetNode {
  return { kind: Kind.SELECTION_SET, selections }
}
