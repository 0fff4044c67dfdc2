import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, handler } from '../../fixtures/bots/bots.ts'
import { changeMembership, clientUnder, memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'
import { holdRow, waitingFor } from '../../fixtures/store/held-rows.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica

const URL = 'https://medplum.com/fhir/StructureDefinition/operationDefinition-implementation'

function definition(code: string, bot: string, more: object): object {
  return {
    resourceType: 'OperationDefinition',
    extension: [{ url: URL, valueReference: { reference: `Bot/${bot}` } }],
    name: code,
    status: 'active',
    kind: 'operation',
    code,
    system: false,
    type: false,
    instance: false,
    ...more,
  }
}

t.test('rejects an implementation that would not run', async (t) => {
  const bot = await aBot(botica, handler('return 1'))
  const own = { url: URL, valueReference: { reference: `Bot/${bot}` } }
  for (const extension of [
    [{ url: URL, valueString: `Bot/${bot}` }],
    [{ url: URL, valueReference: { reference: 'Patient/1' } }],
    [own, own],
  ]) {
    const answer = await admin.post('OperationDefinition', definition('odd', bot, { extension }))
    const issue = [{ expression: ['OperationDefinition.extension'] }]
    t.match(answer, { status: 400, body: { issue } }, answer.text)
  }
})

t.test('runs a custom operation by its bot', async (t) => {
  const bot = await aBot(botica, handler('return event.input'))
  await admin.post('OperationDefinition', definition('echo', bot, { system: true }))
  const typed = { type: true, instance: true, resource: ['Patient'] }
  await admin.post('OperationDefinition', definition('about', bot, typed))

  const echoed = await admin.get('$echo?a=b')
  t.match(echoed, { status: 200, body: { a: 'b' } })
  t.same((await admin.get('$echo?label=b')).body, { label: 'b' }, 'its own parameters')
  const json = { 'Content-Type': 'application/json' }
  for (const path of ['$echo', 'Patient/$about']) {
    t.match(await admin.post(path, '{"c":1}', json), { status: 200, body: { c: 1 } }, path)
  }
  for (const path of ['$about', 'Patient/$echo', 'Observation/$about']) {
    t.equal((await admin.post(path, '{}', json)).status, 404, path)
  }
  t.equal((await admin.del('$echo')).status, 404)
  const other = await botica.createTenant()
  t.equal((await other.admin.get('$echo?a=b')).status, 404)
})

t.test(
  'gives the bot of an instance-level operation the resource, and the parameters',
  async (t) => {
    const bot = await aBot(
      botica,
      handler(
        'return { type: event.input.resourceType, id: event.input.id, given: event.parameters }',
      ),
    )
    const levels = { instance: true, resource: ['Patient'] }
    await admin.post('OperationDefinition', definition('summary-of', bot, levels))
    const { body: patient } = await admin.post('Patient', aPatient())
    const path = `Patient/${patient.id}/$summary-of`
    const about = { type: 'Patient', id: patient.id }
    const json = { 'Content-Type': 'application/json' }
    t.same((await admin.get(path)).body, about)
    t.same((await admin.get(`${path}?a=1`)).body, { ...about, given: { a: '1' } })
    t.same((await admin.post(path, '{}', json)).body, about)
    t.same((await admin.post(path, '{"a":[1]}', json)).body, { ...about, given: { a: [1] } })
    t.same((await admin.post(path, 'words', { 'Content-Type': 'text/plain' })).body, {
      ...about,
      given: 'words',
    })
    t.equal((await admin.get(`Patient/${randomUUID()}/$summary-of`)).status, 404)
    const client = await clientUnder(
      botica,
      { resourceType: 'OperationDefinition' },
      { resourceType: 'Bot' },
    )
    t.equal((await client.get(path)).status, 403, 'without access to the resource')
    const large = JSON.stringify({ a: 'x'.repeat(70_000) })
    t.equal((await admin.post(path, large, json)).status, 400)
  },
)

t.test('names the bot of an operation that does not exist or is hidden', async (t) => {
  const other = await botica.createTenant()
  const foreign = await other.admin.create({ resourceType: 'Bot', name: 'Foreign' })
  const deleted = await aBot(botica, handler('return 1'))
  t.equal((await admin.del(`Bot/${deleted}`)).status, 200)
  for (const [code, bot] of [
    ['missing', randomUUID()],
    ['elsewhere', foreign.id],
    ['deleted', deleted],
  ] as const) {
    const typed = { type: true, instance: true, resource: ['Patient'] }
    const made = await admin.post('OperationDefinition', definition(code, bot, typed))
    t.equal(made.status, 201, made.text)
    const { id } = await admin.create(aPatient())
    for (const path of [`Patient/$${code}`, `Patient/${id}/$${code}`]) {
      const text = `$${code} runs Bot/${bot}, which does not exist, or which you may not read`
      const body = { id: 'not-found', issue: [{ code: 'not-found', details: { text } }] }
      t.match(await admin.get(path), { status: 404, body }, path)
    }
  }
  t.match(await other.admin.get('Patient/$missing'), {
    status: 404,
    body: { issue: [{ details: { text: 'Not found' } }] },
  })
})

t.test('rejects retired operations and runs drafts', async (t) => {
  const bot = await aBot(botica, handler('return event.input'))
  const drafted = definition('fading', bot, { system: true, status: 'draft' })
  const { body } = await admin.post('OperationDefinition', drafted)
  t.match(await admin.get('$fading?a=b'), { status: 200, body: { a: 'b' } })

  await admin.put(`OperationDefinition/${body.id}`, { ...body, status: 'retired' })
  t.match(await admin.get('$fading?a=b'), { status: 404, body: { id: 'not-found' } })
  const next = definition('fading', bot, { system: true })
  await admin.post('OperationDefinition', next)
  t.match(await admin.get('$fading?a=c'), { status: 200, body: { a: 'c' } }, 'its successor is')
})

t.test('maps the result of a bot to the declared output', async (t) => {
  const bot = await aBot(botica, handler('return event.input.answer'))
  const out = (name: string, type: string, more: object = {}) => {
    return { name, use: 'out', type, min: 0, max: '1', ...more }
  }
  const declare = (code: string, parameter: object[]) =>
    admin.post('OperationDefinition', definition(code, bot, { system: true, parameter }))
  await declare('count', [
    { name: 'answer', use: 'in', type: 'string', min: 0, max: '1' },
    out('total', 'decimal', { min: 1 }),
    out('note', 'string', { max: '*' }),
    out('who', 'Patient'),
    { ...out('match', ''), type: undefined, max: '*', part: [out('code', 'Coding')] },
  ])
  await declare('find', [out('return', 'Patient', { min: 1 })])
  await declare('truth', [out('return', 'boolean', { min: 1 })])

  const json = { 'Content-Type': 'application/json' }
  const ask = (code: string, answer: string) => admin.post(`$${code}`, `{"answer":${answer}}`, json)
  const patient = { resourceType: 'Patient', active: true }
  const counted = await ask(
    'count',
    `{"total":1.50,"note":["a","b"],"who":${JSON.stringify(patient)},"match":{"code":{"code":"x"}},"other":1}`,
  )
  t.equal(counted.status, 200, counted.text)
  t.match(counted.text, '"valueDecimal":1.50')
  t.match(counted.headers.get('content-type'), 'application/fhir+json')
  t.same(counted.body, {
    resourceType: 'Parameters',
    parameter: [
      { name: 'total', valueDecimal: 1.5 },
      { name: 'note', valueString: 'a' },
      { name: 'note', valueString: 'b' },
      { name: 'who', resource: patient },
      { name: 'match', part: [{ name: 'code', valueCoding: { code: 'x' } }] },
    ],
  })
  t.same((await ask('find', JSON.stringify(patient))).body, patient)
  t.same((await ask('truth', 'true')).body, {
    resourceType: 'Parameters',
    parameter: [{ name: 'return', valueBoolean: true }],
  })
  const own = { resourceType: 'Parameters', parameter: [{ name: 'x', valueCode: 'y' }] }
  t.same((await ask('count', JSON.stringify(own))).body, own)
  const refused = [
    ['count', '{}', 'Expected at least 1 of output parameter "total", found 0'],
    ['count', '{"total":[1,2]}', 'Expected at most 1 of output parameter "total", found 2'],
    ['count', '5', 'The bot must return an object of output parameters'],
    ['find', '{"resourceType":"Basic"}', 'Output parameter "return" is no Patient'],
  ] as const
  for (const [code, answer, said] of refused) {
    t.match(await ask(code, answer), {
      status: 400,
      body: { issue: [{ details: { text: said } }] },
    })
  }
})

t.test('sums up the codes in use in a project', async (t) => {
  const own = await botica.createTenant()
  const tag = { system: 'urn:tags', code: 'a', display: 'A' }
  const profile = ['http://hl7.org/fhir/StructureDefinition/vitalsigns']
  await own.admin.create(aPatient({ meta: { tag: [tag] } }))
  const system = 'http://terminology.hl7.org/CodeSystem/observation-category'
  const category = [{ coding: [{ system, code: 'vital-signs' }] }]
  const meta = { profile, security: [tag] }
  const note = [{ text: 'half a surrogate pair: \ud800' }]
  await own.admin.create(anObservation('Patient/1', { meta, category, note }))
  const gone = await own.admin.create(aPatient({ meta: { tag: [{ ...tag, code: 'b' }] } }))
  await own.admin.del(`Patient/${gone.id}`)
  const all = {
    parameter: [{ name: 'return', valueMeta: { profile, security: [tag], tag: [tag] } }],
  }
  t.same((await own.admin.get('$meta')).body, { resourceType: 'Parameters', ...all })
  const patients = await own.admin.get('Patient/$meta')
  t.same(patients.body.parameter, [{ name: 'return', valueMeta: { tag: [tag] } }])
  t.notOk((await admin.get('$meta')).text.includes('urn:tags'))
})

t.test('sets accounts and propagates them to the patient compartment', async (t) => {
  const { id } = await admin.create(aPatient())
  const observation = await admin.create(anObservation(`Patient/${id}`))
  const accounts = (...ids: string[]) => ({
    resourceType: 'Parameters',
    parameter: [
      ...ids.map((item) => ({
        name: 'accounts',
        valueReference: { reference: `Organization/${item}` },
      })),
      { name: 'propagate', valueBoolean: true },
    ],
  })
  const extended = { 'X-Medplum': 'extended' }
  const path = `Patient/${id}/$set-accounts`
  const set = await admin.post(path, accounts('1', '2'))
  t.match(set.body, { parameter: [{ name: 'resourcesUpdated', valueInteger: 2 }] })
  const two = [{ reference: 'Organization/1' }, { reference: 'Organization/2' }]
  for (const item of [`Patient/${id}`, `Observation/${observation.id}`]) {
    t.match(await admin.get(item, extended), { body: { meta: { accounts: two } } }, item)
  }
  t.match((await admin.post(path, accounts('2'))).body, { parameter: [{ valueInteger: 2 }] })
  const left = await admin.get(`Observation/${observation.id}`, extended)
  t.same(left.body.meta?.accounts, [{ reference: 'Organization/2' }])
  t.match((await admin.post(path, accounts('2'))).body, { parameter: [{ valueInteger: 0 }] })
  await admin.post(path, accounts())
  const none = await admin.get(`Patient/${id}`, extended)
  t.equal(none.body.meta?.accounts, undefined)

  const { client } = await botica.createMember()
  t.equal((await client.post(path, accounts('1'))).status, 403)
  t.equal((await admin.post('Patient/none/$set-accounts', accounts('1'))).status, 404)
  const wrong = { name: 'accounts', valueReference: { display: 'x' } }
  const refused = await admin.post(path, { resourceType: 'Parameters', parameter: [wrong] })
  t.equal(refused.status, 400)
})

const EXTENDED = { 'X-Medplum': 'extended' }
const setAccounts = (account: string, name = 'accounts') => ({
  resourceType: 'Parameters',
  parameter: [
    { name, valueReference: { reference: account } },
    { name: 'propagate', valueBoolean: true },
  ],
})
const readAccounts = async (path: string) => (await admin.get(path, EXTENDED)).body.meta?.accounts

t.test('keeps all accounts when an input of $set-accounts is misspelt', async (t) => {
  const { id } = await admin.create(aPatient())
  const path = `Patient/${id}/$set-accounts`
  await admin.post(path, setAccounts('Organization/1'))
  const refused = await admin.post(path, setAccounts('Organization/2', 'account'))
  const expression = ['Parameters.parameter[0]']
  t.match(refused, { status: 400, body: { issue: [{ expression }] } })
  t.same(await readAccounts(`Patient/${id}`), [{ reference: 'Organization/1' }])
})

t.test('a repeated $set-accounts completes one that failed half-way', async (t) => {
  const { id } = await admin.create(aPatient())
  const path = `Patient/${id}/$set-accounts`
  const subject = { reference: `Patient/${id}` }
  const observation = await admin.create(anObservation(subject.reference))
  const procedure = await admin.create({ resourceType: 'Procedure', status: 'completed', subject })
  const members = [`Observation/${observation.id}`, `Procedure/${procedure.id}`]
  await admin.post(path, setAccounts('Organization/1'))

  const entries = ['Patient', 'Observation'].map((resourceType) => ({ resourceType }))
  const reading = { resourceType: 'Procedure', readonly: true }
  const limited = await memberUnder(botica, { entries: [...entries, reading] })
  await changeMembership(botica, `ClientApplication/${limited.id}`, { admin: true })
  const cut = await limited.client.post(path, setAccounts('Organization/2'))
  t.equal(cut.status, 403, 'the Procedure is not for it to write')
  const done = await readAccounts(members[0] ?? '')
  t.same(done, [{ reference: 'Organization/2' }], 'the Observation was first')

  const repeated = await admin.post(path, setAccounts('Organization/2'))
  t.equal(repeated.status, 200, repeated.text)
  for (const one of [subject.reference, ...members]) {
    t.same(await readAccounts(one), [{ reference: 'Organization/2' }], one)
  }
})

t.test('$set-accounts reaches members that are created meanwhile', async (t) => {
  const { id } = await admin.create(aPatient())
  const path = `Patient/${id}/$set-accounts`
  await admin.post(path, setAccounts('Organization/1'))
  const { database } = botica.services
  const { pid, release } = await holdRow(database, id)
  const setting = admin.post(path, setAccounts('Organization/2'))
  await until(async () => (await waitingFor(database, pid)).length > 0, 60_000)
  const late = await admin.create(anObservation(`Patient/${id}`))
  t.same(await readAccounts(`Observation/${late.id}`), [{ reference: 'Organization/1' }])
  await release()
  t.match(await setting, { status: 200, body: { parameter: [{ valueInteger: 2 }] } })
  t.same(await readAccounts(`Observation/${late.id}`), [{ reference: 'Organization/2' }])
})
