/** Compares the responses with the stored data while processes crash, hang and lose data. */
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { createClient } from '../../fixtures/client.ts'
import { aSubscription, startReceiver } from '../../fixtures/http/receiver.ts'
import { caseCount, pickRandom, seeded } from '../../fixtures/policy/oracle.ts'
import { MRN_SYSTEM } from '../../fixtures/resources.ts'
import { openCluster } from '../../fixtures/services/cluster.ts'
import { type Lane, openFaults } from './faults.ts'
import { keepExporting, keepImporting, keepListening, readMark, startTimers } from './followers.ts'
import { type Entry, judge, keepWriting } from './writers.ts'

const FAULTS = caseCount(50)
const MOST_MS = caseCount(90_000)
t.setTimeout(210_000 + MOST_MS)
const WRITERS = 8
const PATIENCE_MS = 120_000
/** Longest wait of a caller, with a margin for a busy machine. */
const DEADLINE_MS = 60_000
const SEED = Number(process.env.TEST_SEED ?? 1)
const random = seeded(SEED)

const receiver = await startReceiver(t)
const cluster = await openCluster(t)
const tenant = await cluster.createTenant('Ledger')
const { admin } = tenant
const bot = await aBot(
  tenant,
  handler(`await new Promise((resolve) => setTimeout(resolve, 200))
    const value = event.input.mark
    await medplum.createResource({ resourceType: 'Patient', identifier: [{ system: '${MRN_SYSTEM}', value }] })
    return value`),
)
const scribe = await aBot(
  tenant,
  handler(`const value = event.input.identifier?.[0]?.value
    await medplum.createResource({ resourceType: 'Basic', code: { text: 'seen' }, identifier: [{ system: 'scribe', value }] })`),
)
const { address, lanes } = await openFaults(t, cluster, random)
const clients = [admin, createClient(address, admin.token)]

const counts: Record<string, number> = {}
let left = FAULTS
const startedAt = Date.now()

async function keepHurting(lane: Lane): Promise<void> {
  const names = Object.keys(lane.faults)
  for (let n = 0; left > 0 && Date.now() - startedAt < MOST_MS; n++) {
    left -= 1
    const name = names[n] ?? pickRandom(random, names)
    await lane.faults[name]?.()
    counts[name] = (counts[name] ?? 0) + 1
    await delay(random(2 * lane.calmMs))
  }
}

async function aChain(): Promise<string> {
  const { id } = await admin.create({ resourceType: 'Basic', code: { text: 'first' } })
  return `Basic/${id}`
}

t.test(
  `loses and duplicates no accepted write, and answers every caller (TEST_SEED=${SEED})`,
  async (t) => {
    await admin.create(aSubscription('Patient', `${receiver.url}/hook`) as Untyped)
    await admin.create(aSubscription('Patient', `Bot/${scribe}`) as Untyped)
    const chains = await Promise.all(Array.from({ length: WRITERS }, aChain))
    let isOver = false
    let isCalm = false
    const writing = chains.map((chain) => keepWriting({ clients, bot, chain }, () => isOver))
    const listening = keepListening(t, admin, cluster.baseUrl, () => isCalm)
    const exporting = keepExporting(admin, () => isCalm)
    const importing = keepImporting(admin, () => isOver)
    const timers = await startTimers(tenant)
    await Promise.all(lanes.map(keepHurting))
    isOver = true
    const entries: readonly Entry[] = (await Promise.all(writing)).flat()
    const since = Date.now()
    await until(
      async () => (await execute(admin, bot, { mark: 'calm' })).status === 200,
      PATIENCE_MS,
    )
    const calmMs = Date.now() - since
    const accepted = entries.flatMap(({ location }) => location ?? [])
    await until(async () => {
      const open = await Promise.all(accepted.map((url) => admin.get(url)))
      return open.every(({ status }) => status === 200)
    }, PATIENCE_MS)
    const imported = await importing

    const rows = await judge(admin, entries, chains)
    const there = await marksThere(entries)
    const hooked = () => new Set(receiver.on('/hook').map(({ body }) => readMark(JSON.parse(body))))
    const missedBy = (marks: ReadonlySet<string>) => there.filter((mark) => !marks.has(mark)).length
    await until(async () => missedBy(hooked()) === 0, PATIENCE_MS).catch(() => undefined)
    await until(async () => missedBy(await scribed()) === 0, PATIENCE_MS).catch(() => undefined)
    const occurrences = await timers.ended()
    isCalm = true
    const chain = await exporting
    const missed = {
      hook: missedBy(hooked()),
      bot: missedBy(await scribed()),
      socket: missedBy(await listening),
      exports: missedBy(chain.marks),
      imports: await missingImports(imported),
    }
    const work = {
      imported: imported.length,
      exports: chain.exports,
      there: there.length,
      occurrences,
    }
    const seen = JSON.stringify({ faults: counts, calmMs, missed, work, rows })
    t.comment(seen)
    t.same(
      rows.filter(({ lost, twice }) => lost + twice > 0),
      [],
      'no write is lost or duplicated',
    )
    t.same(missed, { hook: 0, bot: 0, socket: 0, exports: 0, imports: 0 }, seen)
    t.same(occurrences.wrong, [], 'no occurrence runs twice, and every schedule continues')
    t.equal(chain.twice, 0, 'no export contains a line twice')
    t.same(
      entries.filter(({ isMute }) => isMute),
      [],
      'each 503 has a Retry-After',
    )
    const slowest = Math.max(...entries.map(({ ms }) => ms))
    t.ok(slowest < DEADLINE_MS, `answers the slowest caller in ${slowest} ms`)
  },
)

/** Returns the marks of the writers' Patients in the store, acknowledged or not. */
async function marksThere(entries: readonly Entry[]): Promise<readonly string[]> {
  const asked = new Set(entries.map(({ mark }) => mark))
  const found = await values('Patient?_elements=identifier')
  return found.filter((mark) => asked.has(mark))
}

async function scribed(): Promise<ReadonlySet<string>> {
  return new Set(await values('Basic?identifier=scribe|&_elements=identifier'))
}

async function values(search: string): Promise<readonly string[]> {
  const all: string[] = []
  for (let next: string | undefined = `${search}&_count=1000`; next !== undefined; ) {
    const { body } = (await admin.get<Untyped>(next)) as Untyped
    for (const { resource } of body.entry ?? []) all.push(resource.identifier?.[0]?.value ?? '')
    next = body.link.find(({ relation }: Untyped) => relation === 'next')?.url
  }
  return all
}

async function missingImports(ids: readonly string[]): Promise<number> {
  let missing = 0
  for (let at = 0; at < ids.length; at += 100) {
    const own = ids.slice(at, at + 100)
    const found = await admin.get<Untyped>(`Patient?_id=${own.join(',')}&_count=100`)
    const once = (found.body.entry ?? []).filter(
      ({ resource }: Untyped) => resource.meta.versionId === '1',
    )
    missing += own.length - once.length
  }
  return missing
}
