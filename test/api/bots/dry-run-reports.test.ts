/** Reports of dry runs: their bounds, redaction, and the rights of their requester. */
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, finished, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { createDryRuns, type Report, readReport } from '../../fixtures/bots/dry-runs.ts'
import { AT_GATE, aGate } from '../../fixtures/bots/gates.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { changeMembership } from '../../fixtures/policy/policy.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const folder = mkdtempSync(join(tmpdir(), 'botica-dry-reports-'))
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
const { admin, superAdmin, project } = botica
const { runKept, stage, dryRun } = createDryRuns(admin)
const PATIENCE_MS = 90_000

const hospital = createServer((_request, response) => {
  response.write('a part, and no end')
})
const url = `http://127.0.0.1:${await listen(t, hospital)}`

const current = (await superAdmin.get<Untyped>(`Project/${project.id}`)).body
await superAdmin.put(`Project/${project.id}`, {
  ...current,
  secret: [
    { name: 'KEY', valueString: 'the-hidden-key' },
    { name: 'PIN', valueString: '4815162342' },
  ],
  setting: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
})

t.test('redacts secrets in notes, and cuts long ones', async (t) => {
  const calling = (answer: number) =>
    handler(`
      const call = (path) => fetch('${url}/' + path).catch(() => undefined)
      await call(event.secrets.KEY.valueString)
      await call('x'.repeat(1000))
      return ${answer}`)
  const id = await aBot(botica, handler('return 1'))
  await runKept(id, [{}])
  await stage(id, calling(1))
  const { run, same } = await dryRun(id)
  t.equal(same, 1, 'notes alone do not make a difference')
  t.same(run, [])
  await stage(id, calling(2))
  const [different] = (await dryRun(id)).run
  t.equal(different?.note.length, 2)
  t.equal(different?.note[0], `GET ${url}/***: not sent, as the past run has not sent it`)
  t.equal(different?.note[1].length, 500)
  t.notMatch(JSON.stringify(different), 'the-hidden-key')
})

t.test('notes a response that the past run has not read to its end', async (t) => {
  const id = await aBot(botica, handler(`return (await fetch('${url}/beds')).status`))
  await runKept(id, [{}])
  await stage(id, handler(`return await (await fetch('${url}/beds')).text()`))
  const { run } = await dryRun(id)
  t.match(run, [{ status: 'different', answerBefore: '200' }])
  t.same(run[0]?.note, [`GET ${url}/beds: the past run has not read the whole response`])
})

t.test('compares answers that redaction has made invalid JSON', async (t) => {
  const code = (more: string) =>
    handler(`return { pin: Number(event.secrets.PIN.valueString), text: 'a${more}' }`)
  const id = await aBot(botica, code(''))
  await runKept(id, [{}])
  await stage(id, code(''))
  t.match(await dryRun(id), { runs: 1, same: 1 })
  await stage(id, code('b'))
  const { run } = await dryRun(id)
  t.match(run, [{ answerBefore: '{"pin":***,"text":"a"}', answerAfter: '{"pin":***,"text":"ab"}' }])
})

t.test('reports answers with a NUL, and with a cut character', async (t) => {
  const code = (more: number) =>
    handler(`return event.input.cut ? 'x'.repeat(1999) + '😀${more}' : 'a\\0-${more}'`)
  const id = await aBot(botica, code(1))
  await runKept(id, [{ cut: true }, {}])
  await stage(id, code(2))
  const { run } = await dryRun(id)
  const answers = run.map(({ answerAfter }) => answerAfter).sort()
  t.same(answers, ['a\ufffd-2', `${'x'.repeat(1999)}\ufffd`])
})

t.test('compares the resources that a transaction creates', async (t) => {
  const code = (type: string) =>
    handler(`
      const entry = [{ request: { method: 'POST', url: '${type}' }, resource: { resourceType: '${type}' } }]
      const made = await medplum.executeBatch({ resourceType: 'Bundle', type: 'transaction', entry })
      return made.entry[0].response.location`)
  const id = await aBot(botica, code('Patient'))
  await runKept(id, [{}])
  await stage(id, code('Patient'))
  t.match(await dryRun(id), { runs: 1, same: 1 })
  await stage(id, code('Person'))
  t.match((await dryRun(id)).run, [{ writesBefore: 'POST Patient', writesAfter: 'POST Person' }])
})

t.test('cuts long lists of writes, and lists at most 100 runs that differ', async (t) => {
  const writes = (type: string) => `
    if (event.input.writes) {
      const entry = Array.from({ length: 200 }, () => ({
        request: { method: 'POST', url: '${type}' }, resource: { resourceType: '${type}' } }))
      await medplum.executeBatch({ resourceType: 'Bundle', type: 'transaction', entry })
    }`
  const id = await aBot(botica, handler(`${writes('MedicinalProductIndication')}; return 1`))
  const some = Array.from({ length: 25 }, () => ({}))
  await Promise.all([1, 2, 3, 4].map(() => runKept(id, some)))
  await runKept(id, [{ writes: true }])
  await stage(id, handler(`${writes('MedicinalProductInteraction')}; return 2`))
  const { id: job, run, ...counts } = await dryRun(id, { count: 101 })
  t.match(counts, { runs: 101, done: 101, different: 101 })
  t.equal(run.length, 100)
  const [latest] = run
  t.equal(latest?.writesBefore.length, 2000)
  t.equal(latest?.writesAfter.length, 2000)
  t.match(latest?.writesAfter, /^(POST MedicinalProductInteraction, )+POST/)

  const { body } = await admin.get<Untyped>(`AsyncJob/${job}/_history`)
  const [last, ...former] = body.entry.map(({ resource }: Untyped) => resource)
  t.equal(readReport(last).run.length, 100)
  const active = former.filter(({ output }: Untyped) => output !== undefined).map(readReport)
  t.ok(active.length >= 10)
  t.ok(
    active.every((report: Report) => report.done > 0 && report.run.length === 0),
    'versions before the last one only count',
  )
})

t.test('ends when its requester loses the right to deploy', async (t) => {
  const member = await botica.createMember()
  await changeMembership(botica, `ClientApplication/${member.id}`, { admin: true })
  const id = await aBot(botica, handler('return 1'), { fields: { timeout: 60 } })
  await runKept(
    id,
    Array.from({ length: 12 }, () => ({ gate: '' })),
  )
  const { gate, open } = aGate(admin)
  await stage(id, handler(`event.input.gate = '${gate}'; ${AT_GATE}; return 2`))
  const accepted = await member.client.post(`Bot/${id}/$dry-run`, {})
  t.equal(accepted.status, 202, accepted.text)
  const jobUrl = accepted.headers.get('content-location')
  const running = async () => {
    const rows = await botica.services.database.query({
      text: `select 1 from job where kind = 'dry-run' and held > clock_timestamp()`,
      values: [],
    })
    return rows.length > 0
  }
  await until(running, PATIENCE_MS)
  await changeMembership(botica, `ClientApplication/${member.id}`, { admin: false })
  await open()
  const job = await finished(admin, jobUrl)
  t.equal(job.status, 'error')
  t.match(job.output.parameter, [{ name: 'outcome', resource: { issue: [{ code: 'forbidden' }] } }])
  t.same(readReport(job).run, [])
})
