/** `$graphql`, on everything or on one resource. https://hl7.org/fhir/R4/graphql.html */
import { mayReadAny } from '../access/policy.ts'
import { forbidden } from '../errors.ts'
import { readPreferences } from '../request/negotiate.ts'
import type { Operation } from '../request/operation.ts'
import { serveGraphql } from './serve.ts'

export const graphql: Operation = {
  name: 'graphql',
  on: [{ level: 'system' }, { level: 'instance' }],
  standard: 'Resource',
  methods: ['GET', 'POST'],
  ownFormat: true,
  countsLoad: true,
  async run({ services, principal, request, type, id }) {
    if (!mayReadAny(principal)) throw forbidden('no right to read any type')
    // Its media types are its own.
    const { accept: _accept, ...headers } = request.headers
    const preferences = readPreferences({ ...request, headers })
    const root = type === undefined || id === undefined ? undefined : { type, id }
    return serveGraphql({ services, principal, request, preferences }, root)
  },
}
