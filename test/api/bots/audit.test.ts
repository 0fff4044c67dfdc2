import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import {
  aBot,
  type BotDetails,
  eventually,
  execute,
  handler,
  type Untyped,
} from '../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true })
const { admin, project } = botica

async function readEvents(id: string): Promise<Untyped[]> {
  const query = `AuditEvent?source=Bot/${id}&_sort=_lastUpdated`
  const { body } = await admin.get<Untyped>(query, { 'X-Medplum': 'extended' })
  return (body.entry ?? []).map(({ resource }: Untyped) => resource)
}

function audited(id: string): Promise<Untyped> {
  return eventually(async () => (await readEvents(id))[0])
}

t.test('records bot, caller, identity, input and outcome in an AuditEvent', async (t) => {
  const id = await aBot(botica, handler('console.log("seen"); return 1'))
  const patient = await admin.post('Patient', { resourceType: 'Patient' })
  const trace = '7f3e9f0a-5f9c-4a53-9a53-0d6f1bb7a001'
  await execute(admin, id, patient.body, { 'X-Trace-Id': trace })
  const event = await audited(id)
  t.match(event, {
    resourceType: 'AuditEvent',
    meta: { project: project.id, author: { reference: `Bot/${id}` } },
    type: { system: 'https://medplum.com/CodeSystem/audit-event', code: 'execute' },
    recorded: event.period.end,
    agent: [
      {
        who: { reference: `ClientApplication/${botica.adminCredentials.id}` },
        requestor: true,
      },
      { who: { reference: `Bot/${id}` }, requestor: false },
    ],
    source: { observer: { reference: `Bot/${id}` } },
    entity: [
      { what: { reference: `Bot/${id}` } },
      { what: { reference: `Patient/${patient.body.id}` } },
    ],
    outcome: '0',
    outcomeDesc: /INFO seen\n$/,
  })
  t.ok(event.period.start <= event.period.end)
  const [tracing] = event.extension
  t.equal(tracing.url, 'https://medplum.com/fhir/StructureDefinition/tracing')
  t.same(
    tracing.extension.map(({ url }: Untyped) => url),
    ['requestId', 'traceId'],
  )
})

t.test('records a run whose log and input have a NUL', async (t) => {
  const id = await aBot(botica, handler(`console.log('a\\0b')`))
  await execute(admin, id, { resourceType: 'Patient', id: 'c\0d' })
  const event = await audited(id)
  t.match(event.outcomeDesc, /INFO a\ufffdb\n$/)
  t.equal(event.entity[1].what.reference, 'Patient/c\ufffdd')
})

t.test('distinguishes bot failures from exceeded limits in the outcome', async (t) => {
  const extension = [
    { url: `${botica.baseUrl}fhir/StructureDefinition/bot-cpuMs`, valueInteger: 100 },
  ]
  const cases: readonly [body: string, outcome: string, fields?: BotDetails['fields']][] = [
    ['return 1', '0'],
    ['throw new Error("no")', '4'],
    ['return 1n', '4'],
    ['await new Promise(() => {})', '8', { timeout: 1 }],
    ['for (;;);', '8', { extension }],
    ['const a = []; for (;;) a.push([a.length])', '8', { timeout: 60 }],
  ]
  for (const [body, outcome, fields] of cases) {
    const id = await aBot(botica, handler(body), fields === undefined ? {} : { fields })
    await execute(admin, id)
    t.equal((await audited(id)).outcome, outcome, body)
  }
})

t.test('records the reason when a bot fails to load or exceeds a limit', async (t) => {
  const cases: readonly [code: string, why: RegExp, fields?: BotDetails['fields']][] = [
    [`console.log('top'); throw new Error('no luck'); exports.handler = 1`, /no luck/],
    [`export const handler = 1\nawait Promise.reject(new Error('at the top'))`, /at the top/],
    [handler('await new Promise(() => {})'), /timed out after 1 s/, { timeout: 1 }],
  ]
  for (const [code, why, fields] of cases) {
    const id = await aBot(botica, code, { filename: 'index.js', ...(fields && { fields }) })
    t.equal((await execute(admin, id)).status, 400)
    t.match((await audited(id)).outcomeDesc, why)
    const parts = await eventually(async () => {
      const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
      return body.parameter?.[0]?.part as Untyped[] | undefined
    })
    t.match(parts.find(({ name }) => name === 'error')?.valueString, why)
  }
})

t.test('records the runs selected by trigger and destination', async (t) => {
  const code = handler(
    'if (event.input.log) console.log("x"); if (event.input.fail) throw new Error("x")',
  )
  const inputs = [{}, { log: true }, { fail: true }]
  const cases: readonly [fields: BotDetails['fields'], events: number][] = [
    [{ auditEventTrigger: 'always' }, 3],
    [{ auditEventTrigger: 'never' }, 0],
    [{ auditEventTrigger: 'on-error' }, 1],
    // An uncaught error is logged, too.
    [{ auditEventTrigger: 'on-output' }, 2],
    [{ auditEventDestination: ['log'] }, 0],
    [{ auditEventDestination: ['log', 'resource'] }, 3],
  ]
  const bots = await Promise.all(
    cases.map(async ([fields]) => await aBot(botica, code, { ...(fields ? { fields } : {}) })),
  )
  for (const id of bots) for (const input of inputs) await execute(admin, id, input)
  // Events are written in the order of the runs, so the last one means all are there.
  const last = await aBot(botica, handler('return 1'))
  await execute(admin, last)
  await audited(last)
  for (const [index, [fields, events]] of cases.entries()) {
    const found = await readEvents(bots[index] ?? '')
    t.equal(found.length, events, JSON.stringify(fields))
  }
})

t.test('keeps the last 10 KiB of the log in an AuditEvent', async (t) => {
  const id = await aBot(botica, handler('for (let i = 0; i < 5000; i++) console.log("line é", i)'))
  await execute(admin, id)
  const { outcomeDesc } = await audited(id)
  t.ok(Buffer.byteLength(outcomeDesc) <= 10 * 1024)
  t.match(outcomeDesc, /line é 4999\n$/)
})
