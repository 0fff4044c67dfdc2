import { createHmac, randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { eventually, execute, type Untyped } from '../../fixtures/bots/bots.ts'
import { hl7, openExamples } from '../../fixtures/bots/example-bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient, syntheaBundles } from '../../fixtures/resources.ts'

const botica = await openBotica(t, { worker: true })
const { admin, anonymous } = botica

const { deploy, postHl7, search, received, setOrders } = await openExamples(t, botica)

const [record] = (await syntheaBundles()) as Untyped[]
const loaded = (await admin.post<Untyped>('', record)).body.entry.map(({ response }: Untyped) =>
  response.location
    .split('/')
    .slice(-2)
    .join('/')
    .replace(/.*R4\//, ''),
)
const typeAt = (type: string) =>
  record.entry.findIndex(({ resource }: Untyped) => resource.resourceType === type)
const patientId: string = loaded[typeAt('Patient')].split('/').at(-1)

t.test('reads a reference to get the name of its target', async (t) => {
  const doctor = await admin.create({
    resourceType: 'Practitioner',
    name: [{ family: 'Careful', given: ['Adam'] }],
  } as Resource)
  const bot = await deploy('patient-of-result')
  const [patient] = await search(`Patient?_id=${patientId}`)
  const answer = await execute(admin, bot, {
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'Weight' },
    subject: { reference: `Patient/${patientId}` },
    performer: [{ reference: `Practitioner/${doctor.id}` }],
    valueQuantity: { value: 71.5, unit: 'kg' },
  })
  t.match(answer.text, `${patient.name[0].family}: Weight 71.5 kg by Adam Careful`)
})

t.test('merges duplicates of a person into one record', async (t) => {
  const family = `Twin-${randomUUID()}`
  const twin = () => aPatient({ active: true, name: [{ family }], birthDate: '1980-01-01' })
  const older = await admin.create(twin())
  const newer = await admin.create(twin())
  const bot = await deploy('deduplicate-patients')
  t.same((await execute(admin, bot, newer)).body, { kept: older.id, merged: [newer.id] })
  const [kept, merged] = await Promise.all(
    [older, newer].map(async ({ id }) => (await admin.get<Untyped>(`Patient/${id}`)).body),
  )
  t.equal(kept.identifier.length, 2)
  t.match(kept.link, [{ other: { reference: `Patient/${newer.id}` }, type: 'replaces' }])
  t.match(merged, { active: false, link: [{ type: 'replaced-by' }] })
  t.same((await execute(admin, bot, kept)).body, { merged: [] }, 'has no duplicates left')
})

t.test('creates reports and observations from laboratory results, once', async (t) => {
  const bot = await deploy('lab-results')
  for (const round of [1, 2]) {
    const answer = await postHl7(bot, hl7('LAB-ORU-2.hl7'))
    t.match(answer.text, /\rMSA\|AA\|ControlID\|OK/, `in round ${round}`)
  }
  const system = 'https://example.org/fhir/sid'
  const [patient, ...others] = await search(`Patient?identifier=${system}/mrn|10006579`)
  t.match(patient, { name: [{ family: 'DUCK' }], birthDate: '1924-10-10', gender: 'male' })
  t.equal(others.length, 0)
  const reports = await search(`DiagnosticReport?subject=Patient/${patient.id}&_sort=_id`)
  t.same(reports.map(({ result }) => result.length).sort(), [5, 5])
  const results = await search(`Observation?subject=Patient/${patient.id}&_count=50`)
  t.equal(results.length, 10)
  const hemoglobin = results.find(({ code }) => code.text === 'HEMOGLOBIN')
  t.match(hemoglobin, {
    status: 'final',
    code: { coding: [{ system: 'http://loinc.org', code: '20509-6' }] },
    valueQuantity: { value: 13.4 },
    effectiveDateTime: '2014-10-06T01:30:00.000Z',
  })
  t.match((await postHl7(bot, hl7('ADT-A01-01.hl7'))).text, /MSA\|AE\|/)
})

t.test('creates resources from an intake form', async (t) => {
  const bot = await deploy('intake-form')
  const allergy = (code: string) => ({ valueCoding: { system: 'urn:food', code } })
  const form = await admin.create({
    resourceType: 'QuestionnaireResponse',
    status: 'completed',
    item: [
      {
        linkId: 'name',
        item: [
          { linkId: 'family-name', answer: [{ valueString: 'Form' }] },
          { linkId: 'given-name', answer: [{ valueString: 'Ann' }, { valueString: 'Lee' }] },
        ],
      },
      { linkId: 'birth-date', answer: [{ valueDate: '1990-02-03' }] },
      { linkId: 'email', answer: [{ valueString: 'ann@example.com' }] },
      { linkId: 'allergies', answer: [allergy('nuts'), allergy('milk')] },
      { linkId: 'smokes', answer: [{ valueBoolean: false }] },
    ],
  } as Resource)
  const answer = await execute(admin, bot, form)
  t.match(answer.body, { allergies: 2 })
  const patient = `Patient/${answer.body.patient}`
  t.match((await admin.get(patient)).body, { name: [{ family: 'Form', given: ['Ann', 'Lee'] }] })
  t.equal((await search(`AllergyIntolerance?patient=${patient}`)).length, 2)
  t.match(await search(`Observation?subject=${patient}`), [{ valueBoolean: false }])
  t.match((await search(`QuestionnaireResponse?subject=${patient}`))[0], { id: form.id })
})

t.test('signs outgoing resources and keeps the key out of the log', async (t) => {
  const bot = await deploy('outbound-webhook')
  const answer = await execute(admin, bot, { resourceType: 'Basic', id: 'b1', code: { text: 'x' } })
  t.same(answer.body, { status: 200, receipt: { received: true } })
  const seen = received.find(({ url }) => url === '/hook')
  const key = 'hook-key-of-the-project'
  t.equal(
    seen?.headers['x-signature'],
    createHmac('sha256', key)
      .update(seen?.body ?? '')
      .digest('hex'),
  )
  const query = `AuditEvent?entity=Bot/${bot}&type=https://medplum.com/CodeSystem/audit-event|execute`
  const [audit] = await eventually(async () => {
    const found = await search(query)
    return found.length === 0 ? undefined : found
  })
  t.match(audit.outcomeDesc, /INFO sent Basic b1 with \*\*\*/)
  t.notOk(JSON.stringify(audit).includes(key))
})

t.test('sends a signed web hook for a payment, once', async (t) => {
  const bot = await deploy('inbound-webhook', { publicWebhook: true })
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'PaymentNotice' }],
  } as Resource)
  const [membership] = await search(`ProjectMembership?profile=Bot/${bot}`)
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  await admin.put(`ProjectMembership/${membership.id}`, { ...membership, accessPolicy })
  botica.services.principals.forget()
  const body = `id=${randomUUID()}&invoice=7&amount=12.50&currency=EUR`
  const post = (signature: string) =>
    anonymous.post<Untyped>(`/webhook/${membership.id}`, body, {
      'Content-Type': 'application/x-www-form-urlencoded',
      'X-Signature': signature,
    })
  const signature = createHmac('sha256', 'payment-key').update(body).digest('hex')
  const [first, again] = [await post(signature), await post(signature)]
  t.equal(first.status, 200)
  t.same(again.body, first.body)
  t.match((await admin.get(`PaymentNotice/${first.body.notice}`)).body, {
    amount: { value: 12.5, currency: 'EUR' },
  })
  const forged = await post('0'.repeat(64))
  t.match(forged, {
    status: 400,
    body: { issue: [{ details: { text: 'The signature is wrong' } }] },
  })
})

t.test('imports a table as a batch', async (t) => {
  const bot = await deploy('import-table')
  const run = randomUUID()
  const table = `${run}-1;Alpha;Ann;1990-01-02\n${run}-2;Beta;Bob;1991-02-03\r\n${run}-3;Bad;Day;1991-02-33\n`
  const text = { 'Content-Type': 'text/plain' }
  const first = await admin.post(`Bot/${bot}/$execute`, table, text)
  t.match(first.body, { created: 2, known: 0, refused: [`${run}-3;Bad;Day;1991-02-33`] })
  const second = await admin.post(`Bot/${bot}/$execute`, table, text)
  t.match(second.body, { created: 0, known: 2 })
})

t.test('answers a FHIR message with a message', async (t) => {
  const bot = await deploy('fhir-message')
  const send = (resource: object) =>
    execute(
      admin,
      bot,
      {
        resourceType: 'Bundle',
        type: 'message',
        entry: [
          {
            resource: {
              resourceType: 'MessageHeader',
              id: 'm1',
              eventCoding: { system: 'urn:events', code: 'admit' },
              source: { endpoint: 'urn:sender' },
              focus: [{ reference: 'urn:uuid:1' }],
            },
          },
          { fullUrl: 'urn:uuid:1', resource },
        ],
      },
      { 'Content-Type': 'application/fhir+json' },
    )
  const done = await send(aPatient())
  const header = done.body.entry[0].resource
  t.match(header, { response: { identifier: 'm1', code: 'ok' }, eventCoding: { code: 'admit' } })
  t.equal((await admin.get(header.focus[0].reference)).status, 200)
  const failed = await send({ resourceType: 'Patient', gender: 5 })
  t.match(failed.body.entry[0].resource, { response: { code: 'fatal-error' } })
})

t.test('links merged records as the message specifies', async (t) => {
  const bot = await deploy('merge-patients')
  const system = 'https://example.org/fhir/sid/mrn'
  const refused = await postHl7(bot, hl7('ADT-A40-01.hl7'))
  t.match(refused.text, /MSA\|AE\|8919-40\|.*\rERR\|\|MRG\^1\^1\|204\^Unknown key/s)
  const [kept, old] = await Promise.all(
    ['12345', '56789'].map((value) =>
      admin.create({ resourceType: 'Patient', identifier: [{ system, value }] } as Resource),
    ),
  )
  t.match((await postHl7(bot, hl7('ADT-A40-01.hl7'))).text, /\rMSA\|AA\|8919-40\|OK/)
  t.match((await admin.get(`Patient/${old?.id}`)).body, {
    active: false,
    link: [{ other: { reference: `Patient/${kept?.id}` }, type: 'replaced-by' }],
  })
})

t.test('fetches orders of another system with a token and updates them', async (t) => {
  const bot = await deploy('fetch-orders')
  const number = randomUUID()
  setOrders([{ number, test: 'Glucose', patient: patientId, done: false }])
  const [first] = (await execute(admin, bot, { since: '2026-01-01' })).body
  t.match(first, { status: 'active' })
  const asked = received.find(({ url }) => url.startsWith('/lab/'))
  t.match(asked, {
    url: '/lab/orders?since=2026-01-01',
    headers: { authorization: 'Bearer lab-token' },
  })
  setOrders([{ number, test: 'Glucose', patient: patientId, done: true }])
  t.same((await execute(admin, bot)).body, [{ id: first.id, status: 'completed' }])
})
