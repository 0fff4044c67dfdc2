import { hash, X509Certificate } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Untyped } from '../../../fixtures/bots/bots.ts'
import { basic } from '../../../fixtures/client.ts'
import { askToken, decodeJwtClaims } from '../../../fixtures/people.ts'
import { aCertificate, thumbprint } from '../../../fixtures/services/certificate.ts'

const HEADER = 'X-Client-Cert'
const botica = await openBotica(t, {
  env: {
    TRUST_PROXY: 'true',
    CLIENT_CERTIFICATE_HEADER: HEADER,
    CLIENT_CERTIFICATE_VERIFIED: 'true',
  },
})
const { baseUrl, superAdmin, admin, anonymous } = botica
const CREDENTIALS = { grant_type: 'client_credentials' }

/** The header as nginx sends it, by `$ssl_client_escaped_cert`. */
const escaped = (pem: string) => ({ [HEADER]: encodeURIComponent(pem) })
/** The header of RFC 9440. */
const sequence = (pem: string) => ({
  [HEADER]: `:${new X509Certificate(pem).raw.toString('base64')}:`,
})

/** Replaces the secret of a new client. */
async function aClient(fields: Record<string, unknown>): Promise<string> {
  const { id } = await botica.createMember()
  const { secret: _, ...rest } = (await superAdmin.get<Untyped>(`ClientApplication/${id}`)).body
  const saved = await superAdmin.put(`ClientApplication/${id}`, { ...rest, ...fields })
  if (saved.status !== 200) throw new Error(saved.text)
  return id
}

const pinnedTo = (...pems: readonly string[]) =>
  aClient({
    tokenEndpointAuthMethod: 'self_signed_tls_client_auth',
    tlsClientCertificateThumbprint: pems.map(thumbprint),
  })

const signIn = (client_id: string, headers: Record<string, string> = {}, form = {}) =>
  askToken(baseUrl, { ...CREDENTIALS, client_id, ...form }, headers)

const { cert: own } = aCertificate()
const { cert: other } = aCertificate()

t.test('a client signs in by a registered certificate, in both forms of the header', async (t) => {
  const id = await pinnedTo(other, own)
  for (const headers of [escaped(own), sequence(own), escaped(other)]) {
    t.match(await signIn(id, headers), { status: 200, body: { token_type: 'Bearer' } })
  }
  const stranger = aCertificate().cert
  t.match(await signIn(id, escaped(`${own}${stranger}`)), { status: 200 }, 'with its issuer')
  for (const headers of [escaped(stranger), escaped(`${stranger}${own}`), {}]) {
    t.match(await signIn(id, headers), { status: 401, body: { error: 'invalid_client' } })
  }
})

/** In the form of `openssl x509 -subject -nameopt RFC2253,utf8,-esc_msb`. */
const SUBJECT = String.raw`CN=laboratory+O=ward,O=Clinic\, \"A\" \+ B\\ Zürich\ ,C=DE`

t.test('a client signs in by the subject or an alternative name of a certificate', async (t) => {
  const { cert } = aCertificate({
    subject: [
      [['C', 'DE']],
      [['O', 'Clinic, "A" + B\\ Zürich ']],
      [
        ['O', 'ward'],
        ['CN', 'laboratory'],
      ],
    ],
    names: [
      ['dns', 'lab.example.org'],
      ['uri', 'urn:example:lab'],
      ['ip', [10, 0, 0, 7]],
      ['email', 'lab@example.org'],
    ],
  })
  const cases: readonly (readonly [string, string, string])[] = [
    ['tlsClientAuthSubjectDn', SUBJECT, 'CN=laboratory,C=DE'],
    ['tlsClientAuthSubjectDn', SUBJECT.replace(/^(.*?)\+(.*?),/, '$2+$1,'), SUBJECT.slice(1)],
    ['tlsClientAuthSubjectDn', SUBJECT.replace('CN=', 'cn='), SUBJECT.toLowerCase()],
    ['tlsClientAuthSanDns', 'lab.example.org', 'example.org'],
    ['tlsClientAuthSanUri', 'urn:example:lab', 'urn:example:l'],
    ['tlsClientAuthSanIp', '10.0.0.7', '10.0.0.8'],
    ['tlsClientAuthSanEmail', 'lab@example.org', 'other@example.org'],
  ]
  for (const [element, right, wrong] of cases) {
    const registered = (value: string) =>
      aClient({ tokenEndpointAuthMethod: 'tls_client_auth', [element]: value })
    t.match(await signIn(await registered(right), escaped(cert)), { status: 200 }, element)
    const refused = await signIn(await registered(wrong), escaped(cert))
    t.match(refused, { status: 401, body: { error: 'invalid_client' } }, element)
  }
})

t.test('only an alternative name of its kind matches, and no pattern', async (t) => {
  const lab = { tlsClientAuthSanUri: 'urn:example:lab' }
  const host = { tlsClientAuthSanDns: 'lab.example.org' }
  const cases: readonly (readonly [Parameters<typeof aCertificate>[0], object])[] = [
    [{ names: [['dns', 'x, URI:urn:example:lab, y']] }, lab],
    [{ names: [['email', 'urn:example:lab']] }, lab],
    [{ names: [['dns', '*.example.org']] }, host],
    [{ names: [['uri', 'lab.example.org']] }, host],
    [{ subject: [[['CN', 'lab.example.org']]] }, host],
    [{ subject: [[['O', 'x,CN=lab']]] }, { tlsClientAuthSubjectDn: 'CN=lab,O=x' }],
    [{ subject: [[['O', 'x\nCN=lab']]] }, { tlsClientAuthSubjectDn: 'CN=lab,O=x' }],
  ]
  for (const [contents, name] of cases) {
    const id = await aClient({ tokenEndpointAuthMethod: 'tls_client_auth', ...name })
    const refused = await signIn(id, escaped(aCertificate(contents).cert))
    t.match(refused, { status: 401, body: { error: 'invalid_client' } }, JSON.stringify(contents))
  }
})

t.test('rejects headers of another form, and certificates out of their time', async (t) => {
  const id = await pinnedTo(own)
  const { raw } = new X509Certificate(own)
  const odd = [
    `Hash=${hash('sha256', raw)};Subject="CN=localhost"`,
    raw.toString('base64'),
    `:${raw.toString('base64')}:, :${raw.toString('base64')}:`,
    `:${raw.subarray(1).toString('base64')}:`,
    encodeURIComponent(`${own}x`),
    '%',
    'x',
  ]
  for (const text of odd) {
    const refused = await signIn(id, { [HEADER]: text })
    t.match(refused, { status: 400, body: { error: 'invalid_request' } }, text.slice(0, 20))
  }
  for (const days of [[-3, -1] as const, [1, 3] as const]) {
    const { cert } = aCertificate({ days })
    const refused = await signIn(await pinnedTo(cert), escaped(cert))
    t.match(refused, { status: 401, body: { error: 'invalid_client' } })
  }
})

t.test('a client with a certificate has no other way to sign in', async (t) => {
  const secret = 's'.repeat(40)
  const id = await aClient({
    tokenEndpointAuthMethod: 'self_signed_tls_client_auth',
    tlsClientCertificateThumbprint: [thumbprint(own)],
    secret,
  })
  for (const given of ['', secret]) {
    t.not((await signIn(id, {}, { client_secret: given })).status, 200)
    t.equal((await askToken(baseUrl, CREDENTIALS, basic(id, given))).status, 401)
    t.equal((await anonymous.get('Patient', basic(id, given))).status, 401)
  }
  const both = await signIn(id, escaped(own), { client_secret: secret })
  t.match(both, { status: 401, body: { error: 'invalid_client' } }, 'one method at a time')
})

t.test('a certificate does not sign in a client that did not register one', async (t) => {
  const { id, secret } = await botica.createMember()
  const bare = await signIn(id, escaped(own))
  t.match(bare, { status: 400, body: { error: 'invalid_request' } })
  t.equal((await signIn(id, escaped(own), { client_secret: secret })).status, 200)
})

t.test('a token issued over mutual TLS works only with its certificate', async (t) => {
  const { id, secret } = await botica.createMember()
  const issued = await signIn(id, escaped(own), { client_secret: secret })
  const token = issued.body.access_token
  t.match(decodeJwtClaims(token), { cnf: { 'x5t#S256': thumbprint(own) } })
  const bearer = { Authorization: `Bearer ${token}` }
  const wrong = [{}, escaped(other), { [HEADER]: 'odd' }]
  const calls: readonly ((headers: Record<string, string>) => Promise<Untyped>)[] = [
    (headers) => anonymous.get('Patient', headers),
    (headers) => anonymous.post('$graphql', { query: '{ PatientList { id } }' }, headers),
    (headers) => anonymous.get('/auth/me', headers),
    (headers) => anonymous.get('/oauth2/userinfo', headers),
    (headers) =>
      anonymous.post('/mcp', JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }), {
        ...headers,
        'Content-Type': 'application/json',
        Accept: 'application/json, text/event-stream',
      }),
  ]
  for (const call of calls) {
    t.equal((await call({ ...bearer, ...sequence(own) })).status, 200)
    for (const headers of wrong) {
      const refused = await call({ ...bearer, ...headers })
      t.equal(refused.status, 401)
      t.match(refused.headers.get('www-authenticate'), /error="invalid_token"/)
    }
  }
  const large = { resourceType: 'Patient', name: [{ text: 'x'.repeat(100_000) }] }
  t.equal((await anonymous.post('Patient', large, { ...bearer, ...escaped(own) })).status, 201)
  const plain = (await signIn(id, {}, { client_secret: secret })).body.access_token
  t.equal(decodeJwtClaims(plain).cnf, undefined)
  const unbound = { Authorization: `Bearer ${plain}`, ...escaped(other) }
  t.equal((await anonymous.get('Patient', unbound)).status, 200, 'an unbound token needs none')
})

t.test('introspection shows the certificate of a token', async (t) => {
  const id = await pinnedTo(own)
  const { access_token: token } = (await signIn(id, escaped(own))).body
  const described = await askIntrospection({ token: String(token), client_id: id }, escaped(own))
  t.match(described.body, { active: true, cnf: { 'x5t#S256': thumbprint(own) } })
  t.equal((await askIntrospection({ token: String(token), client_id: id })).status, 401)
})

async function askIntrospection(form: Record<string, string>, headers = {}) {
  const response = await fetch(`${baseUrl}oauth2/introspect`, {
    method: 'POST',
    headers,
    body: new URLSearchParams(form),
  })
  return { status: response.status, body: await response.json() }
}

t.test('a registration needs one readable identity, and the method that uses it', async (t) => {
  const base = { resourceType: 'ClientApplication', name: 'Feed' }
  const pki = { ...base, tokenEndpointAuthMethod: 'tls_client_auth' }
  const pinned = { ...base, tokenEndpointAuthMethod: 'self_signed_tls_client_auth' }
  const cases: readonly (readonly [string, Record<string, unknown>])[] = [
    ['tokenEndpointAuthMethod', pki],
    ['tokenEndpointAuthMethod', pinned],
    ['tlsClientAuthSanDns', { ...base, tlsClientAuthSanDns: 'a.example' }],
    ['tlsClientAuthSanIp', { ...pki, tlsClientAuthSanDns: 'a.example', tlsClientAuthSanIp: '::1' }],
    ['tlsClientAuthSanDns', { ...pki, tlsClientAuthSanDns: '*.example' }],
    ['tlsClientAuthSanIp', { ...pki, tlsClientAuthSanIp: '10.0.0.0/8' }],
    ['tlsClientAuthSanUri', { ...pki, tlsClientAuthSanUri: 'a, b' }],
    ['tlsClientAuthSanEmail', { ...pki, tlsClientAuthSanEmail: 'nobody' }],
    ['tlsClientAuthSubjectDn', { ...pki, tlsClientAuthSubjectDn: 'CN=a, O=b' }],
    ['tlsClientCertificateThumbprint', { ...pki, tlsClientCertificateThumbprint: ['x'] }],
    ['tlsClientCertificateThumbprint', { ...pinned, tlsClientCertificateThumbprint: ['x'] }],
  ]
  for (const [element, client] of cases) {
    const refused = await admin.post<Untyped>('ClientApplication', client)
    t.equal(refused.status, 400, refused.text)
    t.match(refused.body.issue[0].expression, [new RegExp(`^ClientApplication.${element}`)])
  }
})

t.test('only administrators write the identity of a client', async (t) => {
  const id = await pinnedTo(own)
  const { client: member } = await botica.createMember()
  const path = '/tlsClientCertificateThumbprint'
  const change = [{ op: 'replace', path, value: [thumbprint(other)] }]
  t.equal((await member.patch(`ClientApplication/${id}`, change)).status, 403)
  t.equal((await admin.patch(`ClientApplication/${id}`, change)).status, 200)
  t.equal((await signIn(id, escaped(own))).status, 401, 'the earlier certificate has ended')
  t.equal((await signIn(id, escaped(other))).status, 200)
})

t.test('discovery lists the methods', async (t) => {
  for (const path of ['oauth-authorization-server', 'smart-configuration']) {
    const { body } = await anonymous.get<Untyped>(`/.well-known/${path}`)
    t.equal(body.tls_client_certificate_bound_access_tokens, true)
    const methods = body.token_endpoint_auth_methods_supported.slice(4)
    t.strictSame(methods, ['self_signed_tls_client_auth', 'tls_client_auth'])
  }
  const resource = await anonymous.get<Untyped>('/.well-known/oauth-protected-resource')
  t.equal(resource.body.tls_client_certificate_bound_access_tokens, true)
})
