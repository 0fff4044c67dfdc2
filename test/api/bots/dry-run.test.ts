/** Imports the number of a type, to leave out the rows of jobs. */
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, deploy, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { createDryRuns } from '../../fixtures/bots/dry-runs.ts'
import { AT_GATE, aGate } from '../../fixtures/bots/gates.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const folder = mkdtempSync(join(tmpdir(), 'botica-dry-runs-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    BOT_INPUT_ARCHIVE: 'true',
    STORAGE_URL: `file:${folder}`,
    BOT_FETCH: 'all',
  },
})
const { admin, superAdmin, project, services } = botica
const PATIENCE_MS = 90_000

let requests = 0
const hospital = createServer((request, response) => {
  requests += 1
  response.setHeader('Content-Type', 'application/json')
  response.end(
    JSON.stringify({ bed: 'A7', more: 'x'.repeat(request.url === '/large' ? 1024 * 1024 : 0) }),
  )
})
const url = `http://127.0.0.1:${await listen(t, hospital)}`

const current = (await superAdmin.get<Untyped>(`Project/${project.id}`)).body
await superAdmin.put(`Project/${project.id}`, {
  ...current,
  features: [...(current.features ?? []), 'email'],
  secret: [{ name: 'KEY', valueString: 'the-hidden-key' }],
  setting: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
})

const { runKept, stage, dryRun } = createDryRuns(admin)

/** Rows of every table; without those of the AsyncJobs. */
async function countRows(): Promise<Record<string, number>> {
  const { database } = services
  const tables = await database.query<{ name: string }>({
    text: `select relname as name from pg_class
      where relkind in ('r', 'p') and relnamespace = 'public'::regnamespace and not relispartition`,
    values: [],
  })
  const counts: Record<string, number> = {}
  for (const { name } of tables) {
    if (name === 'job') continue
    const hasType = name === 'version' || name === 'resource'
    const own = hasType ? `where type <> ${typeNumber('AsyncJob')}` : ''
    const rows = await database.query<{ count: number }>({
      text: `select count(*)::int as count from "${name}" ${own}`,
      values: [],
    })
    counts[name] = rows[0]?.count ?? 0
  }
  return counts
}

t.test(
  'reports the runs whose answers or writes differ, and not those that differ by chance',
  async (t) => {
    const code = (type: string, extra = '') =>
      handler(`
      const made = await medplum.createResource({ resourceType: '${type}', ...event.input.with })
      return { made, at: new Date().toISOString(), ms: Date.now(), run: event.runId, n: event.input.n ${extra} }`)
    const id = await aBot(botica, code('Patient'))
    const runs = await runKept(id, [{ n: 1 }, { n: 2 }])
    await stage(id, code('Patient'))
    t.match(await dryRun(id), { runs: 2, done: 2, same: 2, different: 0, notCompared: 0, run: [] })

    await stage(id, code('Patient', `, extra: event.input.n === 2 ? 'new' : undefined`))
    const { run, ...counts } = await dryRun(id)
    t.match(counts, { runs: 2, same: 1, different: 1 })
    t.match(run, [{ runId: runs[1], status: 'different', statusBefore: 'ok', statusAfter: 'ok' }])
    t.match(run[0]?.answerAfter, /"extra":"new"/)
    t.notMatch(run[0]?.answerBefore, /extra/)
    t.notOk(run[0]?.writesBefore)

    await stage(id, handler('return 1'))
    const other = await dryRun(id, { count: 1 })
    t.match(other, { runs: 1, different: 1 })
    t.match(other.run, [{ writesBefore: 'POST Patient', writesAfter: 'none', answerAfter: '1' }])
  },
)

t.test('leaves no row and sends no request, mail or notification', async (t) => {
  const helper = await aBot(
    botica,
    handler(
      'return await medplum.createResource({ resourceType: "Basic", code: { text: "nested" } })',
    ),
  )
  await admin.create({
    resourceType: 'Subscription',
    status: 'active',
    reason: 'test',
    criteria: 'Patient',
    channel: { type: 'rest-hook', endpoint: `${url}/hook` },
  } as Untyped)
  const steps = `
    const bed = await (await fetch('${url}/beds?x=1', { method: 'POST', body: '{}' })).json()
    const patient = await medplum.createResource({ resourceType: 'Patient', gender: 'male' })
    await medplum.updateResource({ ...patient, gender: 'female' })
    const read = await medplum.readResource('Patient', patient.id)
    const found = await medplum.searchResources('Patient', '_id=' + patient.id)
    await medplum.executeBatch({ resourceType: 'Bundle', type: 'transaction', entry: [
      { request: { method: 'POST', url: 'Basic' }, resource: { resourceType: 'Basic', code: { text: 'a' } } },
      { request: { method: 'POST', url: 'Basic' }, resource: { resourceType: 'Basic', code: { text: 'b' } } }] })
    const failed = await medplum.executeBatch({ resourceType: 'Bundle', type: 'transaction', entry: [
      { request: { method: 'POST', url: 'Basic' }, resource: { resourceType: 'Basic', code: { text: 'c' }, identifier: [{ value: 'lost' }] } },
      { request: { method: 'PUT', url: 'Patient/' + patient.id, ifMatch: 'W/"9"' }, resource: read }] }).then(() => 'written', () => 'rejected')
    const lost = await medplum.searchResources('Basic', 'identifier=lost')
    const nested = await medplum.executeBot('${helper}', {})
    await medplum.createBinary({ data: 'x'.repeat(100000), contentType: 'text/plain' })
    await medplum.sendEmail({ to: 'a@example.com', subject: 'Hello', text: 'There' })
    await medplum.deleteResource('Patient', patient.id)`
  const result = `return [bed.bed, read.gender, found.length, failed, lost.length, nested.code.text]`
  const id = await aBot(botica, handler(`${steps}; ${result}`), { fields: { timeout: 60 } })
  const { body: memberships } = await admin.get<Untyped>(`ProjectMembership?profile=Bot/${id}`)
  const [{ resource: membership }] = memberships.entry
  await admin.put(`ProjectMembership/${membership.id}`, { ...membership, admin: true })
  await runKept(id, [{}])
  await stage(
    id,
    handler(
      `${steps}; return ['staged', bed.bed, read.gender, found.length, failed, lost.length, nested.code.text]`,
    ),
  )
  await until(async () => (await settled()).delivery === 0, PATIENCE_MS)
  // The codes of an AsyncJob are stored once.
  await dryRun(id)
  const before = await countRows()
  const sent = requests
  const { run, ...counts } = await dryRun(id)
  t.match(counts, { runs: 1, different: 1 }, JSON.stringify(run))
  t.equal(run[0]?.answerBefore, '["A7","female",1,"rejected",0,"nested"]')
  t.equal(run[0]?.answerAfter, '["staged","A7","female",1,"rejected",0,"nested"]')
  t.same(run[0]?.note, ['POST /email/v1/send: not made, and answered as if it were'])
  t.same(await countRows(), before)
  t.equal(requests, sent)
})

/** Counts the rows that workers have still to send. */
async function settled(): Promise<Record<string, number>> {
  const { delivery = 0, event = 0, mail = 0 } = await countRows()
  return { delivery, event, mail }
}

t.test('sends only requests with a recorded response', async (t) => {
  const id = await aBot(botica, handler(`return (await fetch('${url}/one')).status`))
  await runKept(id, [{}])
  const sent = requests
  await stage(id, handler(`return (await fetch('${url}/two?key=secret-of-query')).status`))
  const { run } = await dryRun(id)
  t.match(run, [{ status: 'different', statusBefore: 'ok', statusAfter: 'thrown' }])
  t.same(run[0]?.note, [`GET ${url}/two: not sent, as the past run has not sent it`])
  t.equal(requests, sent)
})

t.test('gets the response to another body, but none that was too large to be kept', async (t) => {
  const code = (body: string) =>
    handler(`
      const bed = await (await fetch('${url}/bed', { method: 'POST', body: '${body}' })).json()
      const { more } = await (await fetch('${url}/large')).json()
      return [bed.bed, more.length]`)
  const id = await aBot(botica, code('one'))
  await runKept(id, [{}])
  const sent = requests
  await stage(id, code('two'))
  const { run } = await dryRun(id)
  t.match(run, [{ statusAfter: 'thrown', answerBefore: '["A7",1048576]' }])
  t.same(run[0]?.note, [
    `POST ${url}/bed: has another body, and the response to the former one`,
    `GET ${url}/large: not sent, as the response of the past run was too large to be kept`,
  ])
  t.equal(requests, sent)
})

t.test('redacts secrets in both answers', async (t) => {
  const id = await aBot(botica, handler('return "one " + event.secrets.KEY.valueString'))
  await runKept(id, [{}])
  await stage(id, handler('return "two " + event.secrets.KEY.valueString'))
  const { run } = await dryRun(id)
  t.match(run, [{ answerBefore: 'one ***', answerAfter: 'two ***' }])
})

t.test('takes a label or a version, and a period', async (t) => {
  const id = await aBot(botica)
  await admin.post(`Bot/${id}/$deploy`, { code: handler('return "one"'), version: '1.0.0' })
  await runKept(id, [{}])
  await deploy(admin, id, handler('return "two"'))
  t.match(await dryRun(id, { version: '1.0.0' }), { same: 1 })
  t.match(await dryRun(id, { version: 'live' }), { different: 1 })
  const ask = async (asked: object) =>
    (await admin.post<Untyped>(`Bot/${id}/$dry-run`, asked)).body.issue[0]
  t.match(await ask({ version: 'canary' }), { expression: ['version'] })
  t.match(await ask({ version: 'live', count: 0 }), { expression: ['count'] })
  t.match(await ask({ version: 'live', since: 'x' }), { expression: ['since'] })
  t.match(await ask({ version: 'live', until: '2001' }), {
    details: { text: 'No run of this period has its input kept: see BOT_INPUT_ARCHIVE' },
  })
})

t.test('rejects callers without the right to deploy', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  await runKept(id, [{}])
  const { client: reader } = await memberUnder(botica, {
    entries: [{ resourceType: 'Bot', readonly: true }],
  })
  const { client } = await botica.createMember()
  const other = await botica.createTenant()
  const ask = async (by: typeof client) =>
    (await by.post(`Bot/${id}/$dry-run`, { version: 'live' })).status
  t.equal(await ask(reader), 403)
  t.equal(await ask(client), 403)
  t.equal(await ask(other.admin), 404)
  t.equal((await admin.get(`Bot/${id}/$dry-run`)).status, 405)
})

t.test('gives way to other writers of its rows', async (t) => {
  const patient = await admin.create({ resourceType: 'Patient' })
  const write = (gender: string) =>
    `await medplum.patchResource('Patient', '${patient.id}', [{ op: 'add', path: '/gender', value: '${gender}' }])`
  const id = await aBot(botica, handler(`${write('male')}; return 1`), { fields: { timeout: 60 } })
  await runKept(id, [{ gate: '' }])
  const { gate, open } = aGate(admin)
  await stage(id, handler(`event.input.gate = '${gate}'; ${write('female')}; ${AT_GATE}; return 1`))
  const comparing = dryRun(id)
  const { database } = services
  await until(async () => {
    const rows = await database.query({
      text: `select 1 from pg_stat_activity where datname = current_database() and xact_start is not null
        and state = 'idle in transaction' and backend_xid is not null`,
      values: [],
    })
    return rows.length > 0
  }, PATIENCE_MS)
  const written = await admin.put(`Patient/${patient.id}`, { ...patient, gender: 'other' })
  t.equal(written.status, 200)
  await open()
  t.match(await comparing, { runs: 1, done: 1 })
  t.equal((await admin.get<Untyped>(`Patient/${patient.id}`)).body.gender, 'other')
})

t.test('does not count in the runs and statistics of the bot', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  await runKept(id, [{}])
  const listed = async () => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    return (body.parameter ?? []).length
  }
  const stats = async () => {
    const { body } = await admin.get<Untyped>(`/admin/projects/${project.id}/bots/stats`)
    return body.bots.find(({ bot }: Untyped) => bot.reference === `Bot/${id}`)?.started
  }
  const runs = await listed()
  await until(async () => (await stats()) === runs, PATIENCE_MS)
  await dryRun(id, { version: 'live' })
  await dryRun(id, { version: 'live' })
  t.equal(await listed(), runs)
  t.equal(await stats(), runs)
})
