import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { aPerson, askToken, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { anonymous, services, baseUrl, project, admin } = botica
const { database } = services
const redirectUri = 'https://app.example/callback'
const app = await admin.create({
  resourceType: 'ClientApplication',
  name: 'App',
  redirectUris: [redirectUri],
  secret: 'of the app',
})
const other = await admin.create({
  resourceType: 'ClientApplication',
  name: 'Other',
  redirectUris: [redirectUri],
})
const optional = await admin.create({
  resourceType: 'ClientApplication',
  name: 'Without PKCE',
  redirectUris: [redirectUri],
  pkceOptional: true,
  secret: 'of the one without',
})
const person = await aPerson(services, project)
const { verifier, asked } = pkce()

/** Returns an authorization code of the person for the client. */
async function aCode(fields: Record<string, unknown> = {}): Promise<string> {
  const { body, text } = await anonymous.post<{ code: string }>('/auth/login', {
    email: person.email,
    password: PASSWORD,
    clientId: app.id,
    ...asked,
    ...fields,
  })
  if (!body.code) throw new Error(text)
  return body.code
}

const grant = (code: string, form: Record<string, string> = {}) =>
  redeemCode(baseUrl, code, verifier, { client_id: app.id, ...form })

interface Refused {
  readonly error: string
  readonly description: string | RegExp
  readonly status?: number | undefined
}

async function refused(
  t: Tap,
  answer: ReturnType<typeof askToken>,
  { error, description, status = 400 }: Refused,
) {
  t.match(
    await answer,
    { status, body: { error, error_description: description } },
    `${description}`,
  )
}
type Tap = Pick<typeof t, 'match'>

t.test('exchanges a code once and revokes its tokens on a second use', async (t) => {
  const code = await aCode({ scope: 'openid offline_access' })
  const { status, body } = await grant(code)
  t.equal(status, 200)
  const client = createClient(baseUrl, body.access_token)
  t.equal((await client.get('/auth/me')).status, 200)
  await refused(t, grant(code), { error: 'invalid_grant', description: 'Token already granted' })
  t.equal((await client.get('/auth/me')).status, 401)
  const refresh = { grant_type: 'refresh_token', refresh_token: body.refresh_token }
  await refused(t, askToken(baseUrl, refresh), {
    error: 'invalid_grant',
    description: 'Invalid refresh token',
  })
  await refused(t, grant(code), { error: 'invalid_grant', description: 'Token revoked' })
})

t.test('revokes all tokens of ten concurrent exchanges', async (t) => {
  const code = await aCode()
  const answers = await Promise.all(Array.from({ length: 10 }, () => grant(code)))
  const won = answers.filter(({ status }) => status === 200)
  t.ok(won.length <= 1)
  for (const { body } of won) {
    t.equal((await createClient(baseUrl, body.access_token).get('/auth/me')).status, 401)
  }
})

t.test('rejects a code without its client, URL and verifier', async (t) => {
  const code = await aCode()
  const cases: [Record<string, string>, string, string, number?][] = [
    [{ code: '' }, 'invalid_request', 'Missing code'],
    [{ code: 'x' }, 'invalid_grant', 'Invalid code'],
    [{ code: `${code.slice(0, -4)}AAAA` }, 'invalid_grant', 'Invalid code'],
    [{ client_id: other.id }, 'invalid_grant', 'Invalid client'],
    [{ client_secret: 'wrong' }, 'invalid_client', 'Invalid secret', 401],
    [{ code_verifier: '' }, 'invalid_request', 'Missing code verifier'],
    [{ code_verifier: `${verifier}x` }, 'invalid_grant', 'Invalid code verifier'],
    [{ code_verifier: asked.codeChallenge }, 'invalid_grant', 'Invalid code verifier'],
  ]
  for (const [form, error, description, status] of cases) {
    await refused(t, grant(code, form), { error, description, status })
  }
  t.equal((await grant(code)).status, 200, 'none of these has used it up')
})

t.test('PKCE cannot be left out or taken off', async (t) => {
  const bare = await aCode({ codeChallenge: '', codeChallengeMethod: '' })
  await refused(t, grant(bare), { error: 'invalid_grant', description: 'Invalid code verifier' })
  const without = { code_verifier: '' }
  await refused(t, grant(bare, without), {
    error: 'invalid_grant',
    description: 'Missing verification context',
  })
  const plain = await aCode({ codeChallenge: verifier, codeChallengeMethod: 'plain' })
  t.equal((await grant(plain)).status, 200)
})

t.test('a client without PKCE proves itself by its secret', async (t) => {
  const fields = { clientId: optional.id, codeChallenge: '', codeChallengeMethod: '' }
  const code = await aCode(fields)
  const form = { client_id: optional.id, code_verifier: '' }
  await refused(t, grant(code, form), {
    error: 'invalid_request',
    description: 'Missing client_secret',
  })
  t.equal((await grant(code, { ...form, client_secret: 'of the one without' })).status, 200)
})

t.test('requires the redirect address that the code was issued for', async (t) => {
  const code = await aCode({ redirectUri })
  await refused(t, grant(code), { error: 'invalid_grant', description: 'Invalid redirect_uri' })
  const evil = { redirect_uri: `${redirectUri}/../evil` }
  await refused(t, grant(code, evil), {
    error: 'invalid_grant',
    description: 'Invalid redirect_uri',
  })
  t.equal((await grant(code, { redirect_uri: redirectUri })).status, 200)
})

t.test('expires codes and unfinished Logins', async (t) => {
  const { body } = await anonymous.post<{ login: string; code: string }>('/auth/login', {
    email: person.email,
    password: PASSWORD,
    clientId: app.id,
    ...asked,
  })
  const system = botica.superAdmin
  const login = await system.get(`Login/${body.login}`)
  t.notMatch(login.text, new RegExp(body.code))
  t.equal(login.body.code, undefined)
  const lives = Date.parse(String(login.body.expires)) - Date.now()
  t.ok(lives > 500_000 && lives <= 600_000)
  await system.put(`Login/${body.login}`, { ...login.body, expires: '2020-01-01T00:00:00.000Z' })
  await refused(t, grant(body.code), { error: 'invalid_grant', description: 'Invalid code' })
  t.match(await anonymous.get(`/auth/login/${body.login}`), {
    status: 400,
    body: { issue: [{ details: { text: 'Login expired' } }] },
  })
})

t.test('the command line tool signs in without secret and challenge', async (t) => {
  const body = await aCode({ clientId: 'medplum-cli', codeChallenge: '', codeChallengeMethod: '' })
  const form = { client_id: 'medplum-cli', code_verifier: '' }
  const { status, body: tokens } = await grant(body, form)
  t.equal(status, 200)
  t.match(tokens, { profile: { display: 'Ada Lovelace' }, project: { display: String } })
})

t.test('a refresh token is replaced by each use', async (t) => {
  const { body: first } = await grant(await aCode({ scope: 'openid offline' }))
  const refresh = (token: string, form: Record<string, string> = {}) =>
    askToken(baseUrl, { grant_type: 'refresh_token', refresh_token: token, ...form })
  t.match(first.refresh_token, /^[\w-]{43}$/)
  const second = await refresh(first.refresh_token, { client_id: app.id })
  t.equal(second.status, 200, second.text)
  t.not(second.body.refresh_token, first.refresh_token)

  const repeated = await refresh(first.refresh_token)
  t.equal(
    repeated.body.refresh_token,
    second.body.refresh_token,
    'a repeat gets the same successor',
  )
  const racing = await Promise.all(
    Array.from({ length: 5 }, () => refresh(second.body.refresh_token)),
  )
  t.equal(new Set(racing.map(({ body }) => body.refresh_token)).size, 1)

  const stranger = refresh(second.body.refresh_token, { client_id: other.id })
  await refused(t, stranger, { error: 'invalid_grant', description: 'Incorrect client' })
  const wider = refresh(racing[0]?.body.refresh_token ?? '', { scope: 'openid email' })
  await refused(t, wider, { error: 'invalid_scope', description: 'Invalid scope' })

  await database.query({
    text: `update refresh_token set replaced = replaced - interval '1 minute'
      where replaced is not null`,
    values: [],
  })
  await refused(t, refresh(first.refresh_token), {
    error: 'invalid_grant',
    description: 'Invalid refresh token',
  })
  const last = racing[0]?.body
  await refused(t, refresh(last?.refresh_token ?? ''), {
    error: 'invalid_grant',
    description: 'Invalid refresh token',
  })
  t.equal((await createClient(baseUrl, last?.access_token).get('/auth/me')).status, 401)
})

t.test('limits the token of a refresh to its narrower scope', async (t) => {
  const scope = 'openid offline user/Patient.rs user/Observation.rs'
  const { body } = await grant(await aCode({ scope }))
  const wide = createClient(baseUrl, body.access_token)
  t.equal((await wide.get('Observation')).status, 200)
  const { body: narrow } = await askToken(baseUrl, {
    grant_type: 'refresh_token',
    refresh_token: body.refresh_token,
    scope: 'openid user/Patient.rs',
  })
  t.equal(narrow.scope, 'openid user/Patient.rs')
  const client = createClient(baseUrl, narrow.access_token)
  t.equal((await client.get('Patient')).status, 200)
  t.equal((await client.get('Observation')).status, 403)
  const all = askToken(baseUrl, {
    grant_type: 'refresh_token',
    refresh_token: narrow.refresh_token,
    scope: 'openid',
  })
  await refused(t, all, { error: 'invalid_scope', description: 'Invalid scope' })
})

t.test('neither a membership that is gone nor a super admin is refreshed', async (t) => {
  const leaving = await aPerson(services, project)
  const { body } = await anonymous.post<{ code: string }>('/auth/login', {
    email: leaving.email,
    password: PASSWORD,
    ...asked,
    scope: 'openid offline',
  })
  const { body: tokens } = await grant(body.code, { client_id: '' })
  const membership = `ProjectMembership/${leaving.membership.id}`
  t.equal((await botica.superAdmin.del(membership)).status, 200)
  const refresh = { grant_type: 'refresh_token', refresh_token: tokens.refresh_token }
  await refused(t, askToken(baseUrl, refresh), {
    error: 'invalid_grant',
    description: 'Token revoked',
  })

  const { superAdminEmail: email, superAdminPassword: password } = services.config
  const login = await anonymous.post<{ code: string }>('/auth/login', {
    email,
    password,
    ...asked,
    scope: 'openid offline',
  })
  const root = await grant(login.body.code, { client_id: '' })
  t.equal(root.status, 200, root.text)
  t.equal(root.body.refresh_token, undefined)
})

t.test('rejects a forged login id', async (t) => {
  const id = randomUUID().replaceAll('-', '')
  const code = Buffer.from(id + 'ab'.repeat(32), 'hex').toString('base64url')
  await refused(t, grant(code), { error: 'invalid_grant', description: 'Invalid code' })
})
