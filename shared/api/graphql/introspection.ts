/** Which queries ask for the schema itself, and their answers, which are kept as text. */
import { type DocumentNode, Kind, type OperationDefinitionNode, print } from 'graphql'
import { LRUCache } from 'lru-cache'
import type { Given } from './arguments.ts'
import { introspectionText } from './introspection-text.ts'
import type { LazySchema } from './lazy.ts'
import { openLevels } from './levels.ts'

/** One answer with the whole schema, and some smaller ones. */
const MAX_KEPT_CHARACTERS = 32_000_000

const kept = new LRUCache<string, string>({
  maxSize: MAX_KEPT_CHARACTERS,
  sizeCalculation: (text, key) => text.length + key.length,
})
const running = new Map<string, Promise<string>>()

/** `__schema` or `__type` is among the root fields, or in a fragment that may be one of them. */
export function isIntrospection(document: DocumentNode): boolean {
  return document.definitions.some(
    (definition) =>
      (definition.kind === Kind.OPERATION_DEFINITION ||
        definition.kind === Kind.FRAGMENT_DEFINITION) &&
      hasMeta(definition.selectionSet),
  )
}

function hasMeta({ selections }: OperationDefinitionNode['selectionSet']): boolean {
  return selections.some((selection) => {
    if (selection.kind === Kind.FIELD) return isMeta(selection.name.value)
    return selection.kind === Kind.INLINE_FRAGMENT && hasMeta(selection.selectionSet)
  })
}

/** The operation asks for nothing else. */
export function isPureIntrospection(
  document: DocumentNode,
  { selectionSet }: OperationDefinitionNode,
): boolean {
  const fragments = new Map(
    document.definitions
      .filter((definition) => definition.kind === Kind.FRAGMENT_DEFINITION)
      .map((definition) => [definition.name.value, definition.selectionSet]),
  )
  const isPure = ({ selections }: OperationDefinitionNode['selectionSet']): boolean =>
    selections.every((selection) => {
      if (selection.kind === Kind.FIELD) return selection.name.value.startsWith('__')
      if (selection.kind === Kind.INLINE_FRAGMENT) return isPure(selection.selectionSet)
      const fragment = fragments.get(selection.name.value)
      return fragment !== undefined && isPure(fragment)
    })
  return isPure(selectionSet)
}

function isMeta(name: string): boolean {
  return name === '__schema' || name === '__type'
}

/** The result as JSON text; made in turns of the event loop. Errors: 413. */
export async function introspect(
  schema: LazySchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
  { audience, variables }: { readonly audience: string; readonly variables: Given },
): Promise<string> {
  const key = JSON.stringify([audience, print(document), operation.name?.value, variables])
  const known = kept.get(key)
  if (known !== undefined) return known
  const answer = running.get(key) ?? answerOf(schema, document, operation, variables)
  running.set(key, answer)
  try {
    const text = await answer
    kept.set(key, text)
    return text
  } finally {
    running.delete(key)
  }
}

async function answerOf(
  schema: LazySchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
  variables: Given,
): Promise<string> {
  const { pace } = openLevels(() => undefined)
  await schema.makeAll(() => pace(1))
  const writing = introspectionText(schema, document, operation, variables)
  for (;;) {
    const { done, value } = writing.next()
    if (done) return value
    const turn = pace(1)
    if (turn !== undefined) await turn
  }
}
