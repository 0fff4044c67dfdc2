/** Tools of the service: each call is one or more FHIR requests of the caller. */
import type { Principal } from '../../shared/access/principal.ts'
import { smartScopes } from '../../shared/access/scopes.ts'
import { handle } from '../../shared/api/handle.ts'
import { badRequest } from '../../shared/core/errors.ts'
import type { OWN_TOOLS } from '../../shared/fhir/bot-tool.ts'
import { readQuery } from '../../shared/request/negotiate.ts'
import { fhirBases, withoutBase } from '../../shared/request/reply.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'

/** Characters of a result, some 10,000 tokens. */
export const MOST_CHARACTERS = 40_000

export interface ToolCaller {
  readonly services: Services
  readonly principal: Principal
  /** Ids of the request to `/mcp`, and the signal of its end. */
  readonly request: Pick<FhirRequest, 'projectScope' | 'requestId' | 'traceId' | 'signal'>
}

export interface OwnTool {
  readonly name: (typeof OWN_TOOLS)[number]
  readonly title: string
  readonly description: string
  readonly inputSchema: Readonly<Record<string, unknown>>
  readonly readOnly: boolean
  run(caller: ToolCaller, args: Readonly<Record<string, unknown>>): Promise<FhirReply>
}

const USUAL_COUNT = 20
const MOST_COUNT = 100
const WRITES = ['POST', 'PUT', 'PATCH', 'DELETE']
const TYPE = { type: 'string', pattern: '^[A-Z][A-Za-z]+$', description: 'A FHIR resource type' }

/** True when the scope allows writes expressly; without SMART words, tools only read. */
function mayWrite({ scope }: Principal): boolean {
  return smartScopes(scope).some(({ interactions }) =>
    (['create', 'update', 'delete'] as const).some((one) => interactions.has(one)),
  )
}

export function ownTools(principal: Principal): readonly OwnTool[] {
  const writes = mayWrite(principal)
  return [READ, SEARCH, requestTool(writes), graphqlTool(writes)]
}

const READ: OwnTool = {
  name: 'fhir-read',
  title: 'Read a resource',
  description: 'Reads one FHIR R4 resource by type and id. Name elements to get only those.',
  inputSchema: {
    type: 'object',
    properties: {
      type: TYPE,
      id: { type: 'string', pattern: '^[A-Za-z0-9.-]{1,64}$' },
      elements: { type: 'array', items: { type: 'string', pattern: '^[A-Za-z.]+$' } },
    },
    required: ['type', 'id'],
    additionalProperties: false,
  },
  readOnly: true,
  run(caller, { type, id, elements = [] }) {
    const names = [elements].flat().join(',')
    const query = names === '' ? {} : { _elements: names }
    return ask(caller, { path: `${type}/${id}`, query: new URLSearchParams(query) })
  },
}

const SEARCH: OwnTool = {
  name: 'fhir-search',
  title: 'Search resources',
  description:
    'Searches FHIR R4 resources of a type. The query has the search parameters of FHIR, such as name=smith&birthdate=ge1990&_sort=-_lastUpdated. Returns a Bundle, with fewer entries than asked for if they are large; the link "next" has the rest, for fhir-request.',
  inputSchema: {
    type: 'object',
    properties: {
      type: TYPE,
      query: { type: 'string', description: 'Search parameters, without a question mark' },
      count: { type: 'integer', minimum: 1, maximum: MOST_COUNT },
    },
    required: ['type'],
    additionalProperties: false,
  },
  readOnly: true,
  run(caller, { type, query = '', count }) {
    const asked = readQuery(String(query).replace(/^\?/, ''))
    if (count !== undefined) asked.set('_count', String(count))
    return search(caller, String(type), asked)
  },
}

function requestTool(writes: boolean): OwnTool {
  return {
    name: 'fhir-request',
    title: writes ? 'Send a FHIR request' : 'Send a FHIR request that reads',
    description: `Sends a request to the FHIR R4 API${writes ? '' : ', reading only'}: any interaction or operation, such as Patient/[id]/_history or Patient/[id]/$everything. The path is below the FHIR base, or a link of a result.`,
    inputSchema: {
      type: 'object',
      properties: {
        method: writes
          ? { enum: ['GET', ...WRITES] }
          : { enum: ['GET'], description: 'The scope of the token allows no writes' },
        path: { type: 'string', description: 'Path and query' },
        ...(writes ? { body: { description: 'A resource, or a JSON Patch' } } : {}),
      },
      required: ['method', 'path'],
      additionalProperties: false,
    },
    readOnly: !writes,
    run: (caller, args) => sendRequest(caller, writes, args),
  }
}

async function sendRequest(
  caller: ToolCaller,
  writes: boolean,
  asked: Readonly<Record<string, unknown>>,
): Promise<FhirReply> {
  const method = String(asked.method)
  const { path, query } = readTarget(caller, String(asked.path))
  if (method === 'GET' && /^[A-Z][A-Za-z]+$/.test(path)) return await search(caller, path, query)
  if (method === 'GET') return await ask(caller, { path, query, readsOnly: !writes })
  const body = typeof asked.body === 'string' ? asked.body : JSON.stringify(asked.body)
  const isPatch = method === 'PATCH' && body?.trimStart().startsWith('[') === true
  const type = isPatch ? 'application/json-patch+json' : 'application/fhir+json'
  return await ask(caller, { method, path, query, body, type })
}

function graphqlTool(writes: boolean): OwnTool {
  return {
    name: 'graphql',
    title: 'Query by GraphQL',
    description: `Runs a GraphQL ${writes ? 'query or mutation' : 'query'} over FHIR resources, such as { PatientList(name: "smith") { id name { family } } }. Returns only the fields asked for.`,
    inputSchema: {
      type: 'object',
      properties: { query: { type: 'string' }, variables: { type: 'object' } },
      required: ['query'],
      additionalProperties: false,
    },
    readOnly: !writes,
    run(caller, { query, variables = {} }) {
      const path = '$graphql'
      // A GET runs no mutations.
      if (!writes) {
        const given = { query: String(query), variables: JSON.stringify(variables) }
        return ask(caller, { path, query: new URLSearchParams(given) })
      }
      const body = JSON.stringify({ query, variables })
      return ask(caller, { method: 'POST', path, body, type: 'application/json' })
    },
  }
}

/** Searches again with fewer entries while the page exceeds the budget, so that its next link has the others. */
async function search(
  caller: ToolCaller,
  type: string,
  query: URLSearchParams,
): Promise<FhirReply> {
  const given = query.get('_count')
  const isCount = given === null || /^\d{1,9}$/.test(given)
  if (!isCount) return await ask(caller, { path: type, query })
  let count = Math.min(Number(given ?? USUAL_COUNT), MOST_COUNT)
  for (;;) {
    query.set('_count', String(count))
    const reply = await ask(caller, { path: type, query })
    const { body } = reply
    const size = typeof body === 'string' ? body.length : 0
    if (size <= MOST_CHARACTERS || typeof body !== 'string') return reply
    const matches = Math.min(count, body.split('"mode":"match"').length - 1)
    if (matches <= 1) return reply
    count = Math.min(matches - 1, Math.max(1, Math.floor((matches * MOST_CHARACTERS) / size)))
  }
}

interface Asked {
  readonly method?: string
  readonly path: string
  readonly query?: URLSearchParams
  readonly readsOnly?: boolean
  readonly body?: string | undefined
  readonly type?: string
}

const NO_QUERY = new URLSearchParams()

/** Sends a request of the caller on the way of all others, with its limits and audit. */
export function ask(caller: ToolCaller, asked: Asked): Promise<FhirReply> {
  const { services, principal, request } = caller
  const { method = 'GET', path, query = NO_QUERY, readsOnly = false, body, type } = asked
  const json = 'application/fhir+json'
  const headers = { accept: path === '$graphql' ? 'application/json' : json }
  return handle(services, principal, {
    ...request,
    method,
    path,
    query,
    queryText: query.toString(),
    readsOnly,
    headers: type === undefined ? headers : { ...headers, 'content-type': type },
    body,
  })
}

/** Errors: 400 for an address of another server and for an ambiguous path. */
function readTarget(
  { services, principal }: ToolCaller,
  text: string,
): { readonly path: string; readonly query: URLSearchParams } {
  const below = withoutBase(fhirBases(services, principal.project.id), text.trim())
  const mark = below.indexOf('?')
  const path = mark < 0 ? below : below.slice(0, mark)
  const segments = path.replaceAll('%24', '$').split('/').filter(Boolean)
  const isPlain = segments.every((one) => /^[\w$*.-]+$/.test(one) && !/^\.+$/.test(one))
  if (!isPlain) throw badRequest('The path must be below the FHIR base, such as Patient/1', 'path')
  return { path: segments.join('/'), query: readQuery(mark < 0 ? '' : below.slice(mark + 1)) }
}
