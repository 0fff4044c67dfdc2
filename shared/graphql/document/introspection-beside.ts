/** Types asked for beside other things: each such field is answered as if it were asked for alone. */
import { promisify } from 'node:util'
import { gunzip } from 'node:zlib'
import type { DocumentNode, FieldNode, OperationDefinitionNode } from 'graphql'
import { tooLarge } from '../../errors.ts'
import type { LazySchema } from '../schema/lazy.ts'
import { keyOf, rootFields, withRootFields } from '../schema/root-fields.ts'
import { MAX_CHARACTERS } from '../write-json.ts'
import { introspect } from './introspection.ts'

/** By the names that root fields have in the answer, in their order: JSON of types, undefined for all else. */
export type Told = ReadonlyMap<string, Buffer | undefined>

export const unpack = promisify(gunzip)

/** `__schema` and `__type`, not `__typename`. */
export function asksForTypes({ name }: FieldNode): boolean {
  return name.value === '__schema' || name.value === '__type'
}

/** Errors: 413. */
export async function tellTypes(
  schema: LazySchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
  asked: Parameters<typeof introspect>[3],
): Promise<Told> {
  const told = new Map<string, Buffer | undefined>()
  let length = 0
  for (const field of rootFields(document, operation)) {
    const key = keyOf(field)
    if (told.has(key)) continue
    told.set(key, undefined)
    if (!asksForTypes(field)) continue
    const part = withRootFields(document, operation, (other) => keyOf(other) === key)
    if (part === undefined) continue
    const packed = await introspect(schema, part.document, part.operation, asked)
    const content: Buffer = await unpack(packed)
    length += content.length
    if (length > MAX_CHARACTERS) throw tooLarge()
    const start = Buffer.from(`{"data":{${JSON.stringify(key)}:`)
    // Else it is skipped, or its variables are wrong, which the other fields tell.
    const isTold = content.subarray(0, start.length).equals(start)
    if (isTold) told.set(key, content.subarray(start.length, -2))
  }
  return told
}

/** JSON of a result with what was told of types in its place: bytes, for it may be the whole schema. */
export async function writeBeside(
  { data, errors }: { readonly data: Record<string, unknown>; readonly errors?: unknown },
  told: Told,
  write: (value: unknown) => Promise<string>,
): Promise<Buffer> {
  const parts: (string | Buffer)[] = ['{"data":{']
  for (const key of new Set([...told.keys(), ...Object.keys(data)])) {
    const value = data[key]
    const part = told.get(key) ?? (value === undefined ? undefined : await write(value))
    if (part === undefined) continue
    parts.push(`${parts.length === 1 ? '' : ','}${JSON.stringify(key)}:`, part)
  }
  parts.push(errors === undefined ? '}}' : `},"errors":${await write(errors)}}`)
  return Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)))
}
