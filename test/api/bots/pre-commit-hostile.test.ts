import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { asked, switchOn } from '../../fixtures/bots/pre-commit.ts'

const botica = await openBotica(t, { worker: true, env: { PRE_COMMIT_BOTS: 'true' } })
const { admin } = botica
await switchOn(botica, botica)

t.test('ends an endless bot after 5 s and rejects the write', async (t) => {
  await asked(botica, 'Flag', 'for (;;);')
  await asked(botica, 'List', 'await new Promise(() => {})')
  await asked(botica, 'Task', 'await new Promise((resolve) => setTimeout(resolve, 60000))')
  const code = { text: 'loop' }
  const caller = await aBot(
    botica,
    handler(
      `return await medplum.createResource({ resourceType: 'Task', status: 'draft', intent: 'order' })`,
    ),
    { fields: { timeout: 30 } },
  )
  const answers = await Promise.all([
    admin.post<Untyped>('Flag', {
      resourceType: 'Flag',
      status: 'active',
      code,
      subject: { display: 'x' },
    }),
    admin.post<Untyped>('List', { resourceType: 'List', status: 'current', mode: 'working' }),
    admin.post<Untyped>('Task', { resourceType: 'Task', status: 'draft', intent: 'order' }),
    admin.post<Untyped>(`Bot/${caller}/$execute`, {}),
  ])
  for (const { status, body } of answers) {
    t.equal(status, 400)
    t.match(body.issue, [{ code: 'timeout', details: { text: 'Bot timed out after 5 s' } }])
  }
  for (const type of ['Flag', 'List', 'Task']) {
    t.equal((await admin.get<Untyped>(`${type}?_total=accurate`)).body.total, 0)
  }
})

t.test('does not run a bot for its own writes of the type', async (t) => {
  await asked(
    botica,
    'Patient',
    `const { input } = event
     if (input.active) await medplum.createResource({ resourceType: 'Patient', active: true })
     if (input.gender) await medplum.patchResource('Patient', input.id,
       [{ op: 'add', path: '/birthDate', value: new Date().toISOString().slice(0, 10) },
        { op: 'add', path: '/name', value: [{ text: String(Math.random()) }] }])`,
  )
  t.match(await admin.post('Patient', { resourceType: 'Patient', active: true }), { status: 201 })
  const { body } = await admin.get<Untyped>('Patient?_total=accurate')
  t.equal(body.total, 2)

  const { id } = await admin.create({ resourceType: 'Patient' })
  const sent = [{ op: 'add', path: '/gender', value: 'other' }]
  const patched = await admin.patch<Untyped>(`Patient/${id}`, sent)
  t.match(patched, { status: 409 }, 'a patch applies to the version it was created from')
  const put = await admin.put<Untyped>(`Patient/${id}`, {
    resourceType: 'Patient',
    id,
    gender: 'male',
  })
  t.match(put, { status: 200, body: { gender: 'male' } })
})

t.test('runs no bots for writes of bots called by a pre-commit bot', async (t) => {
  const inner = await aBot(
    botica,
    handler(
      `return await medplum.createResource({ resourceType: 'Substance', code: { text: 'inner' } })`,
    ),
  )
  await asked(botica, 'Substance', `await medplum.executeBot('${inner}', {})`)
  t.match(await admin.post('Substance', { resourceType: 'Substance', code: { text: 'outer' } }), {
    status: 201,
  })
  t.equal((await admin.get<Untyped>('Substance?_total=accurate')).body.total, 2)
})

t.test('rejects client headers that claim bots have run', async (t) => {
  await asked(botica, 'Device', `throw new Error('refused')`)
  const device = { resourceType: 'Device', isPreCommitted: true }
  const headers = { 'X-Bot-Depth': '3', 'Is-Pre-Committed': 'true' }
  t.match(await admin.post('Device', { resourceType: 'Device' }, headers), { status: 400 })
  t.match(await admin.post('Device?isPreCommitted=true', device, headers), { status: 400 })
})

t.test('accepts any thrown outcome', async (t) => {
  await asked(
    botica,
    'Location',
    `const thrown = { whole: { resourceType: 'OperationOutcome', issue: [{ severity: 'error',
        code: 'business-rule', details: { text: 'Closed' }, expression: ['Location.name'] }] },
      broken: { resourceType: 'OperationOutcome', issue: 'none' },
      proxy: new Proxy({}, { get() { throw new Error('trap') } }), text: 'a text', nothing: undefined }
     throw thrown[event.input.name]`,
  )
  const bundle = (name: string) => ({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      {
        request: { method: 'POST', url: 'Location' },
        resource: { resourceType: 'Location', name },
      },
    ],
  })
  for (const name of ['whole', 'broken', 'proxy', 'text', 'nothing']) {
    const { status, body } = await admin.post<Untyped>('', bundle(name))
    t.equal(status, 400, name)
    t.match(body, { resourceType: 'OperationOutcome', issue: [{ severity: 'error' }] })
  }
  const whole = await admin.post<Untyped>('Location', { resourceType: 'Location', name: 'whole' })
  t.match(whole.body.issue, [{ code: 'business-rule', details: { text: 'Closed' } }])
})

t.test('rejects writes while a required bot cannot run', async (t) => {
  const bot = await asked(botica, 'Medication', 'return undefined')
  t.match(await admin.post('Medication', { resourceType: 'Medication' }), { status: 201 })
  await admin.del(`Bot/${bot}`)
  const { status, body } = await admin.post<Untyped>('Medication', { resourceType: 'Medication' })
  t.match([status, body.issue[0].details.text], [400, /pre-commit bot cannot run/])
})
