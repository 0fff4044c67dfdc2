/** JWTs that an EHR signs itself for its calls of CDS Hooks. */
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { type CryptoKey, exportJWK, generateKeyPair, SignJWT } from 'jose'
import t from 'tap'
import { openBotica, type Tenant } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { createClient } from '../../fixtures/client.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t, { worker: true, env: { LARGE_BODY_BYTES: '10000' } })
const { baseUrl, superAdmin } = botica
const json = { 'Content-Type': 'application/json' }
const ISSUER = 'https://ehr.example/cds'
const [key, stranger] = await Promise.all([generateKeyPair('ES384'), generateKeyPair('ES384')])
const keys = [{ ...(await exportJWK(key.publicKey)), kid: 'ec' }]
const port = await listen(
  t,
  createServer((_req, res) => res.end(JSON.stringify({ keys }))),
)
const jwksUri = `http://127.0.0.1:${port}/jwks`

const CODE = handler(`return { cards: [{
  summary: 'Seen', indicator: 'info', source: { label: 'Test' },
  detail: String(event.input.prefetch.patient?.id),
}] }`)
const service = {
  hook: 'patient-view',
  title: 'Viewer',
  description: 'Shows the patient',
  prefetch: [{ key: 'patient', query: 'Patient/{{context.patientId}}' }],
}
const bot = await aBot(botica, CODE, { fields: { cdsService: service } })
const patient = await botica.admin.create(aPatient())
const call = {
  hook: 'patient-view',
  hookInstance: randomUUID(),
  context: { userId: 'Practitioner/1', patientId: patient.id },
}

/** A client with keys, whose membership has the issuer. */
async function anEhr(
  { project, admin }: Tenant,
  { issuer = ISSUER, fields = {}, policy = {} }: Readonly<Record<string, Untyped>> = {},
): Promise<string> {
  const { id } = await botica.createMember(policy, project.id)
  const found = await superAdmin.get(`ClientApplication/${id}`)
  const put = await superAdmin.put(`ClientApplication/${id}`, { ...found.body, jwksUri, ...fields })
  if (put.status !== 200) throw new Error(put.text)
  const members = await admin.get<Untyped>(`ProjectMembership?profile=ClientApplication/${id}`)
  const path = `/admin/projects/${project.id}/members/${members.body.entry[0].resource.id}`
  const change = [{ op: 'add', path: '/externalId', value: issuer }]
  const patched = await admin.patch(path, change)
  if (patched.status !== 200) throw new Error(patched.text)
  return id
}

const own = `/projects/${botica.project.id}/cds-services`
const absolute = (path: string) => `${baseUrl}${path.slice(1)}`

interface Changes {
  readonly header?: Record<string, unknown>
  readonly claims?: Record<string, unknown>
  readonly signer?: CryptoKey
}

async function sign(path: string, { header, claims, signer }: Changes = {}): Promise<string> {
  const now = Math.floor(Date.now() / 1000)
  const all = { iss: ISSUER, aud: absolute(path), iat: now, exp: now + 240, jti: randomUUID() }
  return await new SignJWT({ ...all, ...claims })
    .setProtectedHeader({ alg: 'ES384', typ: 'JWT', kid: 'ec', ...header })
    .sign(signer ?? key.privateKey)
}

const post = (token: string, path: string, body: object) =>
  createClient(baseUrl, token).post<Untyped>(path, JSON.stringify(body), json)

const ehr = await anEhr(botica)

t.test('an EHR lists and calls services with the JWTs that it signs', async (t) => {
  const listed = await createClient(baseUrl, await sign(own)).get<Untyped>(own)
  t.match(listed, { status: 200, body: { services: [{ id: bot }] } })
  const path = `${own}/${bot}`
  for (const aud of [absolute(path), absolute(own)]) {
    const called = await post(await sign(path, { claims: { aud } }), path, call)
    t.equal(called.status, 200, called.text)
    t.equal(called.body.cards[0].detail, patient.id, 'prefetch is read with its rights')
  }
  const withJku = await post(await sign(path, { header: { jku: jwksUri } }), path, call)
  t.equal(withJku.status, 200, withJku.text)
  const feedback = { feedback: [] }
  t.not((await post(await sign(`${path}/feedback`), `${path}/feedback`, feedback)).status, 401)
})

t.test('answers a large call', async (t) => {
  const path = `${own}/${bot}`
  const extension = { note: 'x'.repeat(20_000) }
  const called = await post(await sign(path), path, { ...call, extension })
  t.equal(called.status, 200, called.text)
  t.equal(called.body.cards[0].detail, patient.id)
})

/** A caller without keys learns nothing about the issuers that a project knows. */
const NOT_PROVEN = /^The JWT is not signed by an EHR of this project, or not for this address/

t.test(
  'rejects a JWT that does not prove this call, with the reason if it is signed',
  async (t) => {
    const path = `${own}/${bot}`
    const now = Math.floor(Date.now() / 1000)
    const bad: readonly (readonly [string, Changes, RegExp])[] = [
      ['foreign key', { signer: stranger.privateKey }, NOT_PROVEN],
      ['unknown key', { header: { kid: 'other' } }, NOT_PROVEN],
      ['foreign jku', { header: { jku: 'https://evil.example/jwks' } }, NOT_PROVEN],
      ['other service', { claims: { aud: absolute(`${own}/other`) } }, NOT_PROVEN],
      ['expired', { claims: { exp: now - 60 } }, NOT_PROVEN],
      ['long-lived', { claims: { exp: now + 3600 } }, /within 5 minutes/],
      ['without jti', { claims: { jti: undefined } }, /has no jti/],
      ['unknown issuer', { claims: { iss: 'https://other.example' } }, NOT_PROVEN],
    ]
    for (const [name, changes, text] of bad) {
      const refused = await post(await sign(path, changes), path, call)
      t.equal(refused.status, 401, name)
      t.match(refused.body.issue[0].details.text, text, name)
    }
    const once = await sign(path)
    t.equal((await post(once, path, call)).status, 200)
    const again = await post(once, path, call)
    t.match(again.body, { issue: [{ details: { text: 'The JWT was used before' } }] })
  },
)

t.test('a JWT gives access only to the services of its project', async (t) => {
  const path = `${own}/${bot}`
  t.equal((await post(await sign('/cds-services'), `/cds-services/${bot}`, call)).status, 401)
  for (const place of ['fhir/R4/Patient', 'auth/me', 'mcp']) {
    const other = `/projects/${botica.project.id}/${place}`
    const client = createClient(baseUrl, await sign(other))
    const answer = place === 'mcp' ? await client.post(other, {}) : await client.get(other)
    t.equal(answer.status, 401, place)
  }
  const tenant = await botica.createTenant()
  const foreign = `/projects/${tenant.project.id}/cds-services`
  t.equal((await createClient(baseUrl, await sign(foreign)).get(foreign)).status, 401)
  await anEhr(tenant)
  const theirs = await createClient(baseUrl, await sign(foreign)).get<Untyped>(foreign)
  t.match(theirs, { status: 200, body: { services: [] } }, 'the same EHR, as their client')
  const headers = { ...json, 'X-Medplum-On-Behalf-Of': `ClientApplication/${ehr}` }
  const acting = createClient(baseUrl, await sign(path))
  t.equal((await acting.post(path, JSON.stringify(call), headers)).status, 403)
})

t.test('a client that signs in by its certificate has no JWTs', async (t) => {
  const issuer = 'https://certified.example'
  const fields = {
    tokenEndpointAuthMethod: 'self_signed_tls_client_auth',
    tlsClientCertificateThumbprint: ['x'.repeat(43)],
  }
  await anEhr(botica, { issuer, fields })
  const token = await sign(own, { claims: { iss: issuer } })
  t.equal((await createClient(baseUrl, token).get(own)).status, 401)
})

t.test('the policy and the status of the client hold', async (t) => {
  const policy = await botica.admin.create({
    resourceType: 'AccessPolicy',
    name: 'Patients only',
    resource: [{ resourceType: 'Patient' }],
  })
  const issuer = 'https://narrow.example'
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const id = await anEhr(botica, { issuer, policy: { accessPolicy } })
  const list = async () =>
    createClient(baseUrl, await sign(own, { claims: { iss: issuer } })).get<Untyped>(own)
  t.match(await list(), { status: 200, body: { services: [] } })
  const { body } = await superAdmin.get(`ClientApplication/${id}`)
  t.equal((await superAdmin.put(`ClientApplication/${id}`, { ...body, status: 'off' })).status, 200)
  botica.services.principals.forget()
  t.equal((await list()).status, 401)
})
