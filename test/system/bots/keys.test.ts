/** Ten thousand runs over five hundred keys on two workers: no two of a key overlap, and none overtakes another. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const KEYS = 500
const EACH = 20
const PATIENCE_MS = 600_000

t.setTimeout(1_200_000)
const botica = await openBotica(t, {
  env: { DATABASE_URL: await createDatabase(t), QUEUE_BACKLOG_MAX: '20000' },
})
const { admin } = botica

t.test('keeps ten thousand runs over five hundred keys apart and in order', async (t) => {
  await Promise.all([botica.startWorker(), botica.startWorker()])
  const url = 'urn:botica:bot-concurrencyKey'
  const id = await aBot(
    botica,
    handler(`const begun = Date.now()
      await new Promise((resolve) => setTimeout(resolve, 2))
      await medplum.createResource({ resourceType: 'Basic', code: { text: JSON.stringify({ ...event.input, begun, ended: Date.now() }) } })`),
    { fields: { extension: [{ url, valueString: 'key' }] } },
  )
  for (let number = 0; number < EACH; number++) {
    for (let from = 0; from < KEYS; from += 50) {
      const keys = Array.from({ length: 50 }, (_, index) => from + index)
      const answers = await Promise.all(
        keys.map((key) => execute(admin, id, { key, number }, { Prefer: 'respond-async' })),
      )
      for (const { status } of answers) if (status !== 202) t.equal(status, 202)
    }
  }
  await until(async () => {
    const { body } = await admin.get<Untyped>('Basic?_summary=count')
    return body.total === KEYS * EACH
  }, PATIENCE_MS)
  const told: { key: number; number: number; begun: number; ended: number }[] = []
  for (let path = 'Basic?_count=1000'; path !== ''; ) {
    const { body } = await admin.get<Untyped>(path)
    for (const { resource } of body.entry ?? []) told.push(JSON.parse(resource.code.text))
    const next = body.link?.find(({ relation }: Untyped) => relation === 'next')?.url ?? ''
    path = next.slice(next.indexOf('Basic?') < 0 ? next.length : next.indexOf('Basic?'))
  }
  t.equal(told.length, KEYS * EACH)
  let overlaps = 0
  let overtaken = 0
  for (const runs of Map.groupBy(told, ({ key }) => key).values()) {
    const inTime = runs.toSorted((a, b) => a.begun - b.begun || a.ended - b.ended)
    for (const [index, { begun, number }] of inTime.entries()) {
      if (begun < (inTime[index - 1]?.ended ?? 0)) overlaps++
      if (number !== index) overtaken++
    }
  }
  t.same({ overlaps, overtaken }, { overlaps: 0, overtaken: 0 })
})
