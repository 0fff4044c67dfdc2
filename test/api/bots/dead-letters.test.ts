import { createServer } from 'node:http'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import {
  aBot,
  deploy,
  eventually,
  execute,
  handler,
  type Untyped,
} from '../../fixtures/bots/bots.ts'
import { justNow, miss } from '../../fixtures/bots/schedules.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,bots-async,change,schedules,upkeep',
  },
})
const { admin, project, services } = botica
const LATER = { Prefer: 'respond-async' }

interface Letter {
  readonly [name: string]: Untyped
}

/** Lists the dead letters of a client's Project. */
async function letters(query = '', client = admin): Promise<readonly Letter[]> {
  const { status, body, text } = await client.get<Untyped>(`Bot/$dead-letters?${query}`)
  if (status !== 200) throw new Error(text)
  return (body.parameter ?? [])
    .filter(({ name }: Untyped) => name === 'letter')
    .map(({ part }: Untyped) =>
      Object.fromEntries(part.map((one: Untyped) => [one.name, valueIn(one)])),
    )
}

function valueIn(part: Untyped): Untyped {
  const [name = ''] = Object.keys(part).filter((key) => key.startsWith('value'))
  return part[name]
}

function untilDead(bot: string, count = 1): Promise<readonly Letter[]> {
  return eventually(async () => {
    const found = await letters(`target=Bot/${bot}`)
    return found.length === count ? found : undefined
  })
}

async function change(operation: string, body: unknown, client = admin): Promise<Untyped> {
  return await client.post<Untyped>(`Bot/$${operation}`, JSON.stringify(body), {
    'Content-Type': 'application/json',
  })
}

function readCount({ body }: Untyped): number {
  return body.parameter[0].valueInteger
}

t.test('lists a failed asynchronous run, and replays it with the corrected code', async (t) => {
  const id = await aBot(botica, handler(`throw new Error('Partner 7 is unknown')`))
  const accepted = await execute(admin, id, { a: 1 }, LATER)
  const runId = accepted.headers.get('x-bot-run-id')
  const [letter] = await untilDead(id)
  t.match(letter, {
    id: `urn:uuid:${runId}`,
    kind: 'run',
    bot: { reference: `Bot/${id}` },
    attempts: 1,
    error: 'Partner 7 is unknown',
  })
  await deploy(admin, id, handler(`return { a: event.input.a, run: event.runId }`))
  t.equal(readCount(await change('replay', { id: letter?.id })), 1)
  t.equal(readCount(await change('replay', { id: letter?.id })), 0, 'only once')
  const url = accepted.headers.get('content-location') ?? ''
  const job = await eventually(async () => {
    const { body } = await admin.get<Untyped>(url)
    return body.status === 'completed' ? body : undefined
  })
  t.match(JSON.stringify(job.output), runId ?? 'none', 'the run keeps its id')
  t.same(await letters(`target=Bot/${id}`), [])
  const outcomes = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs?runId=${runId}`)
    const runs: readonly Untyped[] = body.parameter ?? []
    const status = ({ part }: Untyped) => part.find((one: Untyped) => one.name === 'status')
    return runs.length === 2 ? runs.map((run) => status(run).valueCode) : undefined
  })
  t.same(outcomes, ['ok', 'thrown'], 'both attempts are in the list of runs')
})

t.test('lists and replays a run whose input and error have a NUL', async (t) => {
  const id = await aBot(botica, handler('throw new Error(event.input)'))
  const accepted = await admin.post(`Bot/${id}/$execute`, 'a\0b', {
    'Content-Type': 'text/plain',
    ...LATER,
  })
  const [letter] = await untilDead(id)
  t.match(letter, { kind: 'run', bot: { reference: `Bot/${id}` }, error: 'a\ufffdb' })
  await deploy(admin, id, handler('return event.input.length'))
  t.equal(readCount(await change('replay', { id: letter?.id })), 1)
  const url = accepted.headers.get('content-location') ?? ''
  const output = await eventually(async () => {
    const { body } = await admin.get<Untyped>(url)
    return body.status === 'completed' ? body.output : undefined
  })
  t.equal(output.parameter[0].valueString, '3')
})

t.test('leaves out runs that succeed, are cancelled, or have a waiting caller', async (t) => {
  const id = await aBot(
    botica,
    handler(
      `if (event.input.fails) throw new Error('no'); if (event.input.waits) await new Promise(() => {})`,
    ),
  )
  await execute(admin, id, { fails: true })
  const ok = await execute(admin, id, {}, LATER)
  const waits = await execute(admin, id, { waits: true }, LATER)
  await admin.del(waits.headers.get('content-location') ?? '')
  await until(
    async () => (await admin.get(ok.headers.get('content-location') ?? '')).status !== 202,
    90_000,
  )
  await execute(admin, id, { fails: true }, LATER)
  t.equal((await untilDead(id)).length, 1)
})

t.test('lists a run that returns an error', async (t) => {
  const code = `return { resourceType: 'OperationOutcome',
    issue: [{ severity: 'error', code: 'invalid', details: { text: 'Partner 8 is unknown' } }] }`
  const id = await aBot(botica, handler(code))
  await execute(admin, id, {}, LATER)
  t.match(await untilDead(id), [{ kind: 'run', error: 'Partner 8 is unknown' }])
})

t.test('keeps a run that fails again', async (t) => {
  const id = await aBot(botica, handler(`throw new Error('still')`))
  await execute(admin, id, {}, LATER)
  const [first] = await untilDead(id)
  await change('replay', { target: `Bot/${id}` })
  const [second] = await eventually(async () => {
    const found = await letters(`target=Bot/${id}`)
    return found[0] !== undefined && found[0].failed !== first?.failed ? found : undefined
  })
  t.match(second, { id: first?.id, attempts: 1, error: 'still' })
})

t.test('lists an occurrence without attempts left, and replays it', async (t) => {
  const code = handler(
    `if (event.input.resourceType === 'Bot') throw new Error('closed on ' + event.scheduledTime)`,
  )
  const id = await aBot(botica, code, { fields: { cronString: justNow().cronString } })
  await miss(services, id)
  const [letter] = await untilDead(id)
  t.match(letter, { kind: 'schedule', attempts: 3, error: /^closed on / })
  await deploy(
    admin,
    id,
    handler(
      `await medplum.createResource({ resourceType: 'Basic', code: { text: 'at ' + event.scheduledTime } })`,
    ),
  )
  t.equal(readCount(await change('replay', { kind: 'schedule', target: `Bot/${id}` })), 1)
  const time = String(letter?.error).replace('closed on ', '')
  await until(
    async () => JSON.stringify((await admin.get('Basic?_count=1000')).body).includes(`at ${time}`),
    90_000,
  )
  t.same(await letters(`id=${letter?.id}`), [])
})

t.test(
  'lists a failed delivery with its Subscription and resource, and delivers it again',
  async (t) => {
    let status = 500
    const got: string[] = []
    const hook = createServer((req, res) => {
      got.push(String(req.url))
      res.writeHead(status).end()
    })
    t.teardown(() => void hook.close())
    await new Promise<void>((resolve) => hook.listen(0, '127.0.0.1', resolve))
    const address = hook.address()
    const endpoint = `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}/hook`
    const subscription = await admin.create({
      resourceType: 'Subscription',
      status: 'active',
      reason: 'test',
      criteria: 'Basic?code=dead-letter',
      channel: { type: 'rest-hook', endpoint },
      extension: [
        {
          url: 'https://medplum.com/fhir/StructureDefinition/subscription-max-attempts',
          valueInteger: 1,
        },
      ],
    })
    const basic = await admin.create({
      resourceType: 'Basic',
      code: { coding: [{ code: 'dead-letter' }] },
    })
    const [letter] = await eventually(async () => {
      const found = await letters('kind=delivery&error=STATUS 500')
      return found.length > 0 ? found : undefined
    })
    t.match(letter, {
      host: /127\.0\.0\.1/,
      subscription: { reference: `Subscription/${subscription.id}` },
      focus: { reference: `Basic/${basic.id}/_history/1` },
      attempts: 1,
    })
    status = 200
    t.equal(readCount(await change('replay', { kind: 'delivery', error: 'status 500' })), 1)
    await until(async () => got.length === 2, 90_000)
    t.same(await letters('kind=delivery'), [])
  },
)

t.test('spreads replays over time', async (t) => {
  const id = await aBot(botica, handler(`throw new Error('no')`))
  for (let n = 0; n < 4; n++) await execute(admin, id, {}, LATER)
  await untilDead(id, 4)
  t.equal(readCount(await change('replay', { target: `Bot/${id}`, rate: 1 })), 4)
  const waiting = await letters(`target=Bot/${id}`)
  const due = waiting.flatMap(({ replayAt }) => (replayAt ? [Date.parse(replayAt)] : [])).sort()
  t.ok(due.length >= 2)
  t.same(
    due.slice(1).map((at, index) => Math.round((at - (due[index] ?? 0)) / 100)),
    due.slice(1).map(() => 10),
    'a second apart',
  )
})

t.test('discards letters for a reason', async (t) => {
  const id = await aBot(botica, handler(`throw new Error('spam')`))
  await execute(admin, id, {}, LATER)
  await untilDead(id)
  const filter = { target: `Bot/${id}`, error: 'SPAM' }
  t.equal((await change('discard', filter)).status, 400, 'without a reason')
  t.equal(readCount(await change('discard', { ...filter, reason: 'test data' })), 1)
  t.same(await letters(`target=Bot/${id}`), [])
  const { body } = await admin.get<Untyped>('AuditEvent?_count=50&_sort=-_lastUpdated')
  t.match(JSON.stringify(body), /Discard of dead letters .*test data \(1\)/)
})

t.test('groups letters by kind, target and error, the largest first', async (t) => {
  const id = await aBot(botica, handler('throw new Error(event.input.text)'))
  for (const text of ['once', 'often', 'often']) await execute(admin, id, { text }, LATER)
  await untilDead(id, 3)
  const groups = async (query: string) => {
    const { body } = await admin.get<Untyped>(`Bot/$dead-letters?target=Bot/${id}&${query}`)
    return (body.parameter ?? []).map(({ name, part }: Untyped) => {
      t.equal(name, 'group')
      return Object.fromEntries(part.map((one: Untyped) => [one.name, valueIn(one)]))
    })
  }
  const all = await groups('groups=10')
  t.match(all, [
    { kind: 'run', bot: { reference: `Bot/${id}` }, error: 'often', count: 2, failed: /^20/ },
    { kind: 'run', error: 'once', count: 1 },
  ])
  t.equal(all.length, 2)
  t.match(await groups('groups=1'), [{ error: 'often' }])
  t.match(await groups('groups=10&error=ONCE'), [{ error: 'once', count: 1 }])
  t.same(await groups('groups=10&kind=delivery'), [])
  for (const wrong of ['groups=0', 'groups=101', 'groups=x', 'groups=2&_count=1']) {
    t.equal((await admin.get(`Bot/$dead-letters?${wrong}`)).status, 400, wrong)
  }
  const member = (await botica.createMember()).client
  t.equal((await member.get('Bot/$dead-letters?groups=10')).status, 403)
})

t.test('masks secrets in errors, as in the list of runs', async (t) => {
  const other = await botica.createTenant()
  const secret = [{ name: 'KEY', valueString: 'very-"secret"-value' }]
  const current = await botica.superAdmin.get<Untyped>(`Project/${other.project.id}`)
  await botica.superAdmin.put(`Project/${other.project.id}`, { ...current.body, secret })
  const thrown = `throw new Error('401 for ' + event.secrets.KEY.valueString)`
  const returned = `return { resourceType: 'OperationOutcome', issue: [{ severity: 'error', code: 'invalid',
    details: { text: '401 for ' + event.secrets.KEY.valueString } }] }`
  for (const code of [thrown, returned]) {
    const id = await aBot(other, handler(code))
    const { status, headers } = await execute(other.admin, id, {}, LATER)
    t.equal(status, 202)
    const [letter] = await eventually(async () => {
      const found = await letters(`target=Bot/${id}`, other.admin)
      return found.length === 1 ? found : undefined
    })
    t.equal(letter?.error, '401 for ***')
    const job = await other.admin.get(headers.get('content-location') ?? '')
    t.match(job.text, '401 for ***')
    t.notMatch(job.text, /very-/)
    const sync = await execute(other.admin, id, {})
    t.match(sync, { status: 400, text: /401 for \*\*\*/ })
  }
})

t.test('pages through the list', async (t) => {
  const id = await aBot(botica, handler(`throw new Error('no')`))
  for (let n = 0; n < 3; n++) await execute(admin, id, {}, LATER)
  const all = await untilDead(id, 3)
  const seen: string[] = []
  let path = `Bot/$dead-letters?target=Bot/${id}&_count=2`
  for (let page = 0; page < 3 && path !== ''; page++) {
    const { body } = await admin.get<Untyped>(path)
    for (const { name, part, valueUrl } of body.parameter) {
      if (name === 'letter') seen.push(part[0].valueUuid)
      path = name === 'next' ? valueUrl.slice(valueUrl.indexOf('Bot/')) : ''
    }
  }
  t.same(
    seen,
    all.map((letter) => letter.id),
  )
})

t.test('rejects wrong filters, other members and other projects', async (t) => {
  const id = await aBot(botica, handler(`throw new Error('mine')`))
  await execute(admin, id, {}, LATER)
  await untilDead(id)
  const wrong = [
    'id=x',
    'kind=mail',
    'since=soon',
    '_count=0',
    '_cursor=x',
    'target=%00',
    'error=%00',
  ]
  for (const query of [...wrong, `bot=Bot/${id}`]) {
    t.equal((await admin.get(`Bot/$dead-letters?${query}`)).status, 400, query)
  }
  // Without the unknown filter, these would be all letters.
  t.equal((await change('replay', { bot: `Bot/${id}` })).status, 400)
  t.equal((await change('discard', { reason: 'x', bot: `Bot/${id}` })).status, 400)
  t.equal((await change('replay', { rate: 0 })).status, 400)
  t.equal((await change('discard', { reason: ' ' })).status, 400)
  const member = (await botica.createMember()).client
  t.equal((await member.get('Bot/$dead-letters')).status, 403)
  t.equal((await change('replay', {}, member)).status, 403)
  t.equal((await change('discard', { reason: 'x' }, member)).status, 403)
  const other = await botica.createTenant()
  t.same(await letters('', other.admin), [])
  t.equal(readCount(await change('replay', {}, other.admin)), 0)
  t.equal(readCount(await change('discard', { reason: 'x' }, other.admin)), 0)
  t.equal((await letters(`target=Bot/${id}`)).length, 1)
})

t.test('counts letters in a metric', async (t) => {
  const metrics = await fetch(new URL('metrics', botica.baseUrl), {
    headers: { Authorization: `Bearer ${botica.superAdmin.token}` },
  })
  const text = await metrics.text()
  t.match(text, /dead_letters\{kind="run"\} [1-9]/)
  t.ok(project.id)
})
