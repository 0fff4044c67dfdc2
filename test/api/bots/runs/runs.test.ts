/** Imports the store of runs, to fill and trim it without running bots. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import {
  addBotRuns,
  type BotRunRow,
  findBotRuns,
  removeOldBotRuns,
  trimBotRuns,
} from '../../../../shared/bots/run-records.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../../fixtures/bots/bots.ts'
import type { Client } from '../../../fixtures/client.ts'

const botica = await openBotica(t, { worker: true })
const { admin, services } = botica

function runsIn(body: Untyped): Untyped[] {
  return (body.parameter ?? [])
    .filter(({ name }: Untyped) => name === 'run')
    .map(({ part }: Untyped) =>
      Object.fromEntries(
        part.map(({ name, ...value }: Untyped) => [name, Object.values(value)[0]]),
      ),
    )
}

/** Waits for `count` runs, which are recorded after the reply. */
function recorded(id: string, count: number, client: Client = admin): Promise<Untyped[]> {
  return eventually(async () => {
    const { body } = await client.get<Untyped>(`Bot/${id}/$runs`)
    const runs = runsIn(body)
    return runs.length >= count ? runs : undefined
  })
}

t.test('lists a run with its status, cost, log and caller', async (t) => {
  const id = await aBot(
    botica,
    handler('console.log("hello", event.input.n); return new Array(1000).fill(event.input.n)'),
  )
  const answer = await execute(admin, id, { n: 7 }, { 'X-Trace-Id': randomUUID() })
  const [run] = await recorded(id, 1)
  t.match(run, {
    runId: `urn:uuid:${answer.headers.get('x-bot-run-id')}`,
    status: 'ok',
    started: /^\d{4}-.*Z$/,
    durationMs: Number,
    cpuMs: Number,
    botVersion: String,
    attempt: 1,
    mode: 'sync',
    requester: { reference: `ClientApplication/${botica.adminCredentials.id}` },
    runAs: { reference: `Bot/${id}` },
    traceId: answer.headers.get('x-trace-id') ?? String,
    log: /^\S+Z INFO hello 7\n$/,
  })
  t.notOk('error' in run)
  const measured = await eventually(async () => {
    await execute(admin, id, { n: 7 })
    const [{ memoryMb }] = await recorded(id, 2)
    return memoryMb
  })
  t.ok(measured > 0.5 && measured < 128, `${measured} MB`)
})

t.test('lists failures with the text of the reply', async (t) => {
  const cases: readonly [body: string, status: string, error: string][] = [
    ['throw new Error("no such ward")', 'thrown', 'no such ward'],
    ['await new Promise(() => {})', 'timeout', 'Bot timed out after 1 s'],
    [
      'return 1n',
      'result',
      'Bot result could not be serialized: Do not know how to serialize a BigInt',
    ],
    [
      'throw { resourceType: "OperationOutcome", issue: [{ severity: "error", code: "invalid", details: { text: "own" } }] }',
      'thrown',
      'own',
    ],
  ]
  for (const [body, status, error] of cases) {
    const id = await aBot(botica, handler(body), { fields: { timeout: 1 } })
    await execute(admin, id)
    t.match(await recorded(id, 1), [{ status, error }], body)
  }
})

t.test('masks secrets in failures', async (t) => {
  const tenant = await botica.createTenant()
  const { body: project } = await botica.superAdmin.get<Untyped>(`Project/${tenant.project.id}`)
  const secret = [{ name: 'KEY', valueString: 'first line\nof a "secret"' }]
  await botica.superAdmin.put(`Project/${project.id}`, { ...project, secret })
  const code = handler(`
    const key = event.secrets.KEY?.valueString
    console.log({ key })
    throw new Error(key === undefined ? 'none' : 'refused ' + key + ' and ' + JSON.stringify({ key }))`)
  const id = await aBot(tenant, code)
  const told = 'refused *** and {"key":"***"}'
  // A changed Project reaches a worker within seconds.
  const run = await eventually(async () => {
    await execute(tenant.admin, id)
    const [latest] = await recorded(id, 1, tenant.admin)
    return latest.error === 'none' ? undefined : latest
  })
  t.equal(run.error, told)
  t.match(run.log, `ERROR Error: ${told}\n`)
  t.match(run.log, 'INFO {"key":"***"}\n')
})

t.test('lists calls and writes of a run without secrets', async (t) => {
  const tenant = await botica.createTenant()
  const { body: project } = await botica.superAdmin.get<Untyped>(`Project/${tenant.project.id}`)
  const secret = [{ name: 'KEY', valueString: 'the-hidden-key' }]
  await botica.superAdmin.put(`Project/${project.id}`, { ...project, secret })
  const code = handler(`
    const key = event.secrets.KEY.valueString
    const ward = await medplum.createResource({ resourceType: 'Organization', name: 'Ward' })
    const again = await medplum.updateResource({ ...ward, name: 'Ward 7' })
    await medplum.executeBatch({ resourceType: 'Bundle', type: 'transaction', entry: [
      { request: { method: 'POST', url: 'Basic' }, resource: { resourceType: 'Basic', code: { text: key } } },
      { request: { method: 'DELETE', url: 'Organization/' + ward.id } },
    ] })
    await medplum.readResource('Patient', '${randomUUID()}').catch(() => undefined)
    await fetch('https://user:' + key + '@localhost/' + key + '/hook?token=' + key).catch(() => undefined)
    return [ward.meta.versionId, again.meta.versionId, ward.id]`)
  const id = await aBot(tenant, code)
  const answer = await eventually(async () => {
    const run = await execute(tenant.admin, id)
    return run.status === 200 ? run : undefined
  })
  const [first, second, ward] = answer.body as readonly string[]
  await execute(tenant.admin, id)
  const runs = await recorded(id, 2, tenant.admin)
  t.notOk('calls' in runs[0], 'the list omits them')
  const one = `Bot/${id}/$runs?runId=${answer.headers.get('x-bot-run-id')}`
  const { body, text } = await tenant.admin.get<Untyped>(one)
  t.equal(runsIn(body).length, 1)
  t.notMatch(text, /the-hidden-key|token=/)
  const calls = body.parameter[0].part.filter(({ name }: Untyped) => name === 'call')
  const told = calls.map(({ part }: Untyped) =>
    part
      .filter(({ name }: Untyped) => name !== 'ms')
      .map((value: Untyped) => Object.values(value)[1]),
  )
  t.match(told, [
    ['POST', 'Organization', 201, { reference: `Organization/${ward}/_history/${first}` }],
    ['PUT', `Organization/${ward}`, 200, { reference: `Organization/${ward}/_history/${second}` }],
    ['POST', 200, { reference: /^Basic\// }],
    ['GET', /^Patient\/[^/]*$/, 404],
    ['GET', 'https://localhost/***/hook'],
  ])
  t.equal((await tenant.admin.get(`Bot/${id}/$runs?runId=x`)).status, 400)
  const none = await tenant.admin.get<Untyped>(`Bot/${id}/$runs?runId=${randomUUID()}`)
  t.notOk('parameter' in none.body)
})

t.test('lists asynchronous runs and calls of other bots', async (t) => {
  const inner = await aBot(botica, handler('return "inner"'))
  const outer = await aBot(botica, handler(`return await medplum.executeBot('${inner}', {})`))
  await execute(admin, outer, {}, { Prefer: 'respond-async' })
  t.match(await recorded(outer, 1), [{ status: 'ok', mode: 'async' }])
  t.match(await recorded(inner, 1), [{ status: 'ok', requester: { reference: `Bot/${outer}` } }])
})

t.test('pages back in time, run by run', async (t) => {
  const id = await aBot(botica, handler('console.log(event.input); return 1'))
  for (const n of [1, 2, 3, 4, 5]) await execute(admin, id, n)
  await recorded(id, 5)
  const logs: string[] = []
  let url: string | undefined = `Bot/${id}/$runs?_count=2`
  let pages = 0
  while (url !== undefined) {
    const { body }: Untyped = await admin.get(url)
    logs.push(...runsIn(body).map(({ log }) => log.at(-2)))
    url = body.parameter.find(({ name }: Untyped) => name === 'next')?.valueUrl
    pages++
  }
  t.equal(logs.join(''), '54321')
  t.equal(pages, 3)
  for (const query of ['_count=0', '_count=x', '_cursor=x', '_cursor=1-2']) {
    t.equal((await admin.get(`Bot/${id}/$runs?${query}`)).status, 400, query)
  }
})

t.test('shows runs only to admins, and of a shared bot only their own', async (t) => {
  const id = await aBot(botica, handler('return 1'), { fields: { runAsUser: true } })
  const member = await botica.createMember()
  await execute(admin, id)
  await recorded(id, 1)
  t.equal((await member.client.get(`Bot/${id}`)).status, 200)
  t.equal((await member.client.get(`Bot/${id}/$runs`)).status, 403)
  t.equal((await botica.anonymous.get(`Bot/${id}/$runs`)).status, 401)
  t.equal((await admin.get(`Bot/${randomUUID()}/$runs`)).status, 404)
  t.equal((await admin.post(`Bot/${id}/$runs`, {})).status, 405)

  const other = await botica.createTenant()
  t.equal((await other.admin.get(`Bot/${id}/$runs`)).status, 404, 'of another Project')
  const current = await botica.superAdmin.get<Untyped>(`Project/${other.project.id}`)
  await botica.superAdmin.put(`Project/${other.project.id}`, {
    ...current.body,
    link: [{ project: { reference: `Project/${botica.project.id}` } }],
  })
  await eventually(async () => ((await execute(other.admin, id)).status === 200 ? true : undefined))
  const theirs = await recorded(id, 1, other.admin)
  t.match(theirs, [{ requester: { reference: `ClientApplication/${other.adminCredentials.id}` } }])
  t.equal(theirs.length, 1)
  const ours = await recorded(id, 1)
  t.equal(ours.length, 1)
  t.same(runsIn((await botica.superAdmin.get<Untyped>(`Bot/${id}/$runs`)).body).length, 2)
})

t.test('keeps the latest thousand runs of a bot for a week', async (t) => {
  const { database } = services
  const bot = randomUUID()
  const now = Date.now()
  const aRow = (ageMs: number, project = 1): BotRunRow => ({
    bot,
    id: randomUUID(),
    project,
    started: new Date(now - ageMs),
    record: {
      status: 'ok',
      durationMs: 1,
      cpuMs: 1,
      version: 1,
      attempt: 1,
      mode: 'sync',
      traceId: randomUUID(),
      log: 'with a \u0000, a ", a \\, a }\n and half a \ud800',
    },
  })
  const week = 7 * 24 * 3_600_000
  const rows = [...Array.from({ length: 1010 }, (_, age) => aRow(age)), aRow(week + 1000)]
  await addBotRuns(database, rows)
  await addBotRuns(database, rows.slice(0, 10))
  const kept = (project = 1) =>
    findBotRuns(database, { bot, project, after: undefined, count: 2000 })
  // The worker may have removed the old row by itself.
  const young = (await kept()).filter(({ id }) => id !== rows.at(-1)?.id)
  t.equal(young.length, 1010, 'stores a row once')
  await removeOldBotRuns(database)
  t.equal((await kept()).length, 1010)
  // Another Project may have a bot with the same id.
  await addBotRuns(database, [aRow(week / 2, 2)])
  await trimBotRuns(database, [
    { bot, project: 1 },
    { bot, project: 2 },
    { bot: randomUUID(), project: 1 },
  ])
  const latest = await kept()
  t.equal(latest.length, 1000)
  t.equal((await kept(2)).length, 1)
  t.equal(latest[0]?.id, rows[0]?.id)
  t.match(latest[0]?.record.log, /^with a \0, a ", a \\, a }\n and half a/)
})
