import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { execute, type Untyped } from '../../fixtures/bots/bots.ts'
import { hl7, openExamples } from '../../fixtures/bots/example-bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEncounter, anObservation, aPatient, syntheaBundles } from '../../fixtures/resources.ts'

const botica = await openBotica(t, { worker: true })
const { admin, superAdmin, baseUrl } = botica
const { deploy, postHl7, search, received } = await openExamples(t, botica)

const [record] = (await syntheaBundles()) as Untyped[]
await admin.post('', record)
const [patient] = await search('Patient')
const countMatches = (type: string) =>
  record.entry.filter(({ resource }: Untyped) => resource.resourceType === type).length

t.test('summarizes a visit in a document that the next one continues', async (t) => {
  const bot = await deploy('visit-summary')
  const subject = `Patient/${patient.id}`
  const encounter = await admin.create(anEncounter(subject))
  const measure = () =>
    admin.create(anObservation(subject, { encounter: { reference: `Encounter/${encounter.id}` } }))
  await measure()
  t.match((await execute(admin, bot, encounter)).body, { lines: 1 })
  await measure()
  const answer = await execute(admin, bot, encounter)
  t.match(answer.body, { lines: 2 })
  const document = (await admin.get<Untyped>(`DocumentReference/${answer.body.document}`)).body
  t.match(document, { subject: { reference: subject }, status: 'current' })
  const { url } = document.content[0].attachment
  t.ok(url.startsWith(`${baseUrl}storage/`))
  const line = '5/6/2024 Heart rate: 72 beats/minute'
  t.equal(await (await fetch(url)).text(), `${line}\n${line}\nBefore:\n${line}`)
})

t.test('creates a care team once', async (t) => {
  const bot = await deploy('care-team')
  const doctor = {
    npi: randomUUID(),
    family: 'Careful',
    given: 'Adam',
    organization: `Clinic & Sons, ${randomUUID()}`,
  }
  const first = await execute(admin, bot, doctor)
  const again = await execute(admin, bot, doctor)
  t.same(again.body, first.body)
  t.match((await admin.get(`PractitionerRole/${first.body.role}`)).body, {
    practitioner: { reference: `Practitioner/${first.body.practitioner}`, display: 'Adam Careful' },
    organization: { reference: `Organization/${first.body.organization}` },
  })
})

t.test('completes a task once by a patch', async (t) => {
  const bot = await deploy('finish-task')
  const task = await admin.create({
    resourceType: 'Task',
    status: 'in-progress',
    intent: 'order',
  } as Resource)
  const input = { task: task.id, note: 'Called back' }
  t.same((await execute(admin, bot, input)).body, { done: true, version: '2' })
  t.same((await execute(admin, bot, input)).body, { done: false, why: 'It was completed before' })
  t.match((await admin.get(`Task/${task.id}`)).body, {
    status: 'completed',
    note: [{ text: 'Called back' }],
  })
})

t.test('reads a chart by one GraphQL query', async (t) => {
  const bot = await deploy('patient-chart')
  const answer = await admin.get<Untyped>(`Bot/${bot}/$execute?patient=${patient.id}`)
  t.match(answer.body, { name: { family: patient.name[0].family } })
  t.equal(answer.body.problems.length, countMatches('Condition'))
  t.equal(answer.body.vaccines.length, countMatches('Immunization'))
  t.ok(answer.body.vaccines.every((text: unknown) => typeof text === 'string'))
  t.equal((await admin.get(`Bot/${bot}/$execute?patient=nobody`)).status, 400)
})

t.test('returns a card for a draft that conflicts with an allergy', async (t) => {
  const bot = await deploy('allergy-cards')
  const drug = (code: string) => ({ coding: [{ system: 'urn:drugs', code }], text: code })
  const { id } = await admin.create(aPatient())
  await admin.create({
    resourceType: 'AllergyIntolerance',
    clinicalStatus: {
      coding: [
        {
          system: 'http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical',
          code: 'active',
        },
      ],
    },
    patient: { reference: `Patient/${id}` },
    code: drug('penicillin'),
  } as Resource)
  const entry = ['aspirin', 'penicillin'].map((code) => ({
    resource: { resourceType: 'MedicationRequest', medicationCodeableConcept: drug(code) },
  }))
  const context = { patientId: id, draftOrders: { resourceType: 'Bundle', entry } }
  const answer = await execute(admin, bot, { hook: 'order-select', context })
  t.equal(answer.body.cards.length, 1)
  t.match(answer.body.cards, [{ summary: 'Allergic to penicillin', indicator: 'critical' }])
  t.equal((await execute(admin, bot, { hook: 'patient-view', context })).status, 400)
})

t.test('creates a request from a form, and sends a letter as multipart form data', async (t) => {
  const bot = await deploy('referral-form')
  const form = `patient=${patient.id}&reason=Back+pain+%26+more&copy=a%40example.com&copy=b%40example.com`
  const type = { 'Content-Type': 'application/x-www-form-urlencoded' }
  const answer = await admin.post<Untyped>(`Bot/${bot}/$execute`, form, type)
  t.equal(answer.body.fax, 'queued')
  t.match((await admin.get(`ServiceRequest/${answer.body.request}`)).body, {
    reasonCode: [{ text: 'Back pain & more' }],
  })
  const sent = received.find(({ url }) => url === '/fax')
  const parts = await new Response(sent?.body ?? '', {
    headers: { 'Content-Type': String(sent?.headers['content-type']) },
  }).formData()
  t.equal(parts.get('number'), answer.body.request)
  t.same(parts.getAll('copy'), ['a@example.com', 'b@example.com'])
  const letter = parts.get('letter')
  t.ok(letter instanceof File && letter.name === 'letter.txt')
  t.equal(letter instanceof File && (await letter.text()), 'Reason: Back pain & more')
})

t.test('reads a report as a table and stores it', async (t) => {
  const bot = await deploy('daily-report')
  const answer = await admin.get(`Bot/${bot}/$execute`)
  t.match(answer.headers.get('content-type'), 'text/csv')
  const [head, ...rows] = answer.text.split('\n')
  t.equal(head, 'status,class,encounters')
  const total = rows.reduce((sum, row) => sum + Number(row.split(',')[2]), 0)
  t.equal(total, (await search('Encounter?_count=1000')).length)
  await admin.get(`Bot/${bot}/$execute`)
  const kept = await search('Communication?identifier=https://example.org/fhir/sid/report|')
  t.equal(kept.length, 1)
  t.equal(await (await fetch(kept[0].payload[0].contentAttachment.url)).text(), answer.text)
})

t.test('calls bots from bots in sequence', async (t) => {
  const system = 'urn:steps'
  const bot = await deploy('pipeline')
  const step = (value: string) => ({ system, value })
  await deploy('patient-of-result', { identifier: [step('describe')] })
  await deploy('pipeline', { identifier: [step('nested')] })
  const { id } = await admin.create(aPatient())
  const result = anObservation(`Patient/${id}`, { code: { text: 'Pulse' } })
  const done = await execute(admin, bot, { value: result, steps: [step('describe')] })
  t.same(done.body, { done: ['describe'], value: 'Peter James Chalmers: Pulse 72 beats/minute' })
  const inner = { value: result, steps: [step('describe')] }
  const nested = await execute(admin, bot, { value: inner, steps: [step('nested')] })
  t.same(nested.body.value, done.body)
  const failed = await execute(admin, bot, { value: {}, steps: [step('nobody'), step('describe')] })
  t.same(failed.body, { done: [], failed: 'nobody', why: 'Not found' })
})

t.test('reports changes from the history as a PDF', async (t) => {
  const bot = await deploy('change-report')
  const { id } = await admin.create(aPatient({ gender: 'male' }))
  for (const changes of [{ gender: 'female' }, { gender: 'female', active: false }]) {
    await admin.put(`Patient/${id}`, { ...aPatient(changes), id })
  }
  const { body } = await execute(admin, bot, { patient: id })
  t.match(body.lines, [/^2: .*gender/, /^3: .*active/])
  t.match(body.lines[0], ` by ClientApplication/${botica.adminCredentials.id}`)
  const document = await admin.get(body.document)
  t.match(document.headers.get('content-type'), 'application/pdf')
  t.match(document.text, /^%PDF-/)
})

t.test('closes a chart by deleting plans, with a reason of a value set', async (t) => {
  const bot = await deploy('leave-practice')
  const { id } = await admin.create(aPatient())
  const subject = `Patient/${id}`
  await admin.create(anEncounter(subject))
  const appointment = (status: string) =>
    admin.create({
      resourceType: 'Appointment',
      status,
      participant: [{ actor: { reference: subject }, status: 'accepted' }],
    } as Resource)
  const [proposed, cancelled] = [await appointment('proposed'), await appointment('cancelled')]
  const done = await execute(admin, bot, { patient: id, reason: 'home' })
  t.match(done.body, { closed: true, deleted: 1, left: 3 })
  t.equal((await admin.get(`Appointment/${proposed.id}`)).status, 410)
  t.equal((await admin.get(`Appointment/${cancelled.id}`)).status, 200)
  t.match((await admin.get(`Flag/${done.body.flag}`)).body, {
    code: { coding: [{ code: 'home', display: 'Home' }] },
    subject: { reference: subject },
  })
  const refused = await execute(admin, bot, { patient: id, reason: 'bored' })
  t.match(refused, { status: 400, body: { issue: [{ expression: ['reason'] }] } })
})

t.test('updates an appointment from its messages', async (t) => {
  const bot = await deploy('appointment')
  const booked = hl7('SIU-S12-01.hl7')
  t.match((await postHl7(bot, booked)).text, /\rMSA\|AA\|MSG00012\|OK/)
  const query = 'Appointment?identifier=https://example.org/fhir/sid/appointment|36996'
  t.match(await search(query), [
    {
      status: 'booked',
      start: '2021-09-24T07:15:00.000Z',
      end: '2021-09-24T08:05:00.000Z',
      participant: [{ actor: { display: 'ADAM EVERYMAN' } }],
    },
  ])
  await postHl7(bot, booked.replace('SIU^S12^SIU_S12', 'SIU^S15^SIU_S12'))
  const [cancelled, ...others] = await search(query)
  t.equal(cancelled.status, 'cancelled')
  t.equal(others.length, 0)
})

t.test('finds violations by FHIRPath rules', async (t) => {
  const bot = await deploy('quality-rules')
  const bare = await admin.create({ resourceType: 'Patient', active: true } as Resource)
  const answer = await execute(admin, bot, {
    search: `Patient?_id=${patient.id},${bare.id}`,
    rules: {
      'has a name': 'name.exists()',
      'has an official name': "name.where(use = 'official').family.exists()",
      'is not from the future': 'birthDate.empty() or birthDate <= today()',
    },
  })
  const only = [`Patient/${bare.id}`]
  t.same(answer.body, { 'has a name': only, 'has an official name': only })
})

t.test('mails a welcome to a new patient', async (t) => {
  const bot = await deploy('welcome-mail')
  const [membership] = await search(`ProjectMembership?profile=Bot/${bot}`)
  await admin.put(`ProjectMembership/${membership.id}`, { ...membership, admin: true })
  const email = `${randomUUID()}@example.com`
  const known = await admin.create(aPatient({ telecom: [{ system: 'email', value: email }] }))
  const answer = await execute(admin, bot, known)
  t.match(answer.body, { sent: true, about: `Patient/${known.id}` })
  t.match((await admin.get(`Communication/${answer.body.comment}`)).body, {
    subject: { reference: `Patient/${known.id}` },
    sender: { reference: `Bot/${bot}` },
    payload: [{ contentString: 'Welcome, Peter James!' }],
  })
  t.match((await superAdmin.get('/admin/super/mails')).text, email)
  t.same((await execute(admin, bot, aPatient())).body, { sent: false })
})
