/** A thousand runs that their time limit has killed are replayed while workers are killed: each has its effect once. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, deploy, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const RUNS = 1000
const RATE = 100
const PATIENCE_MS = 600_000

t.setTimeout(1_200_000)
const botica = await openBotica(t, {
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,bots-async,upkeep',
    QUEUE_BACKLOG_MAX: '2000',
  },
})
const { admin } = botica
const EFFECT = `await medplum.createResourceIfNoneExist(
  { resourceType: 'Basic', code: { text: 'effect' }, identifier: [{ system: 'urn:run', value: event.runId }] },
  'identifier=urn:run|' + event.runId)`

async function dead(): Promise<number> {
  const { body } = await admin.get<Untyped>('Bot/$dead-letters?_count=1000')
  return (body.parameter ?? []).filter(({ name }: Untyped) => name === 'letter').length
}

async function replay(): Promise<number> {
  const asked = JSON.stringify({ kind: 'run', rate: RATE })
  const json = { 'Content-Type': 'application/json' }
  const { body } = await admin.post<Untyped>('Bot/$replay', asked, json)
  return body.parameter[0].valueInteger
}

async function effects(): Promise<readonly string[]> {
  const runs: string[] = []
  for (let offset = 0; ; offset += 500) {
    const { body } = await admin.get<Untyped>(`Basic?_count=500&_offset=${offset}`)
    const entries: readonly Untyped[] = body.entry ?? []
    runs.push(...entries.map(({ resource }) => resource.identifier[0].value))
    if (entries.length < 500) return runs
  }
}

t.test('replays a thousand killed runs, each with one effect', async (t) => {
  const workers = [await botica.startWorker(), await botica.startWorker()]
  const id = await aBot(botica, handler(`await new Promise(() => {})`), { fields: { timeout: 1 } })
  const accepted = new Set<string>()
  while (accepted.size < RUNS) {
    const batch = await Promise.all(
      Array.from({ length: 50 }, () => execute(admin, id, {}, { Prefer: 'respond-async' })),
    )
    for (const { status, headers } of batch) {
      if (status === 202) accepted.add(headers.get('x-bot-run-id') ?? '')
    }
  }
  await until(async () => (await dead()) === RUNS, PATIENCE_MS)

  await deploy(admin, id, handler(EFFECT))
  await admin.patch(`Bot/${id}`, [{ op: 'replace', path: '/timeout', value: 60 }])
  t.equal(await replay(), RUNS)
  t.equal(await replay(), 0, 'a waiting replay is not made twice')
  for (const share of [0.25, 0.5]) {
    await until(async () => (await effects()).length >= RUNS * share, PATIENCE_MS)
    workers.shift()?.kill('SIGKILL')
    workers.push(await botica.startWorker())
  }
  // A run that a kill interrupted after its effect is dead again.
  await until(async () => {
    await replay()
    return (await dead()) === 0 && (await effects()).length === RUNS
  }, PATIENCE_MS)
  const found = await effects()
  t.equal(found.length, RUNS)
  t.same(new Set(found), accepted, 'one effect for each accepted run')
})
