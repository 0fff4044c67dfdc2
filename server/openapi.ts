/**
 * OpenAPI 3.1 of the paths that are really there: the routes of the app, and below `/fhir/R4` the
 * interactions and the table of operations. https://spec.openapis.org/oas/v3.1.0
 */
import program from '../package.json' with { type: 'json' }
import type { Operation } from '../shared/api/operation.ts'
import { operations } from '../shared/api/operations/table.ts'

/** A path in OpenAPI's form, `/admin/projects/{id}`, and its methods in capitals. */
export interface Served {
  readonly path: string
  readonly methods: readonly string[]
}

/** `routes` are those of the app, without the FHIR ones. */
export function describeApi(baseUrl: string, routes: readonly Served[]): object {
  const served = [...routes, ...INTERACTIONS, ...operations.flatMap(operationPaths)]
  const paths = new Map<string, Record<string, object>>()
  for (const { path, methods } of served) {
    const item = paths.get(path) ?? parametersOf(path)
    for (const method of methods) item[method.toLowerCase()] = describeMethod(path, method)
    paths.set(path, item)
  }
  return {
    openapi: '3.1.0',
    info: { title: 'Botica', version: program.version },
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

const FHIR = '/fhir/R4'

/** As in shared/api/route.ts and shared/api/jobs.ts. */
const INTERACTIONS: readonly Served[] = [
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

function operationPaths({ name, on, methods }: Operation): readonly Served[] {
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

const OPEN = [
  /^\/$/,
  /^\/(healthcheck|livez|robots\.txt|openapi\.json)$/,
  /^\/\.well-known\//,
  /^\/fhir\/R4\/(metadata|\$versions|\.well-known\/)/,
  /^\/(storage|webhook)\//,
  /^\/auth\/(method|login|profile|scope|newuser|newproject|newpatient|resetpassword|setpassword)\b/,
  /^\/auth\/(verifyemail|clientinfo|google|external|exchange|mfa\/(login-enroll|verify))\b/,
  /^\/oauth2\/(authorize|register|token)$/,
  /^\/(oauth|signin|graphiql|resetpassword|setpassword|verifyemail|pages)\b(?!2)/,
]
/** A client proves itself by Basic or in the form. */
const CLIENTS_OWN = /^\/oauth2\/(introspect|revoke)$/

function describeMethod(path: string, method: string): object {
  const isOpen = OPEN.some((pattern) => pattern.test(path))
  const hasBody = method === 'POST' || method === 'PUT' || method === 'PATCH'
  return {
    operationId: `${method.toLowerCase()}${path.replace(/[^A-Za-z0-9]+/g, '-')}`.replace(/-$/, ''),
    tags: [tagOf(path)],
    ...(isOpen ? { security: [] } : {}),
    ...(CLIENTS_OWN.test(path) ? { security: [{ basic: [] }, { bearer: [] }] } : {}),
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
