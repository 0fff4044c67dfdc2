/** Calls, events and occurrences of bots with keys, rates and debouncing, one at a time and in order. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../fixtures/bots/gates.ts'
import { hold } from '../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

// Any worker on the database leases due deliveries and occurrences.
const DATABASE_URL = await createDatabase(t)
const WORKER_QUEUES = 'bots-sync,bots-async,schedules,change'
const botica = await openBotica(t, { worker: 'process', env: { DATABASE_URL, WORKER_QUEUES } })
await botica.startWorker()
const { admin, services } = botica

function extension(name: string, value: object): object {
  return { url: `urn:botica:bot-${name}`, ...value }
}

const BY_SUBJECT = extension('concurrencyKey', { valueString: 'subject.reference' })

/** The bot records the begin and end of each run. */
const TELL = handler(`const { subject, valueInteger, deletedResource } = event.input
  const begun = Date.now()
  await new Promise((resolve) => setTimeout(resolve, 20))
  const text = JSON.stringify({ key: subject?.reference, number: valueInteger, deleted: deletedResource?.id,
    scheduled: event.scheduledTime, begun, ended: Date.now() })
  await medplum.createResource({ resourceType: 'Basic', code: { text },
    identifier: [{ system: 'urn:told', value: event.bot.reference }] })`)

interface Told {
  readonly key?: string
  readonly number?: number
  readonly deleted?: string
  readonly scheduled?: string
  readonly begun: number
  readonly ended: number
}

async function toldSoFar(bot: string): Promise<readonly Told[]> {
  const { body } = await admin.get<Untyped>(`Basic?identifier=urn:told|Bot/${bot}&_count=1000`)
  const all = (body.entry ?? []).map(({ resource }: Untyped) => JSON.parse(resource.code.text))
  return all.sort((a: Told, b: Told) => a.begun - b.begun)
}

function told(bot: string, count: number): Promise<readonly Told[]> {
  return eventually(async () => {
    const all = await toldSoFar(bot)
    return all.length >= count ? all : undefined
  })
}

/** Returns the counts of replaced changes in the runs of a bot, once it has that many runs. */
async function replacedCounts(bot: string, count: number): Promise<readonly number[]> {
  const runs = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${bot}/$runs`)
    return body.parameter?.length === count ? body.parameter : undefined
  })
  return runs.flatMap(({ part }: Untyped) =>
    part.flatMap((each: Untyped) => (each.name === 'replaced' ? [each.valueInteger] : [])),
  )
}

function overlaps(runs: readonly Told[]): readonly Told[] {
  return runs.filter(({ begun }, index) => begun < (runs[index - 1]?.ended ?? 0))
}

async function aPatientReference(): Promise<string> {
  const { id } = await admin.create({ resourceType: 'Patient' })
  return `Patient/${id}`
}

function anObservation(reference: string, code: string, valueInteger: number) {
  return {
    resourceType: 'Observation',
    status: 'final',
    code: { coding: [{ system: 'urn:test', code }] },
    subject: { reference },
    valueInteger,
  } as const
}

async function aSubscribedBot(code: string, extensions: readonly object[], source = TELL) {
  const id = await aBot(botica, source, { fields: { extension: extensions } })
  await admin.create({
    resourceType: 'Subscription',
    status: 'active',
    reason: 'test',
    criteria: `Observation?code=urn:test|${code}`,
    channel: { type: 'rest-hook', endpoint: `Bot/${id}` },
  })
  return id
}

t.test('delivers changes of one key one at a time, in their order', async (t) => {
  const id = await aSubscribedBot('order', [BY_SUBJECT])
  const patients = await Promise.all([1, 2, 3].map(aPatientReference))
  for (let number = 0; number < 15; number++) {
    await Promise.all(patients.map((one) => admin.create(anObservation(one, 'order', number))))
  }
  const all = await told(id, 45)
  t.equal(all.length, 45)
  for (const [key, runs] of Map.groupBy(all, (one) => one.key)) {
    t.same(
      runs.map(({ number }) => number),
      Array.from({ length: 15 }, (_, number) => number),
      `${key} in order`,
    )
    t.same(overlaps(runs), [], `${key} without overlaps`)
  }
})

t.test('never runs a delivery and a call of one key at a time', async (t) => {
  const id = await aSubscribedBot('both', [BY_SUBJECT])
  const reference = await aPatientReference()
  const input = (number: number) => ({ subject: { reference }, valueInteger: number })
  await Promise.all([
    ...[0, 1, 2].map((number) => admin.create(anObservation(reference, 'both', number))),
    ...[10, 11, 12, 13].map((number) =>
      execute(admin, id, input(number), { Prefer: 'respond-async' }),
    ),
  ])
  t.same(overlaps(await told(id, 7)), [])
})

t.test('lets no change overtake one of its key that is retried', async (t) => {
  const source =
    handler(`if (event.input.valueInteger === 0 && event.attempt === 1) throw new Error('Once')
    await medplum.createResource({ resourceType: 'Basic',
      code: { text: JSON.stringify({ number: event.input.valueInteger, begun: Date.now() }) },
      identifier: [{ system: 'urn:told', value: event.bot.reference }] })`)
  const id = await aSubscribedBot('retry', [BY_SUBJECT], source)
  const reference = await aPatientReference()
  await admin.create(anObservation(reference, 'retry', 0))
  await admin.create(anObservation(reference, 'retry', 1))
  t.same(
    (await told(id, 2)).map(({ number }) => number),
    [0, 1],
  )
})

t.test('runs a deletion after the earlier changes of its key', async (t) => {
  const id = await aSubscribedBot('gone', [BY_SUBJECT])
  const reference = await aPatientReference()
  const { id: first } = await admin.create(anObservation(reference, 'gone', 0))
  await admin.create(anObservation(reference, 'gone', 1))
  await admin.del(`Observation/${first}`)
  const all = await told(id, 3)
  t.match(all[2], { deleted: first })
  t.same(overlaps(all), [])
})

t.test('delivers the last of several changes within the time of bot-debounce', async (t) => {
  const id = await aSubscribedBot('bounce', [extension('debounce', { valueInteger: 8 })])
  const reference = await aPatientReference()
  const [one, other] = await Promise.all([
    admin.create(anObservation(reference, 'bounce', 0)),
    admin.create(anObservation(reference, 'bounce', 100)),
  ])
  for (let number = 1; number <= 5; number++) {
    await admin.put(`Observation/${one.id}`, {
      ...anObservation(reference, 'bounce', number),
      id: one.id,
    })
  }
  const all = await told(id, 2)
  t.same(all.map(({ number }) => number).sort(), [100, 5], 'each resource has its own')
  t.ok(other.id)
  t.same(await replacedCounts(id, 2), [5])
})

t.test('debounces by the key, for all resources of a constant one', async (t) => {
  const id = await aSubscribedBot('all', [
    extension('debounce', { valueInteger: 8 }),
    extension('concurrencyKey', { valueString: "'all'" }),
  ])
  const reference = await aPatientReference()
  for (let number = 0; number < 4; number++) {
    await admin.create(anObservation(reference, 'all', number))
  }
  t.same(
    (await told(id, 1)).map(({ number }) => number),
    [3],
  )
})

t.test(
  'keeps the later of two changes of a key when the earlier one is matched last',
  async (t) => {
    const reference = await aPatientReference()
    const { id: earlier } = await admin.create(anObservation(reference, 'late', 0))
    const id = await aSubscribedBot('late', [
      extension('debounce', { valueInteger: 10 }),
      extension('concurrencyKey', { valueString: "'late'" }),
    ])
    const { release } = await holdResend(earlier)
    t.teardown(release)
    await admin.create(anObservation(reference, 'late', 1))
    const text = 'select 1 from delivery where target = $1'
    const values = [`Bot/${id}`]
    await until(async () => (await services.database.query({ text, values })).length === 1, 60_000)
    await release()
    t.same(await replacedCounts(id, 1), [1])
    t.same(
      (await told(id, 1)).map(({ number }) => number),
      [1],
    )
  },
)

t.test('spreads deliveries by the rate of their bot, and rejects none', async (t) => {
  const id = await aSubscribedBot('rate', [
    extension('rate', { valueString: '10/s' }),
    extension('rateQueue', { valueInteger: 1 }),
  ])
  const reference = await aPatientReference()
  const sent = Date.now()
  await Promise.all(
    Array.from({ length: 15 }, (_, number) =>
      admin.create(anObservation(reference, 'rate', number)),
    ),
  )
  const all = await told(id, 15)
  t.equal(all.length, 15)
  t.ok((all.at(-1)?.begun ?? 0) - sent >= 1300)
})

/** Adds a change as `$resend` does, in a transaction that is open until `release`: later changes are matched before it. */
async function holdResend(id: string) {
  const origin = JSON.stringify({ depth: 0, traceId: id, requestId: id, resend: {} })
  const text = `insert into outbox (project, type, id, ver, op, origin)
    select project, type, id, ver, 'u', $2 from version where id = $1`
  return await hold(services.database, { text, values: [id, origin] })
}

/** A schedule that comes once a day, and not during the test. */
async function aScheduledBot(source: string, extensions: readonly object[]): Promise<string> {
  const past = new Date(Date.now() - 120_000)
  const cronString = `${past.getUTCMinutes()} ${past.getUTCHours()} * * *`
  const id = await aBot(botica, source, { fields: { cronString, extension: extensions } })
  await until(async () => {
    const rows = await services.database.query({
      text: 'select 1 from schedule where id = $1 and due is not null',
      values: [id],
    })
    return rows.length === 1
  }, 60_000)
  return id
}

/** Adds occurrences that are due now, as workers do when a schedule comes. */
async function occur(bot: string, count: number): Promise<void> {
  await services.database.query({
    text: `insert into occurrence (project, bot, scheduled, due)
      select project, id, date_trunc('minute', now()) - n * interval '1 minute', now()
      from schedule, generate_series(1, $2::int) n where id = $1`,
    values: [bot, count],
  })
}

t.test(
  'starts no occurrence while a call of its key runs, and one occurrence at a time',
  async (t) => {
    const constant = extension('concurrencyKey', { valueString: "'nightly'" })
    const id = await aScheduledBot(TELL.replace('const begun', `${AT_GATE}; const begun`), [
      constant,
    ])
    const { gate, open } = aGate(admin)
    const called = execute(admin, id, { gate })
    await until(async () => {
      const { body } = await admin.get<Untyped>(`/admin/projects/${botica.project.id}/bots/stats`)
      return body.slotsUsed === 1
    }, 60_000)
    await occur(id, 3)
    await until(async () => {
      const { 'bots-async': queued } = await services.queues.depths()
      return (queued?.delayed ?? 0) >= 3
    }, 60_000)
    t.same(await toldSoFar(id), [])
    await open()
    t.equal((await called).status, 200)
    const all = await told(id, 4)
    t.notOk(all[0]?.scheduled, 'the call first')
    t.same(overlaps(all), [])
    const times = all.slice(1).map(({ scheduled = '' }) => scheduled)
    t.equal(new Set(times).size, 3)
  },
)

t.test('spreads occurrences by the rate of their bot', async (t) => {
  const id = await aScheduledBot(TELL, [extension('rate', { valueString: '120/min' })])
  const begun = Date.now()
  await occur(id, 4)
  const all = await told(id, 4)
  t.equal(all.length, 4)
  t.ok((all.at(-1)?.begun ?? 0) - begun >= 1300)
  const waits = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    const found = (body.parameter ?? []).flatMap(({ part }: Untyped) =>
      part.filter(({ name }: Untyped) => name === 'waitedFor'),
    )
    return found.length > 0 ? found : undefined
  })
  t.match(waits, [{ valueCode: 'rate' }])
})

t.test('runs the last of several occurrences within the time of bot-debounce', async (t) => {
  const { database } = services
  const id = await aScheduledBot(TELL, [extension('debounce', { valueInteger: 10 })])
  // An earlier occurrence that waits, and one that is due now.
  await database.query({
    text: `with s as (update schedule set since = now() - interval '5 minutes', due = null where id = $1 returning *)
      insert into occurrence (project, bot, scheduled, due)
      select project, id, now() - interval '10 minutes', now() + interval '10 s' from s`,
    values: [id],
  })
  const [first] = await told(id, 1)
  t.ok(Date.parse(first?.scheduled ?? '') > Date.now() - 5 * 60_000, 'the later one')
  const parts = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    return body.parameter?.at(-1)?.part
  })
  t.equal(parts.find(({ name }: Untyped) => name === 'replaced')?.valueInteger, 1)
})
