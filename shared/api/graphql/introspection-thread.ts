/** One introspection query against the whole schema; answers with its result as JSON text. */
import { parentPort, workerData } from 'node:worker_threads'
import { execute, parse } from 'graphql'
import type { IntrospectionTask } from './introspection.ts'
import { wholeSchema } from './schema.ts'

// What introspection.ts has sent.
const { query, operationName, variables, ...audience } = workerData as IntrospectionTask
const result = await execute({
  schema: wholeSchema(audience),
  document: parse(query),
  operationName,
  variableValues: variables,
})
parentPort?.postMessage(JSON.stringify(result))
