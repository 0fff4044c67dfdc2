/** Imports the logger and users, because secrets in mails and logs have no route that shows them. */
import { pino } from 'pino'
import t from 'tap'
import { system } from '../../../shared/access/project-context.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { createSecurityRequest } from '../../../shared/projects/security-requests.ts'
import { patchUser, readUser } from '../../../shared/projects/users.ts'
import { oneTimeCode } from '../../fixtures/accounts.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { type Client, createClient } from '../../fixtures/client.ts'
import { aPerson, askToken, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const lines: string[] = []
// The stream that all loggers of the process write to.
Object.assign(Reflect.get(createLogger('trace', 'web'), pino.symbols.streamSym), {
  write: (line: string) => lines.push(line),
})
const botica = await openBotica(t, {
  // Searches the whole database and storage.
  env: { DATABASE_URL: await createDatabase(t), LOG_LEVEL: 'trace' },
})
const { anonymous, services, baseUrl, project, admin, superAdmin } = botica

/** By name, so that a failure does not print the secret. */
const secrets = new Map<string, string>()
const plant = (name: string, value: unknown) => void secrets.set(name, String(value))

function found(text: string, except: readonly string[] = []): string[] {
  return [...secrets].flatMap(([name, secret]) =>
    !except.includes(name) && text.includes(secret) ? [name] : [],
  )
}

const person = await aPerson(services, project)
const member = await botica.createMember()
const { verifier, asked } = pkce()
let client: Client = anonymous

t.test('creates secrets by using every feature once', async (t) => {
  const wrong = 'planted wrong password'
  plant('password', PASSWORD)
  plant('wrong password', wrong)
  plant('verifier', verifier)
  plant('client secret', member.secret)
  plant('super admin secret', botica.adminCredentials.secret)
  plant('new password', 'planted new password')
  plant('wrong client secret', 'planted wrong client secret')
  const { email } = person
  await anonymous.post('/auth/login', { email, password: wrong })
  await anonymous.post('/auth/login', { email, password: 7, nested: { password: wrong } })
  await anonymous.post('/auth/login', `{"email":"${email}","password":"${wrong}`)
  await askToken(baseUrl, {
    grant_type: 'client_credentials',
    client_id: member.id,
    client_secret: 'planted wrong client secret',
  })
  const app = await admin.create({ resourceType: 'ClientApplication', name: 'App' })
  const login = await anonymous.post<{ code: string }>(
    '/auth/login',
    { email, password: PASSWORD, clientId: app.id, scope: 'openid offline', ...asked },
    { Origin: new URL(baseUrl).origin },
  )
  plant('code', login.body.code)
  for (const line of login.headers.getSetCookie()) plant('cookie', /=([^;]+);/.exec(line)?.[1])
  const tokens = await redeemCode(baseUrl, login.body.code, verifier)
  t.equal(tokens.status, 200)
  plant('refresh token', tokens.body.refresh_token)
  plant('access token', tokens.body.access_token)
  plant('ID token', tokens.body.id_token)
  const refresh = { grant_type: 'refresh_token', refresh_token: tokens.body.refresh_token }
  const next = await askToken(baseUrl, refresh)
  plant('second refresh token', next.body.refresh_token)
  client = createClient(baseUrl, tokens.body.access_token)

  await client.get('/auth/mfa/status')
  const user = await readUser(services.repository, person.user.id)
  plant('MFA secret', user?.mfaSecret)
  plant('password hash', user?.passwordHash)
  const token = oneTimeCode(String(user?.mfaSecret), Math.floor(Date.now() / 30_000))
  t.equal((await client.post('/auth/mfa/enroll', { token })).status, 200)
  await patchUser(services.repository, person.user.id, { mfaEnrolled: false })
  const link = await createSecurityRequest(services.repository, system, {
    type: 'reset',
    user: person.user,
  })
  plant('link secret', link.secret)
  const set = { ...link, password: 'planted new password' }
  t.equal((await anonymous.post('/auth/setpassword', set)).status, 200)
  t.ok([...secrets.values()].every((secret) => secret.length > 8 && secret !== 'undefined'))
})

t.test('logs no secret', async (t) => {
  await until(async () => lines.some((line) => line.includes('/oauth2/token')), 60_000)
  t.same(found(lines.join('\n')), [])
})

t.test('stores no one-time secret in plain text', async (t) => {
  const rows = await services.database.query<{ content: string | null }>({
    text: 'select content from version',
    values: [],
  })
  const kept = ['client secret', 'super admin secret', 'MFA secret', 'password hash', 'link secret']
  t.same(found(rows.map(({ content }) => content).join('\n'), kept), [])
  const tokens = await services.database.query<{ text: string }>({
    text: `select encode(digest, 'escape') || coalesce(encode(successor, 'escape'), '') as text
      from refresh_token`,
    values: [],
  })
  t.same(found(tokens.map(({ text }) => text).join('\n')), [])
})

t.test('returns no secret, not even to super admins', async (t) => {
  // Administrators manage the secrets of clients; used links are worth nothing, their history remains.
  const shown = ['client secret', 'super admin secret']
  const paths = [
    'User?_count=1000',
    `User/${person.user.id}`,
    `User/${person.user.id}/_history`,
    'Login?_count=1000',
    'Login/_history?_count=1000',
    'AuditEvent?_count=1000',
    'ProjectMembership?_count=1000',
    'ClientApplication?_count=1000',
    '_history?_count=1000',
    `UserSecurityRequest?_count=1000`,
    '/auth/me',
    `/admin/projects/${project.id}`,
    '/admin/super/queues',
    '/.well-known/jwks.json',
    'metadata',
  ]
  for (const path of paths) {
    for (const asking of [superAdmin, admin]) {
      const answer = await asking.get(path, { 'X-Medplum': 'extended' })
      const except = path.includes('_history') ? [...shown, 'link secret'] : shown
      t.same(found(answer.text, except), [], path)
    }
    const answer = await member.client.get(path)
    t.same(found(answer.text), [], `${path} by a member`)
  }
})

t.test('returns no secret from GraphQL', async (t) => {
  const queries = [
    '{ ClientApplicationList(_count: 1000) { id name secret retiringSecret } }',
    '{ UserList(_count: 1000) { id email passwordHash mfaSecret } }',
    '{ LoginList(_count: 1000) { id code cookie browser refreshSecret codeChallenge } }',
    '{ UserSecurityRequestList(_count: 1000) { id secret } }',
    '{ AuditEventList(_count: 1000) { id outcomeDesc entity { name description } } }',
    '{ __type(name: "User") { fields { name } } }',
  ]
  for (const query of queries) {
    for (const asking of [superAdmin, admin, member.client]) {
      const answer = await asking.post('$graphql', { query })
      const isAdmin = asking !== member.client
      t.same(found(answer.text, isAdmin ? ['client secret', 'super admin secret'] : []), [], query)
      t.ok(answer.status < 500, query)
    }
  }
})

t.test('finds no secret by search', async (t) => {
  for (const [name, secret] of secrets) {
    for (const path of ['User', 'Login', 'ClientApplication', 'AuditEvent']) {
      for (const parameter of ['_content', '_text']) {
        const query = new URLSearchParams({ [parameter]: secret.slice(0, 200) })
        const { body } = await superAdmin.get<{ entry?: object[] }>(`${path}?${query}`)
        t.equal(body.entry?.length ?? 0, 0, `${name} in ${path}`)
      }
    }
  }
})

t.test('writes an AuditEvent for every sign-in, denial and change', async (t) => {
  interface Found {
    readonly entry: { resource: { outcomeDesc: string; outcome: string; agent: object[] } }[]
  }
  // Events outside any Project belong to the platform's Project.
  const told = async () => {
    const answers = await Promise.all(
      [superAdmin, admin].map((asking) => asking.get<Found>('AuditEvent?_count=1000')),
    )
    return answers.flatMap(({ body }) =>
      body.entry.map(({ resource }) => `${resource.outcome} ${resource.outcomeDesc}`),
    )
  }
  const wanted = [
    '4 Sign-in refused',
    '4 Tokens refused: invalid_client',
    '0 Tokens by authorization_code',
    '0 Tokens by refresh_token',
    '0 Tokens by client_credentials',
    '0 Second factor enrolled',
    '0 Password set by a mailed link',
  ]
  await until(async () => {
    const events = await told()
    return wanted.every((text) => events.includes(text))
  }, 60_000)
  t.pass()
})
