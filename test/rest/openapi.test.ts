import { randomUUID } from 'node:crypto'
import t from 'tap'
import { operations } from '../../shared/api/operations.ts'
import { openBotica } from '../fixtures/botica.ts'

const { anonymous, admin, baseUrl, createMember } = await openBotica(t)

interface Method {
  readonly operationId: string
  readonly security?: readonly unknown[]
}

interface Document {
  readonly openapi: string
  readonly servers: readonly { readonly url: string }[]
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

t.test('the description is open to everybody', async (t) => {
  t.equal(status, 200)
  t.match(headers.get('content-type'), 'application/json')
  t.match(body, { openapi: '3.1.0', servers: [{ url: baseUrl.slice(0, -1) }] })
})

t.test('it names the paths of every part of the service', async (t) => {
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

t.test('it tells which calls need a token', async (t) => {
  const securityOf = (path: string, method = 'post') => body.paths[path]?.[method]?.security
  for (const path of ['/auth/login', '/auth/newuser', '/auth/mfa/verify', '/oauth2/token']) {
    t.same(securityOf(path), [], path)
  }
  t.same(securityOf('/auth/external', 'get'), [])
  t.same(securityOf('/signin', 'get'), [])
  for (const path of ['/auth/changepassword', '/auth/revoke', '/auth/mfa/enroll']) {
    t.ok(body.paths[path]?.post, path)
    t.equal(securityOf(path), undefined, path)
  }
  t.equal(securityOf('/auth/me', 'get'), undefined)
  t.same(securityOf('/oauth2/introspect'), [{ basic: [] }, { bearer: [] }])
})

t.test('each call has an id of its own and its path parameters', async (t) => {
  const ids = calls.map(({ described }) => described.operationId)
  t.equal(new Set(ids).size, ids.length)
  for (const [path, item] of Object.entries(body.paths)) {
    const named = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({ name, in: 'path' }))
    if (named.length > 0) t.match(item, { parameters: named }, path)
  }
})

t.test('every path that is named is served with every method', async (t) => {
  t.ok(calls.length > 50)
  for (const { path, method, described } of calls) {
    const address = path
      .replace('{resourceType}', path.includes('{target}') ? 'Patient' : 'Basic')
      .replace('{versionId}', '1')
      .replace('{target}', 'Basic')
      .replace(/\{\w+\}/g, randomUUID())
    // A logout would end the session that asks for all the others.
    const isNamed = described.security?.length !== 0 && path !== '/oauth2/logout'
    const client = isNamed ? admin : anonymous
    // Whoever is not there is 404 as well, so a path with an id tells by the method it refuses.
    const hasId = /\{(?!resourceType)/.test(path)
    const response = await fetch(new URL(address, baseUrl), {
      method: method.toUpperCase(),
      headers: client.token === undefined ? {} : { Authorization: `Bearer ${client.token}` },
    })
    const what = `${method} ${path}: ${response.status}`
    t.not(response.status, 405, what)
    t.ok(response.status < 500, what)
    if (!hasId) t.not(response.status, 404, what)
    // An address under /storage is 401 without the signature that it carries.
    const isOpen = described.security?.length === 0 && !path.startsWith('/storage/')
    if (isOpen) t.not(response.status, 401, what)
    await response.body?.cancel()
  }
})

t.test('a path with an id refuses the methods that are not named', async (t) => {
  // The calls before have logged the other one out.
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
