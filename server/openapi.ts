/**
 * OpenAPI 3.1 of the paths that are really there: the routes of the app, and below `/fhir/R4` the
 * interactions and the table of operations. https://spec.openapis.org/oas/v3.1.0
 */
import { operations } from '../shared/api/operations.ts'
import type { Operation } from '../shared/request/operation.ts'
import { type Access, isOpen } from './middleware/access.ts'
import { fhirAccess } from './routes/fhir.ts'

/** A path in OpenAPI's form, `/admin/projects/{id}`, and its methods in capitals. */
interface Served {
  readonly path: string
  readonly methods: readonly string[]
  readonly access: Access
}

/** `routes` are those of the app, without the FHIR ones. */
export function describeApi(baseUrl: string, routes: readonly Served[]): object {
  const paths = new Map<string, Record<string, object>>()
  for (const { path, methods, access } of [...routes.map(inBraces), ...fhirPaths]) {
    const item = paths.get(path) ?? parametersOf(path)
    for (const method of methods) item[method.toLowerCase()] = describeMethod(path, method, access)
    paths.set(path, item)
  }
  return {
    openapi: '3.1.0',
    info: { title: 'Botica', version: 'R4' },
    servers: [{ url: baseUrl.replace(/\/$/, '') }],
    security: [{ bearer: [] }],
    paths: Object.fromEntries([...paths].sort(([a], [b]) => (a < b ? -1 : 1))),
    components: {
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer' },
        basic: { type: 'http', scheme: 'basic' },
      },
      schemas: {
        Resource: {
          type: 'object',
          required: ['resourceType'],
          properties: { resourceType: { type: 'string' }, id: { type: 'string' } },
        },
        OperationOutcome: {
          type: 'object',
          required: ['resourceType', 'issue'],
          properties: {
            resourceType: { const: 'OperationOutcome' },
            id: { type: 'string' },
            issue: { type: 'array', items: { type: 'object' } },
          },
        },
      },
    },
  }
}

function inBraces({ path, methods, access }: Served): Served {
  return { path: path.replace(/:(\w+)/g, '{$1}'), methods, access }
}

const FHIR = '/fhir/R4'

type FhirPath = Omit<Served, 'access'>

/** As in shared/api/handle.ts and shared/api/jobs.ts. */
const INTERACTIONS: readonly FhirPath[] = [
  { path: FHIR, methods: ['GET', 'POST'] },
  { path: `${FHIR}/_history`, methods: ['GET'] },
  { path: `${FHIR}/_search`, methods: ['POST'] },
  { path: `${FHIR}/metadata`, methods: ['GET'] },
  { path: `${FHIR}/{resourceType}`, methods: ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] },
  { path: `${FHIR}/{resourceType}/_search`, methods: ['POST'] },
  { path: `${FHIR}/{resourceType}/_history`, methods: ['GET'] },
  { path: `${FHIR}/{resourceType}/{id}`, methods: ['GET', 'PUT', 'PATCH', 'DELETE'] },
  { path: `${FHIR}/{resourceType}/{id}/_history`, methods: ['GET'] },
  { path: `${FHIR}/{resourceType}/{id}/_history/{versionId}`, methods: ['GET'] },
  { path: `${FHIR}/{resourceType}/{id}/{target}`, methods: ['GET'] },
  { path: `${FHIR}/{resourceType}/{id}/{target}/_search`, methods: ['POST'] },
  { path: `${FHIR}/job/{id}/status`, methods: ['GET', 'DELETE'] },
  { path: `${FHIR}/job/{id}/result`, methods: ['GET'] },
]

/** All that is served below `/fhir/R4`. */
export const fhirPaths: readonly Served[] = [
  ...INTERACTIONS,
  ...operations.flatMap(operationPaths),
].map((served) => ({ ...served, access: fhirAccess(served.path.slice(FHIR.length + 1)) }))

function operationPaths({ name, on, methods }: Operation): readonly FhirPath[] {
  return on.map(({ level, type = '{resourceType}' }) => {
    const place = { system: '', type: `/${type}`, instance: `/${type}/{id}` }[level]
    return { path: `${FHIR}${place}/$${name}`, methods }
  })
}

function parametersOf(path: string): Record<string, object> {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
  if (names.length === 0) return {}
  return {
    parameters: names.map((name) => ({
      name,
      in: 'path',
      required: true,
      schema: { type: 'string' },
    })),
  }
}

function describeMethod(path: string, method: string, access: Access): object {
  const hasBody = method === 'POST' || method === 'PUT' || method === 'PATCH'
  return {
    operationId: `${method.toLowerCase()}${path.replace(/[^A-Za-z0-9]+/g, '-')}`.replace(/-$/, ''),
    tags: [tagOf(path)],
    ...securityOf(access),
    ...(hasBody ? { requestBody: { content: contentOf(path, method) } } : {}),
    responses: {
      '2XX': { description: 'Done' },
      default: {
        description: 'Refused or failed',
        content: {
          'application/fhir+json': { schema: { $ref: '#/components/schemas/OperationOutcome' } },
        },
      },
    },
  }
}

/** Whoever signs in does so by a token, which the description as a whole says. */
function securityOf(access: Access): object {
  if (access === 'secret') return { security: [{ basic: [] }, { bearer: [] }] }
  return isOpen(access) ? { security: [] } : {}
}

function contentOf(path: string, method: string): object {
  if (path.startsWith('/oauth2/') || path.endsWith('/_search')) {
    return { 'application/x-www-form-urlencoded': { schema: { type: 'object' } } }
  }
  if (method === 'PATCH') {
    return { 'application/json-patch+json': { schema: { type: 'array' } } }
  }
  if (path.endsWith('/$execute') || path.startsWith('/webhook/')) return { '*/*': {} }
  const type = path.startsWith(FHIR) ? 'application/fhir+json' : 'application/json'
  return { [type]: { schema: { $ref: '#/components/schemas/Resource' } } }
}

function tagOf(path: string): string {
  if (path.startsWith(`${FHIR}/Bot/`) || path.startsWith('/webhook/')) return 'bots'
  if (path.startsWith(`${FHIR}/job/`) || path.startsWith(`${FHIR}/AsyncJob/`)) return 'jobs'
  if (path.startsWith(FHIR)) return 'fhir'
  if (path.startsWith('/admin/')) return 'admin'
  if (path.startsWith('/auth/') || path.startsWith('/oauth2/')) return 'auth'
  return 'service'
}
