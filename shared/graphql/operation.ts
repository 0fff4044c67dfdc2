/** The GraphQL operation. Its library is loaded by the first query; the web process loads it at its start. */
import { mayReadAny } from '../access/policy.ts'
import { forbidden } from '../core/errors.ts'
import { readPreferences } from '../request/negotiate.ts'
import type { Operation } from '../request/request.ts'

export const graphql: Operation = {
  name: 'graphql',
  on: [{ level: 'system' }, { level: 'instance' }],
  standard: 'Resource',
  methods: ['GET', 'POST'],
  text: {
    summary: 'Query by GraphQL',
    body: {
      query: 'text!: The query',
      variables: 'object: Its variables',
      operationName: 'text: Of several queries',
    },
    example: { query: '{ PatientList(name: "chalmers") { id name { given } } }' },
    answer: { data: 'object: The result', errors: 'list: The errors' },
  },
  ownFormat: true,
  countsLoad: true,
  async run({ services, principal, request, type, id }) {
    if (!mayReadAny(principal)) throw forbidden('no right to read any type')
    // graphql-http has its own media types.
    const { accept: _accept, ...headers } = request.headers
    const preferences = readPreferences({ ...request, headers })
    const root = type === undefined || id === undefined ? undefined : { type, id }
    const { serveGraphql } = await import('./serve.ts')
    return serveGraphql({ services, principal, request, preferences }, root)
  },
}
