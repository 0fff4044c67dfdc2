/**
 * Calls every route of the route table and of FHIR, in all spellings, without a token and with insufficient tokens.
 * Imports the table of routes, so that none is left out.
 */
import { randomUUID } from 'node:crypto'
import { request } from 'node:http'
import t from 'tap'
import { nonFhirRoutes } from '../../../server/app.ts'
import { createMetrics } from '../../../server/http/metrics.ts'
import { type Access, isOpen } from '../../../server/middleware/access.ts'
import { authenticate } from '../../../server/middleware/authenticate.ts'
import { fhirPaths } from '../../../server/openapi/describe.ts'
import { buildRouter, type Route } from '../../../server/routes/table.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { createClient, signIn } from '../../fixtures/client.ts'
import { askToken } from '../../fixtures/people.ts'
import { askRaw, type RawAnswer } from './raw-request.ts'

const SIDE_BY_SIDE = 8
/** Public routes. Adding one is a security decision. */
const OPEN = [
  'GET / public',
  'GET /.well-known/jwks.json public',
  'GET /.well-known/oauth-authorization-server public',
  'GET /.well-known/oauth-protected-resource public',
  'GET /.well-known/oauth-protected-resource/fhir/R4 public',
  'GET /.well-known/oauth-protected-resource/mcp public',
  'GET /.well-known/openid-configuration public',
  'GET /.well-known/smart-configuration public',
  'GET /.well-known/smart-styles.json public',
  'GET /auth/clientinfo/:clientId public',
  'GET /auth/external public',
  'GET /auth/login/:login public',
  'GET /auth/login/:login/consent public',
  'GET /auth/login/:login/patients public',
  'GET /console public',
  'GET /console/:page public',
  'GET /console/:page/:a public',
  'GET /console/:page/:a/:b public',
  'GET /console/:page/:a/:b/:c public',
  'GET /console/:page/:a/:b/:c/:d public',
  'GET /console/assets/:file public',
  'GET /docs public',
  'GET /docs/:a public',
  'GET /docs/:a/:b public',
  'GET /docs/:a/:b/:c public',
  'GET /docs/:a/:b/:c/:d public',
  'GET /docs/:a/:b/:c/:d/:e public',
  'GET /docs/api public',
  'GET /docs/api/:file public',
  'GET /docs/notice.css public',
  'GET /fhir/R4/.well-known/smart-configuration public',
  'GET /fhir/R4/.well-known/smart-styles.json public',
  'GET /graphiql public',
  'GET /healthcheck public',
  'GET /livez public',
  'GET /metrics secret',
  'GET /oauth public',
  'GET /oauth2/authorize public',
  'GET /oauth2/logout public',
  'GET /openapi.json public',
  'GET /pages/script.js public',
  'GET /pages/style.css public',
  'GET /resetpassword public',
  'GET /robots.txt public',
  'GET /setpassword/:id/:secret public',
  'GET /signin public',
  'GET /storage/:id/:vid address',
  'GET /verifyemail/:id/:secret public',
  'GET,POST /webhook/:id address',
  'POST /auth/deny public',
  'POST /auth/exchange public',
  'POST /auth/google public',
  'POST /auth/login public',
  'POST /auth/method public',
  'POST /auth/mfa/login-enroll public',
  'POST /auth/mfa/send-email public',
  'POST /auth/mfa/verify public',
  'POST /auth/newpatient public',
  'POST /auth/newproject public',
  'POST /auth/newuser public',
  'POST /auth/patient public',
  'POST /auth/profile public',
  'POST /auth/resetpassword public',
  'POST /auth/scope public',
  'POST /auth/setpassword public',
  'POST /auth/verifyemail public',
  'POST /oauth2/authorize public',
  'POST /oauth2/introspect secret',
  'POST /oauth2/register public',
  'POST /oauth2/revoke secret',
  'POST /oauth2/token public',
  'PUT /storage/:id/:vid address',
]
/** Must not appear in a response to a stranger. */
const MARKER = `Walked${randomUUID().replaceAll('-', '')}`

const botica = await openBotica(t)
const { baseUrl, services, admin, adminCredentials, superAdmin } = botica
const [foreign, member, project, patient, members] = await Promise.all([
  botica.createTenant(),
  botica.createMember(),
  superAdmin.put(`Project/${botica.project.id}`, { ...botica.project, name: MARKER }),
  admin.create({ resourceType: 'Patient', name: [{ family: MARKER }] }),
  admin.get<{ entry: { resource: { id: string } }[] }>('ProjectMembership'),
])
if (project.status !== 200) throw new Error(project.text)
const membershipId = members.body.entry[0]?.resource.id ?? ''

const web = { services, metrics: createMetrics(services) }
const authenticated = authenticate(web)
const table = nonFhirRoutes(web, authenticated)

interface Step {
  readonly method: string
  readonly path: string
  readonly access: Access
  readonly target: string
  readonly namesOurs: boolean
}

const steps: readonly Step[] = [...table, ...fhirPaths].flatMap(({ methods, path, access }) => {
  const target = fillPath(path)
  const namesOurs = [botica.project.id, patient.id, membershipId].some((id) => target.includes(id))
  return methods.map((method) => ({ method, path, access, target, namesOurs }))
})

function fillPath(path: string): string {
  const type =
    path.includes('{target}') || !path.includes('{resourceType}/{id}') ? 'Basic' : 'Patient'
  return path
    .replace('{target}', 'Observation')
    .replace('{resourceType}/{id}', `${path.includes('{target}') ? 'Patient' : type}/{id}`)
    .replace('{resourceType}', type)
    .replace('{versionId}', '1')
    .replace(/(Patient\/)\{id\}/, `$1${patient.id}`)
    .replace(/(Project\/)\{id\}/, `$1${botica.project.id}`)
    .replace(/(ClientApplication\/)\{id\}/, `$1${adminCredentials.id}`)
    .replace(/(\/projects\/):id/, `$1${botica.project.id}`)
    .replace(':member', membershipId)
    .replace(/\{\w+\}|:\w+/g, () => randomUUID())
}

const splitPath = (path: string) => path.split('/').slice(1)
const encoded = (text: string) => `%${text.charCodeAt(0).toString(16)}${text.slice(1)}`

/** Spellings that the router treats as the same path. */
const same: Readonly<Record<string, (target: string) => string>> = {
  plain: (target) => target,
  alias: (target) => `/api${target}`,
  slashes: (target) => `/${target.replaceAll('/', '//')}/`,
  encoded: (target) =>
    `/${splitPath(target)
      .map((one) => one && encoded(one))
      .join('/')}`,
}
/** Spellings that return 404. */
const other: Readonly<Record<string, (target: string) => string>> = {
  capital: (target) => target.replace(/[a-z]/, (letter) => letter.toUpperCase()),
  capitals: (target) => target.toUpperCase(),
  parameter: (target) => target.replace(/^\/[^/]+/, '$&;v=1'),
  dots: (target) => `/fhir/R4/metadata/../../..${target}`,
  'encoded dots': (target) => `/livez/%2e%2e${target}`,
  backslash: (target) => target.replace(/(?<=.)\/|^\/$/, '/\\'),
  'encoded twice': (target) =>
    target.replace(/[a-z]/i, (letter) => encoded(letter).replace('%', '%25')),
}

type Judge = (answer: RawAnswer, step: Step) => boolean

async function walk(
  asked: readonly Step[],
  spellings: Readonly<Record<string, (target: string) => string>>,
  tokenOf: (step: Step) => Promise<string | undefined> | string | undefined,
  isRight: Judge,
): Promise<readonly string[]> {
  const wrong: string[] = []
  const calls = asked.flatMap((step) =>
    Object.entries(spellings).flatMap(([name, spell]) => {
      const target = spell(step.target)
      return target === step.target && name !== 'plain' ? [] : [{ step, name, target }]
    }),
  )
  let next = 0
  const lane = async () => {
    for (let call = calls[next++]; call !== undefined; call = calls[next++]) {
      const { step, name, target } = call
      const token = await tokenOf(step)
      const answer = await askRaw(baseUrl, step.method, target, {
        ...aBody(step),
        headers: {
          ...aBody(step).headers,
          // A metrics scraper on another machine.
          'X-Forwarded-For': '192.0.2.1',
          ...(token === undefined ? {} : { Authorization: `Bearer ${token}` }),
        },
      })
      // On a busy machine a component may miss the health check.
      const mayBeAway = step.path === '/healthcheck' && answer.status === 503
      const isSafe = (answer.status < 500 || mayBeAway) && !answer.text.includes(MARKER)
      if (isSafe && isRight(answer, step)) continue
      wrong.push(`${name}: ${step.method} ${target}: ${answer.status} ${answer.text.slice(0, 200)}`)
    }
  }
  await Promise.all(Array.from({ length: SIDE_BY_SIDE }, lane))
  return wrong
}

/** Returns a body in the format of the route, so that the request is processed far. */
function aBody({ method, path }: Step): { body?: string; headers?: Record<string, string> } {
  if (method === 'GET' || method === 'DELETE') return {}
  if (method === 'PATCH')
    return { body: '[]', headers: { 'Content-Type': 'application/json-patch+json' } }
  if (!path.startsWith('/oauth2/') || path === '/oauth2/register') return { body: '{}' }
  return {
    body: `token=x&client_id=${adminCredentials.id}&client_secret=wrong`,
    headers: { 'Content-Type': 'application/x-www-form-urlencoded' },
  }
}

const nobody = () => undefined
/** Signs in separately for each call, since a logout ends the login. */
const freshAt = (path: string, { id, secret }: { id: string; secret: string }, token = '') => {
  return async (step: Step) => {
    return step.path === path ? (await signIn(baseUrl, id, secret)).token : token
  }
}

t.test('lists every route that needs no token', (t) => {
  const open = table.filter(({ access }) => isOpen(access))
  const lines = open.map(({ methods, path, access }) => `${methods} ${path} ${access}`)
  t.same(lines.sort(), OPEN)
  const fhir = fhirPaths.filter(({ access }) => isOpen(access)).map(({ path }) => path)
  t.same(fhir.sort(), ['/fhir/R4/$versions', '/fhir/R4/metadata'])
  t.end()
})

t.test('refuses to start with an unmarked route', (t) => {
  const { access: _, ...rest } = table[0] as Route // the table is not empty
  t.throws(() => buildRouter([rest as Route], authenticated), { message: /carries no mark/ })
  t.end()
})

t.test('serves only open routes without a token, in every spelling', async (t) => {
  t.ok(steps.length > 200)
  t.same(
    await walk(steps, same, nobody, ({ status }, { access }) => {
      if (access === 'public') return status !== 401 && status !== 403
      if (access === 'address') return [401, 403, 404].includes(status)
      return status === 401
    }),
    [],
  )
})

t.test('returns 404 for other spellings, with a token or without', async (t) => {
  const lettered = steps.filter(({ target }) => target !== '/')
  const isNowhere: Judge = ({ status }) => status === 404
  // A path below the FHIR root requires the token first.
  const isHidden: Judge = ({ status }) => status === 404 || status === 401
  t.same(await walk(lettered, other, nobody, isHidden), [])
  t.same(await walk(lettered, other, () => superAdmin.token, isNowhere), [])
})

t.test('denies an administrator of another Project every route of this one', async (t) => {
  const token = freshAt('/oauth2/logout', foreign.adminCredentials, foreign.admin.token)
  t.same(
    await walk(steps, same, token, ({ status, text }, { access, namesOurs }) => {
      if (access === 'super-administrator') return status === 403
      if (access === 'administrator' && namesOurs) return status === 403
      if (isOpen(access)) return true
      return namesOurs ? status >= 400 || !text.includes('"entry"') : status !== 401
    }),
    [],
  )
})

t.test('denies administration to ordinary members', async (t) => {
  const guarded = steps.filter(({ access }) => access.endsWith('administrator'))
  t.ok(guarded.length > 40)
  t.same(
    await walk(
      guarded,
      same,
      () => member.client.token,
      ({ status }) => status === 403,
    ),
    [],
  )
  const top = steps.filter(({ access }) => access === 'super-administrator')
  t.same(
    await walk(
      top,
      same,
      () => admin.token,
      ({ status }) => status === 403,
    ),
    [],
  )
})

t.test('denies administration and account to a token of narrow scope', async (t) => {
  const { body } = await askToken(baseUrl, {
    grant_type: 'client_credentials',
    client_id: adminCredentials.id,
    client_secret: adminCredentials.secret,
    scope: 'system/Basic.rs',
  })
  const guarded = steps.filter(
    ({ access }) => access === 'account' || access.endsWith('administrator'),
  )
  t.same(
    await walk(
      guarded,
      same,
      () => body.access_token,
      ({ status }) => status === 403,
    ),
    [],
  )
  const fhir = steps.filter(({ path, access }) => path.startsWith('/fhir/') && !isOpen(access))
  t.same(
    await walk(
      fhir,
      same,
      () => body.access_token,
      ({ status }) => status !== 401,
    ),
    [],
  )
})

t.test('opens web sockets at one path in one spelling', async (t) => {
  const key = { 'Sec-WebSocket-Key': 'AAAAAAAAAAAAAAAAAAAAAA==', 'Sec-WebSocket-Version': '13' }
  const { hostname, port } = new URL(baseUrl)
  const status = async (path: string) => {
    const { promise, resolve, reject } = Promise.withResolvers<number>()
    const headers = { Connection: 'Upgrade', Upgrade: 'websocket', ...key }
    const req = request({ hostname, port, path, headers })
    req.on('response', (response) => resolve(response.resume().statusCode ?? 0))
    req.on('upgrade', (response, socket) => {
      socket.destroy()
      resolve(response.statusCode ?? 0)
    })
    req.on('error', reject)
    req.end()
    return await promise
  }
  const path = '/ws/subscriptions-r4'
  t.equal(await status(path), 101)
  for (const [name, spell] of Object.entries({ ...same, ...other })) {
    if (name !== 'plain') t.equal(await status(spell(path)), 404, name)
  }
})

t.test('returns versions only to authenticated callers', async (t) => {
  // A process without workers is unhealthy after a minute, and then returns no versions.
  const address = await botica.startWeb()
  const anonymous = createClient(address)
  const admin = await signIn(address, adminCredentials.id, adminCredentials.secret)
  await until(async () => (await admin.get('/healthcheck')).status === 200, 60_000)
  const { body: seen } = await anonymous.get<Record<string, unknown>>('/healthcheck')
  t.notOk(['version', 'platform', 'runtime'].some((name) => name in seen))
  t.match(await admin.get('/healthcheck'), {
    status: 200,
    body: { ok: true, version: /^\d+\.\d+\.\d+$/, runtime: process.version },
  })
  const stranger = { Authorization: 'Bearer nonsense' }
  t.equal((await anonymous.get('/healthcheck', stranger)).status, 401)
  const { version } = (await admin.get<{ version: string }>('/healthcheck')).body
  for (const path of ['/', '/livez', '/healthcheck?live', '/fhir/R4/metadata', '/openapi.json']) {
    const { text } = await anonymous.get(path)
    t.notOk(text.includes(`"${version}"`) || text.includes(process.version), path)
  }
})
