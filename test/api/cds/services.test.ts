/** CDS Hooks 2.0, by requests and answers like the examples of the specification. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Client } from '../../fixtures/client.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { openSdk } from '../../fixtures/sdk.ts'

const botica = await openBotica(t, { worker: true, env: { BOT_TIMEOUT_MS: '100000' } })
const { admin, baseUrl } = botica
const [ada, user] = await Promise.all([
  admin.create(aPatient({ name: [{ family: 'Lovelace' }] })),
  admin.create({ resourceType: 'Practitioner', name: [{ family: 'Hopper' }] }),
])
const file = readFileSync(join(import.meta.dirname, '../../data/cds-hooks.json'), 'utf8')
const examples = JSON.parse(
  file.replaceAll('PATIENT_ID', ada.id).replaceAll('USER_ID', user.id),
) as Untyped

/** Answers with one card, whose detail is the bot's input. */
const ECHO = handler(`return { cards: [{
  summary: 'Echo', indicator: 'info', source: { label: 'Echo' }, detail: JSON.stringify(event.input),
}] }`)

const aService = (name: string, code = ECHO) =>
  aBot(botica, code, { fields: { cdsService: examples.services[name] } })
const call = (client: Client, id: string, body: unknown, below = '') =>
  client.post<Untyped>(`/cds-services/${id}${below}`, JSON.stringify(body), {
    'Content-Type': 'application/json',
  })
const readInput = (body: Untyped) => JSON.parse(body.cards[0].detail)

const [greeter, echo, genomics] = [
  await aService('patient-greeter'),
  await aService('order-echo'),
  await aService('genomics-on-sign'),
]
await admin.create({
  resourceType: 'MedicationRequest',
  status: 'active',
  intent: 'order',
  subject: { reference: `Patient/${ada.id}` },
  medicationCodeableConcept: { text: 'Ibuprofen' },
})

t.test('lists services with their prefetch templates', async (t) => {
  const { status, body } = await admin.get<Untyped>('/cds-services')
  t.equal(status, 200)
  const { prefetch, ...signing } = examples.services['genomics-on-sign']
  t.same(body.services, [
    {
      id: greeter,
      ...examples.services['patient-greeter'],
      prefetch: { patientToGreet: 'Patient/{{context.patientId}}' },
    },
    {
      id: echo,
      ...examples.services['order-echo'],
      prefetch: Object.fromEntries(
        examples.services['order-echo'].prefetch.map(({ key, query }: Untyped) => [key, query]),
      ),
    },
    { id: genomics, ...signing },
  ])
  t.equal(prefetch, undefined)
})

t.test('serves the services below the address of the project', async (t) => {
  const own = `/projects/${botica.project.id}/cds-services`
  const listed = await admin.get<Untyped>(own)
  t.same(listed.body, (await admin.get('/cds-services')).body)
  const called = await call(admin, greeter, examples.patientView, '')
  const scoped = await admin.post<Untyped>(
    `${own}/${greeter}`,
    JSON.stringify(examples.patientView),
    {
      'Content-Type': 'application/json',
    },
  )
  t.equal(scoped.status, 200, scoped.text)
  t.match(
    readInput(scoped.body).prefetch.patientToGreet.id,
    readInput(called.body).prefetch.patientToGreet.id,
  )
  const other = await botica.createTenant()
  for (const path of ['cds-services', `cds-services/${greeter}`]) {
    const foreign = `/projects/${other.project.id}/${path}`
    const method = path === 'cds-services' ? admin.get(foreign) : admin.post(foreign, {})
    t.equal((await method).status, 403, path)
  }
})

t.test('reads missing prefetch data with the rights of the caller', async (t) => {
  const { status, body } = await call(admin, greeter, examples.patientView)
  t.equal(status, 200)
  t.match(readInput(body), {
    ...examples.patientView,
    prefetch: { patientToGreet: { resourceType: 'Patient', id: ada.id } },
  })

  const selected = await call(admin, echo, examples.orderSelect)
  const { prefetch, context } = readInput(selected.body)
  t.match(prefetch, {
    patient: { id: ada.id },
    medications: { type: 'searchset', entry: [{ resource: { intent: 'order' } }] },
    user: { resourceType: 'Practitioner', id: user.id },
  })
  t.notOk('link' in prefetch.medications)
  t.notOk('role' in prefetch, 'the user is no PractitionerRole')
  t.match(context, examples.orderSelect.context)

  const entries = [
    { resourceType: 'Bot', readonly: true },
    { resourceType: 'Patient', hiddenFields: ['name'] },
    { resourceType: 'MedicationRequest', criteria: 'MedicationRequest?status=draft' },
  ]
  const { client } = await memberUnder(botica, { entries })
  const narrow = readInput((await call(client, echo, examples.orderSelect)).body).prefetch
  t.equal(narrow.patient.id, ada.id)
  t.notOk('name' in narrow.patient, 'hidden by the policy')
  t.equal(narrow.medications, null, 'no data for the caller')
  t.notOk('user' in narrow, 'not readable for the caller')
})

t.test('takes the data of the client, and reads none for ids of another server', async (t) => {
  const given = { ...examples.remotePatientView, fhirServer: `${baseUrl}fhir/R4` }
  const own = await call(admin, greeter, given)
  t.match(readInput(own.body).prefetch, { patientToGreet: { name: [{ family: 'Remote' }] } })

  const { prefetch: _, ...bare } = examples.remotePatientView
  const remote = readInput((await call(admin, greeter, bare)).body)
  t.same(remote.prefetch, {})
  t.match(remote, bare, 'the bot gets the token for the other server')
})

t.test(
  'leaves out prefetch data that is incomplete, and counts as the template says',
  async (t) => {
    const patient = await admin.create(aPatient())
    const observation = {
      resourceType: 'Observation',
      status: 'final',
      code: { text: 'x' },
      subject: { reference: `Patient/${patient.id}` },
    }
    const entry = Array.from({ length: 201 }, () => ({
      resource: observation,
      request: { method: 'POST', url: 'Observation' },
    }))
    const made = await admin.post('', { resourceType: 'Bundle', type: 'batch', entry })
    t.equal(made.status, 200)
    const query = 'Observation?subject=Patient/{{context.patientId}}'
    const cdsService = {
      hook: 'patient-view',
      title: 'Counter',
      description: 'Counts',
      prefetch: [
        { key: 'all', query },
        { key: 'two', query: `${query}&_count=2` },
        { key: 'absent', query: 'Patient/{{context.other}}' },
      ],
    }
    const id = await aBot(botica, ECHO, { fields: { cdsService } })
    const context = { userId: `Practitioner/${user.id}`, patientId: patient.id }
    const { body } = await call(admin, id, { ...examples.patientView, context })
    const { prefetch } = readInput(body)
    t.same(Object.keys(prefetch), ['two'])
    t.equal(prefetch.two.entry.length, 2)
    t.notOk('link' in prefetch.two)

    for (const patientId of ['1&_id=2', '1/$everything', '../Bot', '', 7, { a: 1 }]) {
      const wrong = { ...examples.patientView, context: { patientId } }
      const { status, body } = await call(admin, greeter, wrong)
      t.equal(status, 200)
      const { patientToGreet } = readInput(body).prefetch
      t.ok(patientToGreet === undefined || patientToGreet === null, JSON.stringify(patientId))
    }
  },
)

t.test('passes the cards of the bot on, and names their errors', async (t) => {
  const code = handler('return event.input.context.answer')
  const id = await aBot(botica, code, {
    fields: { cdsService: examples.services['patient-greeter'] },
  })
  const answering = (answer: unknown) =>
    call(admin, id, { ...examples.patientView, context: { answer } })
  for (const answer of examples.answers) {
    const { status, body, headers } = await answering(answer)
    t.same({ status, body }, { status: 200, body: answer })
    t.match(headers.get('content-type'), /^application\/json/)
    t.match(headers.get('x-bot-run-id'), /./)
  }
  const [first, second, third] = examples.answers[1].cards
  const { summary: _, ...dumb } = first
  const { selectionBehavior: __, ...undecided } = third
  const cases: readonly [unknown, RegExp][] = [
    ['Hello', /The answer of the bot must be an object/],
    [{}, /cards must be a list/],
    [{ cards: [dumb] }, /cards\[0\]\.summary must be a text/],
    [{ cards: [{ ...first, summary: 'x'.repeat(140) }] }, /at most 139/],
    [{ cards: [first, { ...second, indicator: 'red' }] }, /cards\[1\]\.indicator must be one of/],
    [{ cards: [{ ...second, source: {} }] }, /cards\[0\]\.source\.label must be a text/],
    [{ cards: [undecided] }, /selectionBehavior must be one of at-most-one, any/],
    [{ cards: [{ ...first, links: [{ label: 'x', url: 'y', type: 'z' }] }] }, /links\[0\]\.type/],
    [{ cards: [], systemActions: [{ type: 'update' }] }, /systemActions\[0\]\.resource must be/],
  ]
  for (const [answer, text] of cases) {
    const { status, body } = await answering(answer)
    t.equal(status, 400)
    t.match(body.issue[0].details.text, text)
  }
  const outcome = {
    resourceType: 'OperationOutcome',
    id: 'precondition-failed',
    issue: [{ severity: 'error', code: 'required', details: { text: 'I need the patient' } }],
  }
  t.match(await answering(outcome), { status: 412, text: /I need the patient/ })
})

t.test('rejects requests that the specification does not allow, by field', async (t) => {
  const { patientView } = examples
  const cases: readonly [object, string][] = [
    [{ ...patientView, hook: 'order-sign' }, 'hook'],
    [{ ...patientView, hook: undefined }, 'hook'],
    [{ ...patientView, hookInstance: undefined }, 'hookInstance'],
    [{ ...patientView, context: undefined }, 'context'],
    [{ ...patientView, prefetch: [] }, 'prefetch'],
    [{ ...patientView, fhirServer: 'here' }, 'fhirServer'],
    [{ ...patientView, fhirAuthorization: {} }, 'fhirServer'],
    [{ ...patientView, fhirServer: baseUrl, fhirAuthorization: 'x' }, 'fhirAuthorization'],
  ]
  for (const [body, field] of cases) {
    const { status, body: outcome } = await call(admin, greeter, body)
    t.match({ status, ...outcome.issue[0] }, { status: 400, expression: [field] })
  }
  t.equal((await call(admin, greeter, [])).status, 400)
  t.equal((await admin.post(`/cds-services/${greeter}`, 'x')).status, 415)
})

t.test('stores feedback for administrators, all of a request or none', async (t) => {
  const { feedback } = examples
  const entries = [{ resourceType: 'Bot', readonly: true }]
  const { client, id: clientId } = await memberUnder(botica, { entries })
  t.equal((await call(client, greeter, { feedback }, '/feedback')).status, 200)
  const query = `AuditEvent?entity=Bot/${greeter}&subtype=https://cds-hooks.hl7.org|feedback&_sort=_id`
  const stored = async () => (await admin.get<Untyped>(query)).body.entry ?? []
  const events = (await stored()).map(({ resource }: Untyped) => resource)
  t.equal(events.length, 3)
  const details = events.map(({ entity }: Untyped) =>
    Object.fromEntries(
      entity[0].detail.map(({ type, valueString }: Untyped) => [type, valueString]),
    ),
  )
  t.strictSame(
    new Set(details.map(({ card }: Untyped) => card)),
    new Set(feedback.map(({ card }: Untyped) => card)),
  )
  t.match(
    details.find(({ outcome }: Untyped) => outcome === 'accepted'),
    { acceptedSuggestion: feedback[0].acceptedSuggestions[0].id, outcomeTimestamp: /^2026/ },
  )
  t.match(
    details.find(({ userComment }: Untyped) => userComment !== undefined),
    { overrideReason: 'https://example.com/override-reasons|patient-refused' },
  )
  t.match(events[0].agent[0], { who: { reference: `ClientApplication/${clientId}` } })

  const [accepted, overridden] = feedback
  const cases: readonly [unknown, string][] = [
    [undefined, 'feedback'],
    [[], 'feedback'],
    [Array(101).fill(overridden), 'feedback'],
    [[accepted, 'x'], 'feedback[1]'],
    [[accepted, { ...overridden, card: undefined }], 'feedback[1].card'],
    [[{ ...overridden, outcome: 'ignored' }], 'feedback[0].outcome'],
    [[{ ...accepted, acceptedSuggestions: [] }], 'feedback[0].acceptedSuggestions'],
    [[{ ...overridden, acceptedSuggestions: 'x' }], 'feedback[0].acceptedSuggestions'],
    [
      [{ ...accepted, acceptedSuggestions: [...accepted.acceptedSuggestions, 5] }],
      `feedback[0].acceptedSuggestions[${accepted.acceptedSuggestions.length}]`,
    ],
    [[{ ...overridden, outcomeTimestamp: 'today' }], 'feedback[0].outcomeTimestamp'],
    [[{ ...overridden, outcomeTimestamp: '2026-02-31T00:00:00Z' }], 'feedback[0].outcomeTimestamp'],
    [
      [{ ...overridden, overrideReason: { reason: { code: 'a', system: 5 } } }],
      'feedback[0].overrideReason.reason.system',
    ],
    [[{ ...overridden, overrideReason: 'no' }], 'feedback[0].overrideReason'],
    [[{ ...overridden, overrideReason: { reason: 'no' } }], 'feedback[0].overrideReason.reason'],
  ]
  for (const [items, expression] of cases) {
    const { status, body } = await call(admin, greeter, { feedback: items }, '/feedback')
    t.match({ status, ...body.issue[0] }, { status: 400, expression: [expression] })
  }
  t.equal((await stored()).length, 3)
})

t.test('shows services only to callers with the right to run them', async (t) => {
  const { admin: foreign } = await botica.createTenant()
  const entries = [{ resourceType: 'Patient' }]
  const { client } = await memberUnder(botica, { entries })
  for (const caller of [foreign, client]) {
    t.same((await caller.get<Untyped>('/cds-services')).body, { services: [] })
    t.equal((await call(caller, greeter, examples.patientView)).status, 404)
    t.equal((await call(caller, greeter, { feedback: [] }, '/feedback')).status, 404)
  }
  const plain = await aBot(botica, ECHO)
  t.equal((await call(admin, plain, examples.patientView)).status, 404, 'an ordinary bot')
  const bare = await aBot(botica, undefined, {
    fields: { cdsService: examples.services['patient-greeter'] },
  })
  t.equal((await call(admin, bare, examples.patientView)).status, 404, 'a bot without code')
})

t.test('serves the calls of the SDK', async (t) => {
  const medplum = await openSdk(botica)
  const { services } = await medplum.getCdsServices()
  t.ok(services.some(({ id }) => id === greeter))
  const answer = await medplum.callCdsService(greeter, examples.patientView)
  t.match(answer.cards, [{ summary: 'Echo' }])
})

t.test('takes requests with large prefetch data', async (t) => {
  const text = 'x'.repeat(300_000)
  const prefetch = { patientToGreet: { resourceType: 'Patient', name: [{ text }] } }
  const { status, body } = await call(admin, greeter, { ...examples.patientView, prefetch })
  t.equal(status, 200)
  t.equal(readInput(body).prefetch.patientToGreet.name[0].text.length, text.length)
})
