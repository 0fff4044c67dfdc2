import { createHmac, randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type CryptoKey, exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { askToken } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { baseUrl, superAdmin } = botica
const JWT_BEARER = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer'

const [es384, rs384, stranger] = await Promise.all([
  generateKeyPair('ES384', { extractable: true }),
  generateKeyPair('RS384', { extractable: true }),
  generateKeyPair('ES384', { extractable: true }),
])
const published = async (key: CryptoKey, kid: string): Promise<JWK> => ({
  ...(await exportJWK(key)),
  kid,
})
const keys = await Promise.all([
  // Two keys of one name: all are tried.
  published(stranger.publicKey, 'ec'),
  published(es384.publicKey, 'ec'),
  published(rs384.publicKey, 'rsa'),
])

/** The response of the JWKS URL, which tests replace. */
let answer: (req: IncomingMessage, res: ServerResponse) => void = (_req, res) => {
  res.end(JSON.stringify({ keys }))
}
let asked = 0
const server = createServer((req, res) => {
  asked += 1
  answer(req, res)
})
const origin = `http://127.0.0.1:${await listen(t, server)}`

async function aClient(fields: Record<string, unknown>): Promise<string> {
  const { id } = await botica.createMember()
  const found = await superAdmin.get(`ClientApplication/${id}`)
  const { secret: _, ...rest } = found.body
  const saved = await superAdmin.put(`ClientApplication/${id}`, { ...rest, ...fields })
  if (saved.status !== 200) throw new Error(saved.text)
  botica.services.principals.forget()
  return id
}

const inline = await aClient({ jwks: JSON.stringify({ keys }) })

interface Changes {
  readonly header?: Record<string, unknown>
  readonly claims?: Record<string, unknown>
  readonly key?: CryptoKey
}

async function assertion(clientId: string, changes: Changes = {}): Promise<string> {
  const now = Math.floor(Date.now() / 1000)
  const claims = {
    iss: clientId,
    sub: clientId,
    aud: `${baseUrl}oauth2/token`,
    exp: now + 240,
    jti: randomUUID(),
    ...changes.claims,
  }
  return await new SignJWT(claims)
    .setProtectedHeader({ alg: 'ES384', kid: 'ec', typ: 'JWT', ...changes.header })
    .sign(changes.key ?? es384.privateKey)
}

const signIn = (client_assertion: string, form: Record<string, string> = {}) =>
  askToken(baseUrl, {
    grant_type: 'client_credentials',
    client_assertion_type: JWT_BEARER,
    client_assertion,
    ...form,
  })

t.test('a client without secret signs in by ES384 and RS384', async (t) => {
  for (const changes of [{}, { header: { alg: 'RS384', kid: 'rsa' }, key: rs384.privateKey }]) {
    const { status, body, text } = await signIn(await assertion(inline, changes))
    t.equal(status, 200, text)
    const me = await createClient(baseUrl, body.access_token).get('/auth/me')
    t.match(me.body, { profile: { id: inline } })
  }
  const toIssuer = await assertion(inline, { claims: { aud: baseUrl } })
  t.equal((await signIn(toIssuer, { client_id: inline })).status, 200)
})

t.test('accepts an assertion once', async (t) => {
  const once = await assertion(inline)
  const answers = await Promise.all([signIn(once), signIn(once), signIn(once)])
  t.equal(answers.filter(({ status }) => status === 200).length, 1)
  t.match(await signIn(once), { status: 401, body: { error_description: /used before/ } })
})

t.test('rejects invalid assertions', async (t) => {
  const now = Math.floor(Date.now() / 1000)
  const unsigned = (header: object, claims: object) =>
    `${[header, claims].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url')).join('.')}.`
  const claims = { iss: inline, sub: inline, aud: baseUrl, exp: now + 60, jti: randomUUID() }
  const confusedHead = unsigned({ alg: 'HS256', kid: 'rsa' }, claims).slice(0, -1)
  const secret = JSON.stringify(keys[2])
  const confused = `${confusedHead}.${createHmac('sha256', secret).update(confusedHead).digest('base64url')}`
  const cases: [string, string | Promise<string>][] = [
    ['no JWT', 'nonsense'],
    ['alg none', unsigned({ alg: 'none', kid: 'ec' }, claims)],
    ['a public key as a secret', confused],
    [
      'the key of another client',
      assertion(inline, { key: rs384.privateKey, header: { alg: 'RS384' } }),
    ],
    ['an unknown key', assertion(inline, { header: { kid: 'other' } })],
    ['no kid', assertion(inline, { header: { kid: undefined } })],
    ['another subject', assertion(inline, { claims: { sub: 'somebody' } })],
    ['another audience', assertion(inline, { claims: { aud: 'https://elsewhere.example/' } })],
    ['no audience', assertion(inline, { claims: { aud: undefined } })],
    ['expired', assertion(inline, { claims: { exp: now - 60 } })],
    ['no end', assertion(inline, { claims: { exp: undefined } })],
    ['an end too far away', assertion(inline, { claims: { exp: now + 3600 } })],
    ['not valid yet', assertion(inline, { claims: { nbf: now + 120 } })],
    ['no jti', assertion(inline, { claims: { jti: undefined } })],
  ]
  for (const [name, text] of cases) {
    const refused = await signIn(await text)
    t.match(
      refused,
      {
        status: 401,
        body: { error: 'invalid_client', error_description: /^Invalid client assertion/ },
      },
      name,
    )
  }
})

t.test('an assertion belongs to the client that is named, and comes alone', async (t) => {
  const other = await botica.createMember()
  const foreign = await signIn(await assertion(inline), { client_id: other.id })
  t.match(foreign, { status: 401, body: { error: 'invalid_client' } })
  const twofold = await signIn(await assertion(inline), { client_secret: other.secret })
  t.match(twofold, { status: 400, body: { error: 'invalid_request' } })
  const odd = await signIn(await assertion(inline), { client_assertion_type: 'urn:odd' })
  t.match(odd, { status: 400, body: { error: 'invalid_request' } })
  const unknown = randomUUID()
  const nobody = await signIn(await assertion(unknown))
  t.match(nobody, {
    status: 401,
    body: { error: 'invalid_client', error_description: 'Invalid client' },
  })
})

t.test('keys are fetched once for many assertions', async (t) => {
  const client = await aClient({ jwksUri: `${origin}/keys` })
  asked = 0
  const answers = await Promise.all(
    Array.from({ length: 5 }, async () => signIn(await assertion(client))),
  )
  t.same(
    answers.map(({ status }) => status),
    [200, 200, 200, 200, 200],
  )
  t.equal(asked, 1)
  await Promise.all(
    Array.from({ length: 5 }, async () =>
      signIn(await assertion(client, { header: { kid: randomUUID() } })),
    ),
  )
  t.ok(asked <= 2, 'names that are made up do not make us ask each time')
})

t.test('survives a misbehaving JWKS URL', async (t) => {
  const cases: [string, typeof answer][] = [
    ['no JSON', (_req, res) => res.end('<html>')],
    ['no keys', (_req, res) => res.end('{}')],
    ['an error', (_req, res) => res.writeHead(500).end()],
    ['a redirect', (_req, res) => res.writeHead(302, { Location: `${origin}/other` }).end()],
    ['far too much', (_req, res) => res.end(JSON.stringify({ keys, junk: 'x'.repeat(1_000_000) }))],
    [
      'a thousand keys',
      (_req, res) => res.end(JSON.stringify({ keys: Array(1000).fill(keys[1]) })),
    ],
    ['silence', () => undefined],
  ]
  for (const [name, behaviour] of cases) {
    answer = behaviour
    const client = await aClient({ jwksUri: `${origin}/${encodeURIComponent(name)}` })
    const refused = await signIn(await assertion(client))
    t.match(
      refused,
      {
        status: 401,
        body: { error: 'invalid_client', error_description: /^Invalid client assertion/ },
      },
      name,
    )
  }
})
