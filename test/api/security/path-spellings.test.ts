/** Limits, authentication and idempotency use the same normalized path as the router. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { askRaw } from './raw-request.ts'

const AUTH_LIMIT = 6
/** Time squared in the length would take minutes. */
const SOON_MS = 15_000
const botica = await openBotica(t)
const { baseUrl, project, admin } = botica
const bearer = { Authorization: `Bearer ${admin.token}` }
const ask = (method: string, target: string, headers: Record<string, string> = {}, body?: object) =>
  askRaw(baseUrl, method, target, {
    headers,
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })

t.test('returns 404 for paths in another case', async (t) => {
  const invite = `projects/${project.id}/invite`
  const table: [method: string, target: string][] = [
    ['GET', `/Admin/projects/${project.id}`],
    ['GET', `/ADMIN/Projects/${project.id}`],
    ['POST', `/Admin/${invite}`],
    ['POST', '/admin/project'],
    ['POST', '/Admin/Super/rotatekeys'],
    ['GET', '/Scim/v2/Users'],
    ['GET', '/scim/V2/users'],
    ['POST', '/Auth/mfa/verify'],
    ['POST', '/AUTH/login'],
    ['GET', '/auth/ME'],
    ['POST', '/OAuth2/token'],
    ['GET', '/FHIR/R4/Patient'],
    ['GET', '/fhir/r4/metadata'],
    ['POST', '/Email/v1/send'],
    ['GET', `/Storage/${randomUUID()}/${randomUUID()}`],
    ['POST', `/Webhook/${randomUUID()}`],
    ['GET', '/Metrics'],
    ['GET', '/API/fhir/R4/metadata'],
    ['GET', '/.Well-Known/jwks.json'],
  ]
  for (const [method, target] of table) {
    const body = method === 'POST' ? {} : undefined
    t.equal((await ask(method, target, {}, body)).status, 404, `${method} ${target}`)
    const signedIn = await ask(method, target, bearer, body)
    t.equal(signedIn.status, 404, `${method} ${target} with a token`)
  }
})

t.test('routes equivalent spellings of a path to the same route', async (t) => {
  for (const target of [
    `/admin/projects/${project.id}`,
    `/admin/projects/${project.id}/`,
    `/admin/projects/${project.id}///`,
    `//admin//projects/${project.id}`,
    `/%61dmin/projects/${project.id}`,
    `/%61%64%6D%69%6e/%70rojects/${project.id}`,
    `/api/admin/projects/${project.id}`,
    `//api//admin/projects/${project.id}`,
    `/%61pi/admin/projects/${project.id}`,
    `/admin/projects/${project.id.replace('-', '%2D')}`,
    `${baseUrl}admin/projects/${project.id}`,
    '/fhir/R4/Patient',
    '/fhir//R4//Patient/',
    '/fhir/R4/%50atient',
    '/api/fhir/%524/Patient',
    '/scim/v2/%55sers',
    '//auth//me',
  ]) {
    t.equal((await ask('GET', target)).status, 401, `${target} without a token`)
    t.equal((await ask('GET', target, bearer)).status, 200, `${target} with a token`)
  }
  for (const target of ['/fhir//R4/metadata', '/fhir/R4/%24versions', '/fhir/R4/metadata/']) {
    t.equal((await ask('GET', target)).status, 200, target)
  }
})

t.test('reads a long run of slashes in a bundle or a display at once', async (t) => {
  const slashes = `Patient${'/'.repeat(300_000)}x`
  const started = performance.now()
  const entry = [{ request: { method: 'GET', url: slashes } }]
  const answer = await admin.post('', { resourceType: 'Bundle', type: 'batch', entry })
  t.match(answer.text, /"status":"404"/)
  const event = await admin.post('AuditEvent', {
    resourceType: 'AuditEvent',
    type: { code: 'rest' },
    recorded: new Date().toISOString(),
    agent: [{ requestor: true }],
    source: { observer: { display: slashes } },
  })
  t.equal(event.status, 201, event.text)
  t.ok(performance.now() - started < SOON_MS)
})

t.test('rejects dot segments, parameters, and encoded slashes and percent signs', async (t) => {
  for (const target of [
    `/fhir/R4/../../admin/projects/${project.id}`,
    `/fhir/R4/metadata/../Patient`,
    `/fhir/R4/%2e%2e/%2E./admin/projects/${project.id}`,
    `/./admin/projects/${project.id}`,
    `/admin/./projects/${project.id}`,
    `/admin/projects/${project.id}/.`,
    `/admin/projects/${project.id}/..`,
    `/admin;x=1/projects/${project.id}`,
    `/admin/projects;x=1/${project.id}`,
    `/%2561dmin/projects/${project.id}`,
    `/admin%2Fprojects%2F${project.id}`,
    `\\admin/projects/${project.id}`,
    `/admin\\projects\\${project.id}`,
    `/api/api/admin/projects/${project.id}`,
    '/fhir/R4/metadata;x=1/../Patient',
    '/fhir/R4\\Patient',
    '/fhir%2FR4/Patient',
    '/auth%2fme',
    '/auth/me;jsessionid=1',
    '/auth/me%00',
    '/auth/me%20',
    '/%zz',
    '/%',
  ]) {
    const [without, signedIn] = [await ask('GET', target), await ask('GET', target, bearer)]
    t.ok([400, 401, 404].includes(without.status), `${target}: ${without.status}`)
    t.ok([400, 404].includes(signedIn.status), `${target} with a token: ${signedIn.status}`)
  }
})

t.test('answers malformed targets without a failure', async (t) => {
  for (const target of ['*', '/', '//', '/api', '/api/', '/?', '///?/admin', 'http://host', '/#']) {
    const { status } = await ask('GET', target)
    t.ok([200, 400, 404].includes(status), `${target}: ${status}`)
  }
})

t.test('counts every spelling of a sign-in route in its rate limit', async (t) => {
  const limited = await openBotica(t, {
    env: { AUTH_RATE_LIMIT_PER_MINUTE: String(AUTH_LIMIT) },
  })
  const body = { login: randomUUID(), token: '000000' }
  for (const spelling of [
    '/auth/mfa/verify',
    '/api/auth/mfa/verify',
    '//auth//mfa/verify/',
    '/%61uth/mfa/verify',
    '/auth/%6dfa/verif%79',
    '/Auth/mfa/verify',
    '/AUTH/MFA/VERIFY',
    '/auth;x/mfa/verify',
    '/auth/./mfa/verify',
    '/oauth2/token',
    '/OAuth2/token',
    '/%6Fauth2/token',
    '/oauth2//token',
  ]) {
    const statuses: number[] = []
    for (let i = 0; i < 3 * AUTH_LIMIT; i++) {
      const raw = { body: JSON.stringify(body) }
      statuses.push((await askRaw(limited.baseUrl, 'POST', spelling, raw)).status)
    }
    // A new minute resets the limit of each address.
    const judged = statuses.filter((status) => status !== 429 && status !== 404).length
    t.ok(judged <= 2 * AUTH_LIMIT, `${spelling}: ${statuses.join(' ')}`)
  }
})

t.test('treats an Idempotency-Key as the same key in all spellings', async (t) => {
  const key = { ...bearer, 'Idempotency-Key': randomUUID() }
  const clients = new Set<string>()
  for (const target of [
    `/admin/projects/${project.id}/client`,
    `/api/admin/projects/${project.id}/client/`,
    `/%61dmin//projects/${project.id}/%63lient`,
    `//admin/projects/${project.id}/client`,
  ]) {
    const { status, text } = await ask('POST', target, key, { name: 'Once' })
    t.equal(status, 201, target)
    clients.add(JSON.parse(text).id)
  }
  t.equal(clients.size, 1)

  const once = { ...bearer, 'Idempotency-Key': randomUUID() }
  const patients = new Set<string>()
  for (const target of ['/fhir/R4/Patient', '/api/fhir/R4/Patient', '/fhir/R4//%50atient/']) {
    const { status, text } = await ask('POST', target, once, { resourceType: 'Patient' })
    t.equal(status, 201, target)
    patients.add(JSON.parse(text).id)
  }
  t.equal(patients.size, 1)
})

t.test('counts two spellings of a path as one route in the metrics', async (t) => {
  await ask('GET', '/fhir/R4//Basic', bearer)
  await ask('GET', '/%61uth/me', bearer)
  const { text } = await ask('GET', '/metrics')
  t.notMatch(text, /%61|\/\//)
})
