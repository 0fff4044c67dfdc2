/** Imports the tables of operations and types, to find each in the document. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { operations } from '../../../shared/api/operations.ts'
import { resourceTypes } from '../../../shared/fhir/definitions.ts'
import { openBotica } from '../../fixtures/botica.ts'

const { anonymous, admin, baseUrl, createMember } = await openBotica(t)

interface Method {
  readonly operationId: string
  readonly summary: string
  readonly description: string
  readonly requestBody?: unknown
  readonly responses: Readonly<Record<string, { readonly content?: unknown }>>
  readonly security?: readonly unknown[]
}

interface Document {
  readonly openapi: string
  readonly servers: readonly { readonly url: string }[]
  readonly components: {
    readonly schemas: Readonly<Record<string, { readonly properties?: Record<string, unknown> }>>
  }
  readonly paths: Readonly<Record<string, Readonly<Record<string, Method>>>>
}

const { status, body, headers } = await anonymous.get<Document>('/openapi.json')
const METHODS = ['get', 'post', 'put', 'patch', 'delete']
const calls = Object.entries(body.paths).flatMap(([path, item]) =>
  METHODS.flatMap((method) => {
    const described = item[method]
    return described === undefined ? [] : [{ path, method, described }]
  }),
)

t.test('returns the OpenAPI document without a token', async (t) => {
  t.equal(status, 200)
  t.match(headers.get('content-type'), 'application/json')
  t.match(body, { openapi: '3.1.0', servers: [{ url: baseUrl.slice(0, -1) }] })
})

t.test('serves the page of the API from copied files', async (t) => {
  for (const path of ['', '/swagger-ui-bundle.js', '/swagger-ui.css', '/start.js']) {
    t.equal((await anonymous.get(`/docs/api${path}`)).status, 200, path)
  }
})

t.test('lists the paths of every part of the service', async (t) => {
  const paths = [
    '/admin/Project',
    '/admin/projects/{id}/bot',
    '/auth/me',
    '/oauth2/token',
    '/fhir/R4/Bot/{id}/$execute',
    '/fhir/R4/job/{id}/status',
    '/fhir/R4/{resourceType}/{id}',
    '/healthcheck',
  ]
  for (const path of paths) t.ok(body.paths[path], path)
  for (const { name } of operations) {
    t.ok(
      Object.keys(body.paths).some((path) => path.endsWith(`/$${name}`)),
      name,
    )
  }
})

t.test('describes each call with its request and responses', async (t) => {
  for (const { path, method, described } of calls) {
    const what = `${method} ${path}`
    t.ok(described.summary, what)
    t.ok(described.description.length > 5, what)
    t.match(described.responses, { default: { $ref: '#/components/responses/Refused' } }, what)
    t.notOk(method === 'get' && described.requestBody, what)
  }
  const create = body.paths['/fhir/R4/{resourceType}']?.post
  t.match(create, {
    requestBody: {
      content: {
        'application/fhir+json': {
          schema: { $ref: '#/components/schemas/Resource' },
          example: { resourceType: 'Patient' },
        },
      },
    },
    responses: { 201: { description: 'Done' } },
  })
})

t.test('has a schema for every resource type and reference', async (t) => {
  const { schemas } = body.components
  for (const type of resourceTypes) {
    t.match(schemas[type], { properties: { resourceType: { const: type } } }, type)
  }
  t.match(schemas.Patient?.properties, {
    name: { type: 'array', items: { $ref: '#/components/schemas/HumanName' } },
    birthDate: { type: 'string', description: /birth/ },
    contact: { items: { $ref: '#/components/schemas/PatientContact' } },
  })
  const referred = [...JSON.stringify(body).matchAll(/"#\/components\/schemas\/(\w+)"/g)]
  const missing = new Set(referred.map(([, name = '']) => name).filter((name) => !schemas[name]))
  t.same([...missing], [])
})

t.test('marks the calls that need a token', async (t) => {
  const findSecurity = (path: string, method = 'post') => body.paths[path]?.[method]?.security
  for (const path of ['/auth/login', '/auth/newuser', '/auth/mfa/verify', '/oauth2/token']) {
    t.same(findSecurity(path), [], path)
  }
  t.same(findSecurity('/auth/external', 'get'), [])
  t.same(findSecurity('/signin', 'get'), [])
  for (const path of ['/auth/changepassword', '/auth/revoke', '/auth/mfa/enroll']) {
    t.ok(body.paths[path]?.post, path)
    t.equal(findSecurity(path), undefined, path)
  }
  t.equal(findSecurity('/auth/me', 'get'), undefined)
  t.same(findSecurity('/oauth2/introspect'), [{ basic: [] }, { bearer: [] }])
})

t.test('gives each call a unique id and its path parameters', async (t) => {
  const ids = calls.map(({ described }) => described.operationId)
  t.equal(new Set(ids).size, ids.length)
  for (const [path, item] of Object.entries(body.paths)) {
    const named = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({ name, in: 'path' }))
    if (named.length > 0) t.match(item, { parameters: named }, path)
  }
})

t.test('serves every listed path and method', async (t) => {
  t.ok(calls.length > 50)
  for (const { path, method, described } of calls) {
    const address = path
      .replace('{resourceType}', path.includes('{target}') ? 'Patient' : 'Basic')
      .replace('{versionId}', '1')
      .replace('{target}', 'Basic')
      .replace(/\{\w+\}/g, randomUUID())
    // A logout would end the session of this test.
    const isNamed = described.security?.length !== 0 && path !== '/oauth2/logout'
    const client = isNamed ? admin : anonymous
    // An unknown id is 404 as well, so paths with an id are tested by 405 of other methods.
    const hasId = /\{(?!resourceType)/.test(path)
    const response = await fetch(new URL(address, baseUrl), {
      method: method.toUpperCase(),
      headers: client.token === undefined ? {} : { Authorization: `Bearer ${client.token}` },
    })
    const what = `${method} ${path}: ${response.status}`
    t.not(response.status, 405, what)
    t.ok(response.status < 500, what)
    // The documentation site may not be built.
    if (!hasId && path !== '/docs') t.not(response.status, 404, what)
    // URLs under /storage need a signature.
    const isOpen = described.security?.length === 0 && !path.startsWith('/storage/')
    if (isOpen) t.not(response.status, 401, what)
    await response.body?.cancel()
  }
})

t.test('rejects unlisted methods on paths with an id', async (t) => {
  // Earlier calls ended the other session.
  const { client } = await createMember()
  for (const [path, item] of Object.entries(body.paths)) {
    if (!path.includes('{id}') || path.startsWith('/admin')) continue
    const unnamed = METHODS.find((method) => item[method] === undefined)
    if (unnamed === undefined) continue
    const address = path
      .replace('{resourceType}', path.includes('{target}') ? 'Patient' : 'Basic')
      .replace('{versionId}', '1')
      .replace('{target}', 'Basic')
      .replace(/\{\w+\}/g, randomUUID())
    const response = await fetch(new URL(address, baseUrl), {
      method: unnamed.toUpperCase(),
      headers: { Authorization: `Bearer ${client.token}` },
    })
    t.equal(response.status, 405, `${unnamed} ${path}`)
    await response.body?.cancel()
  }
})
