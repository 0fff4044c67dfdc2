/** Answers to queries for the schema itself, which are kept as they are sent. */
import { buffer } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import { type DocumentNode, type OperationDefinitionNode, print } from 'graphql'
import { LRUCache } from 'lru-cache'
import { tooLarge } from '../../errors.ts'
import { openLevels } from '../levels.ts'
import type { Given } from '../request-state.ts'
import type { LazySchema } from '../schema/lazy.ts'
import { MAX_CHARACTERS } from '../write-json.ts'
import { introspectionText } from './introspection-text.ts'

/** Some answers with the whole schema: packed they take a twentieth. */
const MAX_KEPT_BYTES = 8_000_000
const PACKED_TOGETHER = 65_536
/** 75 ms for the whole schema; one more would be 180, for a fourteenth less. */
const GZIP_LEVEL = 3

const kept = new LRUCache<string, Buffer>({
  maxSize: MAX_KEPT_BYTES,
  sizeCalculation: (packed, key) => packed.length + key.length,
})
const running = new Map<string, Promise<Buffer>>()

/** The result as JSON text in gzip; made in turns of the event loop. Errors: 413. */
export async function introspect(
  schema: LazySchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
  { audience, variables }: { readonly audience: string; readonly variables: Given },
): Promise<Buffer> {
  const key = JSON.stringify([audience, print(document), operation.name?.value, variables])
  const known = kept.get(key)
  if (known !== undefined) return known
  const answer = running.get(key) ?? answerOf(schema, document, operation, variables)
  running.set(key, answer)
  try {
    const packed = await answer
    kept.set(key, packed)
    return packed
  } finally {
    running.delete(key)
  }
}

async function answerOf(
  schema: LazySchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
  variables: Given,
): Promise<Buffer> {
  const { pace } = openLevels(() => undefined)
  await schema.makeAll(() => pace(1))
  const parts = introspectionText(schema, document, operation, variables)
  const packer = createGzip({ level: GZIP_LEVEL })
  const [packed] = await Promise.all([buffer(packer), pipeline(gathered(parts, pace), packer)])
  return packed
}

async function* gathered(
  parts: Iterable<string>,
  pace: (work: number) => Promise<void> | undefined,
): AsyncGenerator<string> {
  let text = ''
  let length = 0
  for (const part of parts) {
    text += part
    length += part.length
    if (length > MAX_CHARACTERS) throw tooLarge()
    if (text.length > PACKED_TOGETHER) {
      yield text
      text = ''
    }
    const turn = pace(1)
    if (turn !== undefined) await turn
  }
  yield text
}
