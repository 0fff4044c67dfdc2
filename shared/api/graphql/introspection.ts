/**
 * Introspection needs every type at once: a second of work and a hundred megabytes. A thread of its own
 * does it and ends; its answers are kept as text.
 */
import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { type DocumentNode, Kind, type OperationDefinitionNode, print } from 'graphql'
import { LRUCache } from 'lru-cache'
import type { Given } from './arguments.ts'
import type { Audience } from './schema.ts'

const MAX_KEPT_CHARACTERS = 100_000_000
const MEMORY_MB = 1024

export interface IntrospectionTask extends Audience {
  readonly query: string
  readonly operationName: string | undefined
  readonly variables: Given
}

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

/** The result as JSON text. */
export async function introspect(document: DocumentNode, task: Omit<IntrospectionTask, 'query'>) {
  const whole: IntrospectionTask = { ...task, query: print(document) }
  const key = JSON.stringify(whole)
  const known = kept.get(key)
  if (known !== undefined) return known
  const answer = running.get(key) ?? runInThread(whole)
  running.set(key, answer)
  try {
    const text = await answer
    kept.set(key, text)
    return text
  } finally {
    running.delete(key)
  }
}

async function runInThread(workerData: IntrospectionTask): Promise<string> {
  const thread = new Worker(new URL('introspection-thread.ts', import.meta.url), {
    workerData,
    resourceLimits: { maxOldGenerationSizeMb: MEMORY_MB },
  })
  try {
    // Rejects with what the thread failed with.
    const [text] = await once(thread, 'message')
    return String(text)
  } finally {
    await thread.terminate()
  }
}
