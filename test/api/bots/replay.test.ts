/** Imports the sweep of runs, which a worker starts only after days. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { deleteOldRuns } from '../../../shared/bots/run-records.ts'
import { openBotica, type Tenant } from '../../fixtures/botica.ts'
import {
  aBot,
  deploy,
  eventually,
  execute,
  handler,
  type Untyped,
} from '../../fixtures/bots/bots.ts'

const folder = mkdtempSync(join(tmpdir(), 'botica-inputs-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const botica = await openBotica(t, {
  worker: true,
  env: { BOT_INPUT_ARCHIVE: 'true', STORAGE_URL: `file:${folder}` },
})

const keeping = await botica.createTenant()
const { admin } = keeping
await keepInputs(keeping)

const HL7 = 'x-application/hl7-v2+er7'
const ADT = 'MSH|^~\\&|A|B|C|D|2026||ADT^A01|1|P|2.5\rPID|1||secret-number'

async function keepInputs({ project }: Tenant): Promise<void> {
  const current = await botica.superAdmin.get<Untyped>(`Project/${project.id}`)
  await botica.superAdmin.put(`Project/${project.id}`, {
    ...current.body,
    setting: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
  })
}

/** Runs the bot until the worker knows the setting; returns the id of the run with a stored input. */
async function runUntilKept(id: string, body: string, type: string): Promise<string> {
  return await eventually(async () => {
    const headers = { 'Content-Type': type, 'X-Mine': 'yes' }
    const answer = await admin.post(`Bot/${id}/$execute/deep`, body, headers)
    const runId = `urn:uuid:${answer.headers.get('x-bot-run-id')}`
    const run = await eventually(async () => {
      const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
      const runs: Untyped[] = body.parameter ?? []
      return runs.find(({ part }) => part.some(({ valueUuid }: Untyped) => valueUuid === runId))
    })
    return run.part.some(({ name }: Untyped) => name === 'replayable') ? runId : undefined
  }, 60_000)
}

function files(): string[] {
  const inputs = join(folder, 'bot-input', keeping.project.id)
  return existsSync(inputs) ? readdirSync(inputs).map((name) => join(inputs, name)) : []
}

t.test('replays a run with the same event and the deployed code', async (t) => {
  const id = await aBot(keeping, handler('throw new Error("not yet")'))
  const runId = await runUntilKept(id, ADT, HL7)
  await deploy(
    admin,
    id,
    handler(
      'return [event.input.constructor.name, String(event.input), event.contentType, event.path, event.headers["x-mine"]]',
    ),
  )
  const again = await eventually(async () => {
    const answer = await admin.post<Untyped>(`Bot/${id}/$replay`, { runId })
    return answer.status === 200 ? answer : undefined
  })
  t.same(again.body, ['Hl7Message', ADT, HL7, 'deep', 'yes'])
  t.not(`urn:uuid:${again.headers.get('x-bot-run-id')}`, runId)
})

t.test('replays with the live code, or with that of a label', async (t) => {
  const id = await aBot(keeping, handler('return "one " + event.input'))
  const runId = await runUntilKept(id, 'text', 'text/plain')
  await admin.post(`Bot/${id}/$deploy`, {
    code: handler('return "two " + event.input'),
    label: 'staging',
  })
  await admin.post(`Bot/${id}/$promote`, { share: 100 })
  t.equal((await admin.post(`Bot/${id}/$replay`, { runId })).text, 'one text')
  t.equal((await admin.post(`Bot/${id}/$replay?label=staging`, { runId })).text, 'two text')
  t.equal((await admin.post(`Bot/${id}/$replay?label=canary`, { runId })).status, 400)
})

t.test('stores inputs unreadable in the folder of the Project', async (t) => {
  t.ok(files().length > 0)
  for (const file of files()) t.notMatch(readFileSync(file, 'latin1'), /secret-number|MSH|Hl7/)
})

t.test('shows the input of a run to admins, without secrets and headers', async (t) => {
  const current = await botica.superAdmin.get<Untyped>(`Project/${keeping.project.id}`)
  const secret = [{ name: 'KEY', valueString: 'the-hidden-key' }]
  await botica.superAdmin.put(`Project/${keeping.project.id}`, { ...current.body, secret })
  const id = await aBot(keeping, handler('return event.input + event.secrets.KEY.valueString'))
  const body = 'with the-hidden-key'
  await eventually(async () =>
    (await admin.post(`Bot/${id}/$execute`, body, { 'Content-Type': 'text/plain' })).status === 200
      ? true
      : undefined,
  )
  const runId = await runUntilKept(id, body, 'text/plain')
  const one = `Bot/${id}/$runs?runId=${runId}`
  const found = await admin.get<Untyped>(one)
  const given = found.body.parameter[0].part.find(({ name }: Untyped) => name === 'input')
  t.match(given.valueAttachment, { contentType: 'text/plain', size: 8 })
  t.equal(Buffer.from(given.valueAttachment.data, 'base64').toString(), 'with ***')
  t.notMatch(found.text, /x-mine/i)
  const again = await admin.post(`Bot/${id}/$replay`, { runId })
  t.equal(again.text, 'with the-hidden-keythe-hidden-key')
  const { client } = await botica.createMember({}, keeping.project.id)
  t.equal((await client.get(one)).status, 403)
  t.equal((await botica.admin.get(one)).status, 404)
})

t.test('lets only admins of the Project replay its runs', async (t) => {
  const id = await aBot(keeping, handler('return event.input'))
  const runId = await runUntilKept(id, '{"a":1}', 'application/json')
  const { client } = await botica.createMember({}, keeping.project.id)
  const other = await aBot(keeping, handler('return 1'))
  const cases: readonly [name: string, status: number, ask: () => Promise<{ status: number }>][] = [
    ['admin', 200, () => admin.post(`Bot/${id}/$replay`, { runId })],
    [
      'admin, by Parameters',
      200,
      () =>
        admin.post(`Bot/${id}/$replay`, {
          resourceType: 'Parameters',
          parameter: [{ name: 'runId', valueUuid: runId }],
        }),
    ],
    ['member', 403, () => client.post(`Bot/${id}/$replay`, { runId })],
    ['admin of another Project', 404, () => botica.admin.post(`Bot/${id}/$replay`, { runId })],
    ['another bot', 404, () => admin.post(`Bot/${other}/$replay`, { runId })],
    ['no run', 400, () => admin.post(`Bot/${id}/$replay`, {})],
    ['odd run', 400, () => admin.post(`Bot/${id}/$replay`, { runId: '../x' })],
    ['a GET', 405, () => admin.get(`Bot/${id}/$replay`)],
  ]
  for (const [name, status, ask] of cases) t.equal((await ask()).status, status, name)
})

t.test('stores nothing unless the Project enables it', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const answer = await execute(botica.admin, id, { a: 1 })
  const runId = String(answer.headers.get('x-bot-run-id'))
  await eventually(async () => {
    const { body } = await botica.admin.get<Untyped>(`Bot/${id}/$runs`)
    return body.parameter?.length > 0 ? true : undefined
  })
  t.equal((await botica.admin.post(`Bot/${id}/$replay`, { runId })).status, 404)
  t.notOk(existsSync(join(folder, 'bot-input', botica.project.id)))
})

t.test('deletes inputs with their runs', async (t) => {
  const { database } = botica.services
  const count = files().length
  t.ok(count > 0)
  await database.query({
    text: `update bot_run set started = started - interval '8 days' where archived`,
    values: [],
  })
  await deleteOldRuns(botica.services)
  t.equal(files().length, 0)
})
