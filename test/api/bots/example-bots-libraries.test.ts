import { generateKeyPairSync, type JsonWebKey, randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { jwtVerify, SignJWT } from 'jose'
import JSZip from 'jszip'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { execute, type Untyped } from '../../fixtures/bots/bots.ts'
import { openExamples } from '../../fixtures/bots/example-bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const MRN = 'https://example.org/fhir/sid/mrn'
const partner = generateKeyPairSync('rsa', { modulusLength: 2048 })
const own = generateKeyPairSync('rsa', { modulusLength: 2048 })
const peer = createServer((request, response) => {
  let body = ''
  request.on('data', (part) => {
    body += part
  })
  request.on('end', async () => {
    const form = new URLSearchParams(body)
    const isGranted = await jwtVerify(form.get('client_assertion') ?? '', own.publicKey, {
      audience: `${peerUrl}token`,
      issuer: 'clinic',
    }).catch(() => undefined)
    const patient = { ...aPatient(), id: 'theirs', identifier: [{ system: MRN, value: 'P-1' }] }
    if (request.url === '/token') {
      response.writeHead(isGranted ? 200 : 401).end('{"access_token":"granted"}')
    } else {
      const isAllowed = request.headers.authorization === 'Bearer granted'
      const entry = request.url?.endsWith('P-1') ? [{ resource: patient }] : []
      const found = JSON.stringify({ resourceType: 'Bundle', type: 'searchset', entry })
      response.writeHead(isAllowed ? 200 : 401).end(found)
    }
  })
})
const peerUrl = `http://127.0.0.1:${await listen(t, peer)}/`

const botica = await openBotica(t, { worker: true })
const { admin } = botica
const { deploy, search } = await openExamples(t, botica, {
  PARTNER_KEY: partner.publicKey.export({ type: 'spki', format: 'pem' }).toString(),
  PEER_KEY: JSON.stringify({
    ...(own.privateKey.export({ format: 'jwk' }) as JsonWebKey),
    kid: '1',
  }),
  PEER_URL: peerUrl,
  NOTE_KEY: 'the password of all notes',
})

t.test('accepts only web hooks with a valid RS256 signature', async (t) => {
  const bot = await deploy('signed-webhook')
  const token = (changes: object, key = partner.privateKey, alg = 'RS256') =>
    new SignJWT({ text: 'Hello', jti: randomUUID(), iss: 'urn:partner', ...changes })
      .setProtectedHeader({ alg })
      .setAudience('https://example.org/clinic')
      .setExpirationTime('1m')
      .sign(key)
  const { body } = await execute(admin, bot, { token: await token({}) })
  t.match((await admin.get(`Communication/${body.communication}`)).body, {
    identifier: [{ system: 'urn:partner' }],
    payload: [{ contentString: 'Hello' }],
  })
  const refused = async (token: string) =>
    (await execute(admin, bot, { token })).body.issue?.[0].details.text
  t.match(await refused(await token({}, own.privateKey)), /signature/)
  t.match(await refused(await token({}, partner.privateKey, 'RS512')), /RS512/)
  t.match(await refused(`${await token({ text: 'x' })}x`), /signature/)
})

t.test('fetches a patient as a SMART Backend Services client', async (t) => {
  const bot = await deploy('backend-services')
  const { body } = await execute(admin, bot, { mrn: 'P-1' })
  t.match(body, { found: true })
  t.not(body.patient, 'theirs')
  t.same((await execute(admin, bot, { mrn: 'P-1' })).body, body)
  t.same((await execute(admin, bot, { mrn: 'P-2' })).body, { found: false })
})

t.test('renders a report as a PDF', async (t) => {
  const bot = await deploy('report-letter')
  const subject = { reference: `Patient/${(await admin.create(aPatient())).id}` }
  const result = await admin.create(anObservation(subject.reference))
  const report = await admin.create({
    resourceType: 'DiagnosticReport',
    status: 'final',
    code: { text: 'Vital signs' },
    subject,
    result: [{ reference: `Observation/${result.id}` }],
  } as Resource)
  const { body } = await execute(admin, bot, report)
  t.match(body, { rows: 1 })
  const document = (await admin.get<Untyped>(`DocumentReference/${body.document}`)).body
  const pdf = await fetch(document.content[0].attachment.url)
  t.equal(pdf.headers.get('content-type'), 'application/pdf')
  t.match(await pdf.text(), /^%PDF-/)
})

t.test('reads a roster from CSV', async (t) => {
  const bot = await deploy('roster-csv')
  const csv =
    'mrn,family,given,born\nC-1,Chalmers,"Peter James",1974-12-25\nC-2,"Windsor, von",Amy,soon\n,Nobody,,\n'
  const post = (text: string) =>
    admin.post<Untyped>(`Bot/${bot}/$execute`, text, { 'Content-Type': 'text/csv' })
  t.match((await post(csv)).body, { made: 2, updated: 0, refused: /Nobody/ })
  t.match((await post(csv)).body, { made: 0, updated: 2 })
  const [first] = await search(`Patient?identifier=${MRN}|C-1`)
  t.match(first, {
    name: [{ family: 'Chalmers', given: ['Peter', 'James'] }],
    birthDate: '1974-12-25',
  })
})

t.test('answers an XML order with XML', async (t) => {
  const bot = await deploy('order-xml')
  await admin.create(aPatient({ identifier: [{ system: MRN, value: 'X-1' }] }))
  const post = (mrn: string) =>
    admin.post(
      `Bot/${bot}/$execute`,
      `<order number="O-${mrn}" urgent="yes"><patient mrn="${mrn}"/><item>Glucose</item><item code="2">Sodium &amp; more</item></order>`,
      { 'Content-Type': 'application/xml' },
    )
  const answered = await post('X-1')
  const [, id] =
    /^<receipt order="O-X-1" code="AA">ServiceRequest\/(\S+)<\/receipt>$/.exec(answered.text) ?? []
  t.match((await admin.get(`ServiceRequest/${id}`)).body, {
    priority: 'urgent',
    code: { text: 'Glucose, Sodium & more' },
  })
  t.equal((await post('X-1')).text, answered.text)
  t.match((await post('X-2')).text, 'code="AE"')
})

t.test('packs documents into a ZIP', async (t) => {
  const bot = await deploy('zip-documents')
  const { id } = await admin.create(aPatient())
  const binary = await admin.post<Untyped>('Binary', 'first letter', {
    'Content-Type': 'text/plain',
  })
  const document = await admin.create({
    resourceType: 'DocumentReference',
    status: 'current',
    subject: { reference: `Patient/${id}` },
    content: [{ attachment: { url: `Binary/${binary.body.id}`, title: 'letter.txt' } }],
  } as Resource)
  const { body } = await execute(admin, bot, { patient: id })
  t.equal(body.files, 1)
  const [packed] = [await admin.get<Untyped>(body.zip, { Accept: 'application/fhir+json' })]
  const bytes = await (await fetch(packed.body.url)).arrayBuffer()
  const zip = await JSZip.loadAsync(bytes)
  t.equal(await zip.file(`${document.id}/letter.txt`)?.async('string'), 'first letter')
})

t.test('encrypts and decrypts a note', async (t) => {
  const bot = await deploy('sealed-note')
  const { id } = await admin.create(aPatient())
  const { body } = await execute(admin, bot, { patient: id, note: 'Between us é' })
  const kept = await admin.get<Untyped>(`Communication/${body.communication}`)
  t.notMatch(kept.text, 'Between')
  t.same((await execute(admin, bot, body)).body, { note: 'Between us é' })
  const [{ contentString: text }] = kept.body.payload
  const spoiled = { ...kept.body, payload: [{ contentString: `${text.slice(0, -8)}AAAAAAA=` }] }
  await admin.put(`Communication/${body.communication}`, spoiled)
  t.equal((await execute(admin, bot, body)).status, 400)
})
