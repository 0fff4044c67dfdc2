/** SMART standalone launch: choice of the patient, and the access of `openid fhirUser`. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { openBrowser } from '../../fixtures/http/browser.ts'
import { aPerson, decodeJwtClaims, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const publicUrl = 'https://botica.example/'
const botica = await openBotica(t, { publicUrl })
const { baseUrl, services, project, admin, anonymous } = botica
const redirectUri = 'https://app.example/callback'
const { verifier, asked } = pkce()
const scope = 'openid fhirUser launch/patient patient/Observation.rs'
const app = await admin.create({
  resourceType: 'ClientApplication',
  name: 'App',
  redirectUris: [redirectUri],
})

const policy = await admin.create({
  resourceType: 'AccessPolicy',
  resource: [
    { resourceType: 'Patient', criteria: 'Patient?gender=female' },
    { resourceType: 'Observation' },
    { resourceType: 'Practitioner' },
  ],
})
const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
const clinician = await aPerson(services, project, { details: { access } })
const named = (family: string, gender = 'female') =>
  admin.create(aPatient({ gender, name: [{ family, given: ['Ann'] }] }))
const [first, second, hidden] = [
  await named('Abbott'),
  await named('Baker'),
  await named('Abbott', 'male'),
]
const observation = await admin.create(anObservation(`Patient/${second.id}`))
const other = await admin.create(anObservation(`Patient/${first.id}`))

interface Listed {
  readonly patients: readonly { readonly id: string; readonly name: string }[]
  readonly next?: string
}

/** A person on the sign-in page, after the password. */
async function begun(email = clinician.email, asking = scope) {
  const browser = openBrowser(baseUrl, publicUrl)
  const fields = {
    email,
    password: PASSWORD,
    clientId: app.id,
    redirectUri,
    scope: asking,
    ...asked,
  }
  const { body } = await browser.call('/auth/login', fields)
  const login = String(body.login)
  const list = async (query = '') => {
    const answer = await browser.call(`/auth/login/${login}/patients${query}`)
    return { status: answer.status, body: answer.body as unknown as Listed }
  }
  return { browser, login, list, consent: () => browser.call(`/auth/login/${login}/consent`) }
}

const redeem = (code: unknown) => redeemCode(baseUrl, code, verifier, { redirect_uri: redirectUri })

t.test('a person chooses among the patients that they may see', async (t) => {
  const { browser, login, list, consent } = await begun()
  t.match((await consent()).body, { needsPatient: true })
  const all = (await list()).body.patients
  t.same(
    all.map(({ id }) => id),
    [first.id, second.id],
  )
  t.match(all[0]?.name, 'Abbott')
  t.same(
    (await list('?name=bak')).body.patients.map(({ id }) => id),
    [second.id],
  )

  const choose = (patient: string) => browser.call('/auth/patient', { login, patient })
  t.equal((await choose(hidden.id)).status, 400, 'a patient hidden from the person')
  t.equal((await choose('none')).status, 400)
  t.equal((await choose('../x')).status, 400)
  t.match(await choose(first.id), { status: 200, body: { code: String } })
  t.match(await choose(second.id), { status: 200 }, 'until the app has its tokens')
  t.match((await consent()).body, { needsPatient: false })
  const { body } = await browser.call('/auth/scope', { login, scope })
  const tokens = await redeem(body.code)
  t.match(tokens, { status: 200, body: { patient: second.id, need_patient_banner: true, scope } })

  const client = createClient(baseUrl, tokens.body.access_token)
  t.equal((await client.get(`Observation/${observation.id}`)).status, 200)
  t.equal((await client.get(`Observation/${other.id}`)).status, 404, 'of another patient')
  t.equal((await list()).status, 400, 'the choice is over')
  t.equal((await choose(first.id)).status, 400)
})

t.test('long lists come in pages', async (t) => {
  await Promise.all(Array.from({ length: 25 }, (_, n) => named(`Paged${n}`)))
  const { list } = await begun()
  const page = (await list('?name=paged')).body
  t.equal(page.patients.length, 20)
  const rest = (await list(`?name=paged&cursor=${encodeURIComponent(page.next ?? '')}`)).body
  t.equal(rest.patients.length, 5)
  t.equal(rest.next, undefined)
})

t.test('hides the list from others', async (t) => {
  const { login, browser } = await begun()
  const path = `/auth/login/${login}/patients`
  t.equal((await openBrowser(baseUrl, publicUrl).call(path)).status, 400, 'another browser')
  t.equal((await anonymous.get(path)).status, 400)
  const elsewhere = { login, patient: first.id }
  t.equal((await openBrowser(baseUrl, publicUrl).call('/auth/patient', elsewhere)).status, 400)
  // A client library begins sign-ins that belong to no browser.
  const fields = { email: clinician.email, password: PASSWORD, clientId: app.id, scope, ...asked }
  const bare = await anonymous.post<{ login: string; code: string }>('/auth/login', fields)
  t.equal((await anonymous.get(`/auth/login/${bare.body.login}/patients`)).status, 400)
  const tokens = await redeemCode(baseUrl, bare.body.code, verifier)
  t.equal((tokens.body as { patient?: string }).patient, undefined)
  const client = createClient(baseUrl, tokens.body.access_token)
  t.equal((await client.get(`Observation/${observation.id}`)).status, 403, 'without a patient')
  t.equal((await browser.call(path)).status, 200)
})

t.test('asks for no patient if the scopes need none', async (t) => {
  const plain = await begun(clinician.email, 'openid user/Observation.rs')
  t.match((await plain.consent()).body, { needsPatient: false })
  t.equal((await plain.list()).status, 400)
  const patient = await aPerson(services, project, { profileType: 'Patient' })
  const own = await begun(patient.email)
  t.match((await own.consent()).body, { needsPatient: false })
  t.equal((await own.list()).status, 400)
  const nobody = await aPerson(services, project, {
    details: {
      access: [
        {
          policy: {
            reference: `AccessPolicy/${(await admin.create({ resourceType: 'AccessPolicy', resource: [{ resourceType: 'Observation' }] })).id}`,
          },
        },
      ],
    },
  })
  t.equal((await (await begun(nobody.email)).list()).status, 403)
})

t.test(
  'a silent sign-in goes on with the patient of the session, and asks for one else',
  async (t) => {
    const query = `/oauth2/authorize?${new URLSearchParams({
      client_id: app.id,
      redirect_uri: redirectUri,
      response_type: 'code',
      scope,
      prompt: 'none',
      code_challenge: asked.codeChallenge,
      code_challenge_method: 'S256',
    })}`
    const session = async (patient?: string) => {
      const { browser, login } = await begun()
      if (patient !== undefined) await browser.call('/auth/patient', { login, patient })
      const { body } = await browser.call('/auth/scope', { login, scope })
      t.equal((await redeem(body.code)).status, 200)
      return (await browser.navigate(query)).location?.searchParams
    }
    t.equal((await session())?.get('error'), 'interaction_required')
    const silent = await redeem((await session(first.id))?.get('code'))
    t.match(silent.body, { patient: first.id })
  },
)

async function signedIn(asking: string, client = app.id) {
  const fields = {
    email: clinician.email,
    password: PASSWORD,
    clientId: client,
    scope: asking,
    ...asked,
  }
  const { body } = await anonymous.post<{ code: string }>('/auth/login', fields)
  const tokens = await redeemCode(baseUrl, body.code, verifier)
  return tokens.body
}

t.test('openid fhirUser reads the own profile, and no other', async (t) => {
  const own = `Practitioner/${clinician.profile.id}`
  const colleague = await aPerson(services, project)
  const reading = async (asking: string, path: string) => {
    const { access_token } = await signedIn(asking)
    return (await createClient(baseUrl, access_token).get(path)).status
  }
  const narrow = 'user/Observation.rs'
  t.equal(await reading(`openid fhirUser ${narrow}`, own), 200)
  t.equal(await reading(`openid fhirUser ${narrow}`, `Practitioner/${colleague.profile.id}`), 404)
  t.equal(await reading(`openid fhirUser ${narrow}`, 'Practitioner'), 403)
  t.equal(await reading(`fhirUser ${narrow}`, own), 403)
  t.equal(await reading(`openid ${narrow}`, own), 403)
  const { access_token } = await signedIn(`openid fhirUser ${narrow}`)
  const client = createClient(baseUrl, access_token)
  t.equal((await client.put(own, clinician.profile)).status, 403, 'it is not written')

  await admin.put(`AccessPolicy/${policy.id}`, {
    resourceType: 'AccessPolicy',
    id: policy.id,
    resource: [{ resourceType: 'Observation' }],
  })
  const after = await signedIn(`openid fhirUser ${narrow}`)
  t.equal(
    (await createClient(baseUrl, after.access_token).get(own)).status,
    403,
    'nor beyond the policy',
  )
})

t.test('ID tokens are signed with RS256 for clients that ask for it', async (t) => {
  const aClient = (idTokenSignedResponseAlg: string) =>
    admin.post('ClientApplication', {
      resourceType: 'ClientApplication',
      name: 'RSA',
      redirectUris: [redirectUri],
      idTokenSignedResponseAlg,
    })
  t.equal((await aClient('none')).status, 400)
  t.equal((await aClient('HS256')).status, 400)
  const { body } = await aClient('RS256')
  const parseHeader = (token: string) =>
    JSON.parse(Buffer.from(token.split('.')[0] ?? '', 'base64url').toString())
  const tokens = await signedIn('openid', body.id)
  const { keys } = (
    await anonymous.get<{ keys: { kid: string; kty: string; d?: string; p?: string }[] }>(
      '/.well-known/jwks.json',
    )
  ).body
  const { alg, kid } = parseHeader(tokens.id_token)
  t.equal(alg, 'RS256')
  t.match(
    keys.find((key) => key.kid === kid),
    { kty: 'RSA', d: undefined, p: undefined },
  )
  t.equal(decodeJwtClaims(tokens.id_token).aud, body.id)
  t.equal(parseHeader(tokens.access_token).alg, 'ES256')
  t.equal(parseHeader((await signedIn('openid')).id_token).alg, 'ES256')
  const { body: found } = await anonymous.get<{ id_token_signing_alg_values_supported: string[] }>(
    '/.well-known/openid-configuration',
  )
  t.same(found.id_token_signing_alg_values_supported, ['ES256', 'RS256'])
})
