/** Types asked for beside other things: each such field is answered as if it were asked for alone. */
import { promisify } from 'node:util'
import { gunzip } from 'node:zlib'
import type { DocumentNode, FieldNode, OperationDefinitionNode } from 'graphql'
import { tooLarge } from '../../errors.ts'
import { introspect } from './introspection.ts'
import type { LazySchema } from './lazy.ts'
import { keyOf, rootFields, withRootFields } from './root-fields.ts'
import { MAX_CHARACTERS, writeJson } from './write-json.ts'

/** By the names that root fields have in the answer, in their order; undefined for all but types. */
export type Told = ReadonlyMap<string, string | undefined>

export const unpack = promisify(gunzip)

/** `__schema` and `__type`, not `__typename`. */
export function asksForTypes({ name }: FieldNode): boolean {
  return name.value === '__schema' || name.value === '__type'
}

/** JSON texts of the fields that ask for types. Errors: 413. */
export async function tellTypes(
  schema: LazySchema,
  document: DocumentNode,
  operation: OperationDefinitionNode,
  asked: Parameters<typeof introspect>[3],
): Promise<Told> {
  const told = new Map<string, string | undefined>()
  let length = 0
  for (const field of rootFields(document, operation)) {
    const key = keyOf(field)
    if (told.has(key)) continue
    told.set(key, undefined)
    if (!asksForTypes(field)) continue
    const part = withRootFields(document, operation, (other) => keyOf(other) === key)
    if (part === undefined) continue
    const packed = await introspect(schema, part.document, part.operation, asked)
    const text = (await unpack(packed)).toString()
    length += text.length
    if (length > MAX_CHARACTERS) throw tooLarge()
    const start = `{"data":{${JSON.stringify(key)}:`
    // Else it is skipped, or its variables are wrong, which the other fields tell.
    if (text.startsWith(start)) told.set(key, text.slice(start.length, -2))
  }
  return told
}

/** The JSON text of a result with what was told of types in its place. */
export async function writeBeside(
  data: Readonly<Record<string, unknown>>,
  told: Told,
  rest: () => Promise<void>,
): Promise<string> {
  const members: string[] = []
  for (const key of new Set([...told.keys(), ...Object.keys(data)])) {
    const value = data[key]
    const text = told.get(key) ?? (value === undefined ? undefined : await writeJson(value, rest))
    if (text !== undefined) members.push(`${JSON.stringify(key)}:${text}`)
  }
  return `{${members.join(',')}}`
}
